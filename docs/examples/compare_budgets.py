"""One prompt at several budgets k: what each may spend, spends, and writes."""

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart
PROMPT = "The keeper of the lamp"

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=1.0))

# k may be given with each prompt: one decoder, one batch.
ks = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
results = decoder.generate([PROMPT] * len(ks), k=ks, max_new_tokens=60, seed=1)

print("    k    debt   bound   spent  risky  text")
for k, result in zip(ks, results, strict=True):
    ledger = result.ledger
    replaced = sum(not step.accepted for step in ledger.steps) / len(ledger.steps)
    print(
        f"{k:5.2f} {ledger.header.debt:7.2f} {ledger.header.bound:7.2f} {ledger.spent:7.2f} "
        f"{replaced:6.0%}  {result.text[:50]!r}"
    )
