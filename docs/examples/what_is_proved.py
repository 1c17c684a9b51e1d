"""What each rule proves of a recital, and how likely p* recites; nothing is generated.

A row: log10 of the bound on reciting the worst of the protected works, and of the chance of the
likeliest; then their means over the works.
"""

import json
import math
from pathlib import Path
from statistics import fmean

import anchored
from anchored import Anchored, Pathwise

RUN = Path("runs/quickstart")  # made by make quickstart
pair = anchored.ModelPair.from_pretrained(RUN / "models/safe", RUN / "models/risky")
works = [json.loads(line) for line in (RUN / "prompts.jsonl").read_text().splitlines()]
prompts = [work["prompt"] for work in works]
references = [pair.encode_continuation(work["reference"])[:64] for work in works]
rules = {
    "KL": lambda k: Anchored(k=k),
    "KL, bank 20": lambda k: Anchored(k=k, bank=20.0),
    "Anchored_inf": lambda k: Anchored(k=k, divergence="max"),
    "Pathwise, bank 20": lambda k: Pathwise(k=k, bank=20.0),
}
print("                               worst work        mean")
print("rule                     k  proved  recites  proved  recites")
for name, rule in rules.items():
    for k in [0.5, 1.0, 2.0, 3.0]:
        decoder = anchored.Decoder(pair, rule(k))
        scores = decoder.score(prompts, references, temperature=0.7, repetition_penalty=1.1)
        proved, recites = [], []
        for score in scores:
            safe = math.fsum(score.safe_token_log_probs)
            bound = anchored.event_bound(score.bound, safe, divergence=decoder.rule.divergence)
            proved.append(math.log10(bound))
            recites.append(score.log_prob / math.log(10))
        figures = max(proved), max(recites), fmean(proved), fmean(recites)
        print(f"{name:22} {k:3g} " + " ".join(f"{figure:7.1f}" for figure in figures), flush=True)
