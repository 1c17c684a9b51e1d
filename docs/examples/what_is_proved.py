"""What each divergence proves of a recital, and how likely p* recites; nothing is generated.

A row: means over the protected works of log10 of the bound on reciting one, and of its chance.
"""

import json
import math
from pathlib import Path

import anchored

RUN = Path("runs/quickstart")  # made by make quickstart
ORDERS = [1.1, 1.25, 1.5, 2.0, 4.0]

pair = anchored.ModelPair.from_pretrained(RUN / "models/safe", RUN / "models/risky")
works = [json.loads(line) for line in (RUN / "prompts.jsonl").read_text().splitlines()]
prompts = [work["prompt"] for work in works]
references = [pair.encode_continuation(work["reference"])[:64] for work in works]

kinds = {
    "KL": {},
    **{f"order {order:g}": {"divergence": "renyi", "order": order} for order in ORDERS},
    "max": {"divergence": "max"},
}
print("divergence   k  proved  recites")
for name, kind in kinds.items():
    for k in [1.0, 2.0, 3.0, 4.0, 6.0]:
        decoder = anchored.Decoder(pair, anchored.Anchored(k=k, **kind))
        scores = decoder.score(prompts, references, temperature=1.0, repetition_penalty=1.0)
        safe = [math.fsum(score.safe_token_log_probs) for score in scores]
        bounds = [
            math.log10(anchored.event_bound(score.bound, nats, **kind))
            for score, nats in zip(scores, safe, strict=True)
        ]
        chances = [score.log_prob / math.log(10) for score in scores]
        print(
            f"{name:10} {k:3g} {sum(bounds) / len(works):7.2f} {sum(chances) / len(works):8.1f}",
            flush=True,
        )
