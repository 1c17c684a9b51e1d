"""Tokens of a pair whose risky model is split: torchrun split_generation.py SAFE RISKY OUT"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed

from anchored import Anchored, Decoder, ModelPair, verify

PROMPTS = ["the keeper of the lamp", "import math", "salt", "Nine tides ago, the harbour bell"]


def tokens(safe: str, risky: str, tp_size: int) -> list[list[int]]:
    """Two at a time, so that rows join; plainly, then with drafts as long as each clock likes."""
    pair = ModelPair.from_pretrained(safe, risky, tp_size=tp_size)
    assert pair.num_processes == tp_size and pair.row_attention["risky"] is not None
    results = []
    for speculate in ("off", "auto"):
        decoder = Decoder(pair, Anchored(k=1.0), batch_size=2, speculate=speculate)
        results += decoder.generate(PROMPTS, max_new_tokens=20)
    assert all(verify(result.ledger, pair).is_ok for result in results)
    return [result.token_ids for result in results]


def main() -> None:
    torch.set_num_threads(1)
    safe, risky, out = sys.argv[1:]
    generated = tokens(safe, risky, tp_size=2)
    Path(out).with_suffix(f".{torch.distributed.get_rank()}").write_text(json.dumps(generated))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
