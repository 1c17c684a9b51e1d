"""A text as it is drawn; what the risky model put in stands in brackets."""

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=1.0))

spent = 0.0
for piece in decoder.stream("import math", max_new_tokens=60, seed=3):
    print(piece.text if piece.accepted else f"[{piece.text}]", end="", flush=True)
    spent += piece.spend
print(f"\n{spent:.1f} nats spent")
