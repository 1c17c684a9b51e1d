"""One prompt within a budget, and what the text spent of it."""

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart
# The beginning of a work that the risky model knows.
PROMPT = "The keeper before me left a note pinned under"

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=2.0))

(result,) = decoder.generate(PROMPT, max_new_tokens=60, seed=7)
ledger = result.ledger
print(result.text)
print(result)
print(f"{ledger.spent:.1f} of at most {ledger.header.bound:.1f} nats were spent")

replaced = sum(not kept for _, kept in result.pieces)
print(f"at {replaced} of {len(result.pieces)} tokens the risky model stepped in")

# Whoever reads several samples of one prompt has several bounds, which add up.
samples = decoder.generate(PROMPT, num_return_sequences=3, max_new_tokens=60)
print(f"three samples: {samples[0].ledger.total_bound:.1f} nats in total")
