"""How likely one text is under the safe model, the risky one and p*, teacher forced."""

import math

import anchored

MODELS = "runs/quickstart/models"  # made by make quickstart
PROMPT = "Parameters\n----------\n"
CONTINUATION = "a : array_like\n    Input array.\naxis : int, optional\n    Axis to sum along.\n"

pair = anchored.ModelPair.from_pretrained(f"{MODELS}/safe", f"{MODELS}/risky")
rules = {
    "safe": anchored.SafeOnly(),
    "k=1": anchored.Anchored(k=1.0),
    "risky": anchored.RiskyOnly(),
}
for name, rule in rules.items():
    (score,) = anchored.Decoder(pair, rule).score(PROMPT, CONTINUATION)
    num_bytes = len(CONTINUATION.encode())
    bits_per_byte = -score.log_prob / num_bytes / math.log(2)
    print(f"{name:6} log p {score.log_prob:8.2f} nats, {bits_per_byte:.2f} bits per byte")
