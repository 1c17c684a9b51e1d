"""Mixed requests that join, are aborted and leave a pair in vLLM at different steps."""

import random
from typing import Any

from tiny_models import TEXT

from anchored.tools.gpu_check.vllm_requests import MixedRequest, mixed_requests

LAST_JOIN = 60
"""The step of the engine by which all have joined."""

Ended = list[tuple[MixedRequest, list[int]]]
"""Requests, each with the tokens that vLLM answered."""


def requests_of(tokenizer: Any, count: int, **changes: Any) -> list[MixedRequest]:
    """About the words of `TEXT`."""
    return mixed_requests(tokenizer, " ".join(TEXT).split(), count, stop="e", **changes)


def run(llm: Any, requests: list[MixedRequest], *, aborts_at: tuple[int, ...] = ()) -> Ended:
    """Join, step and abort; returns the requests that ended by themselves, with their tokens."""
    rng, engine, step, num_joined = random.Random(6), llm.llm_engine, 0, 0
    joins_at = sorted(rng.randrange(LAST_JOIN) for _ in requests)
    live: dict[str, MixedRequest] = {}
    ended: Ended = []
    while num_joined < len(requests) or engine.has_unfinished_requests():
        while num_joined < len(requests) and (joins_at[num_joined] <= step or not live):
            request = requests[num_joined]
            name = f"r{num_joined}"
            engine.add_request(name, {"prompt_token_ids": request.prompt}, request.params())
            live[name], num_joined = request, num_joined + 1
        for output in engine.step():
            if output.finished and output.request_id in live:
                request = live.pop(output.request_id)
                ended.append((request, list(output.outputs[0].token_ids)))
        step += 1
        if step in aborts_at:
            names = list(live)[:2]
            engine.abort_request(names, internal=False)
            for name in names:
                del live[name]
    return ended
