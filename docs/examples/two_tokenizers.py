"""Two models with two tokenizers: budgets and steps are bytes."""

import anchored

MODELS = "runs/bytes/models"  # anchored quickstart --preset bytes --output runs/bytes

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=0.5))  # nats a byte
(result,) = decoder.generate("The keeper", max_new_bytes=120)
print(result.text)
print(result)
for model, work in result.ledger.work.items():
    print(f"{model}: {work}")
