"""A ledger that stands, and two that do not."""

import json
from pathlib import Path

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart
LEDGER, CHANGED = Path("example.jsonl"), Path("changed.jsonl")

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
decoder = anchored.Decoder(pair, anchored.Anchored(k=2.0))
(result,) = decoder.generate("The keeper", max_new_tokens=30)
result.ledger.save(LEDGER)
print(anchored.verify(LEDGER, pair))  # runs both models over the tokens, draws each one again

# One figure changed: the hash over all lines no longer fits.
header, *steps = LEDGER.read_text().splitlines()
CHANGED.write_text("\n".join([json.dumps(json.loads(header) | {"seed": 99}), *steps]) + "\n")
try:
    anchored.Ledger.load(CHANGED)
except anchored.LedgerError as error:
    print(f"refused: {error}")

# Other models: the file is whole, the figures are not theirs.
swapped = anchored.ModelPair.from_pretrained(f"{MODELS}/risky", f"{MODELS}/safe")
print(anchored.verify(LEDGER, swapped))
