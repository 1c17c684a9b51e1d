"""Mixed requests for a pair in vLLM, which join, are aborted and leave at different steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiny_models import TEXT

from anchored import Anchored, Decoder, Generation, ModelPair, Pathwise

KL = Anchored(k=1.5)

LAST_JOIN = 60
"""The step of the engine by which all have joined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedRequest:
    """One request, in words that both engines understand."""

    prompt: list[int]
    max_tokens: int
    seed: int
    asked: dict[str, Any]
    """Nats as "k", a step, or as "K", of the whole text; "bank" and "divergence"."""
    rule: Anchored | Pathwise
    """The engine's rule with what is asked of it."""
    sampling: dict[str, Any]
    stop: str
    """Ends the text; "" for none."""

    def params(self) -> Any:
        """vLLM's SamplingParams."""
        from vllm import SamplingParams

        extra = {f"anchored_{name}": value for name, value in self.asked.items()}
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=self.stop or None,
            extra_args={**extra, "anchored_seed": self.seed},
            **self.sampling,
        )

    def decoded(self, pair: ModelPair) -> Generation:
        """The Decoder's answer to it, alone."""
        (result,) = Decoder(pair, self.rule, level="token").generate(
            [self.prompt],
            max_new_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop or (),
            **self.sampling,
        )
        return result


def mixed_requests(
    tokenizer: Any,
    words: Sequence[str],
    count: int,
    *,
    stop: str,
    lengths: Sequence[int] = (1, 5, 12, 30),
    min_p: float = 0.02,
    rule: Anchored | Pathwise = KL,
) -> list[MixedRequest]:
    """Requests of every kind, the same ones every time; a third of them have a prefix in common.

    words: of the prompts. stop: of every sixth request. lengths: to choose max_tokens from. rule:
    of the engine.
    Prompts end with whole characters: where they do not, vLLM's text begins with the rest of one.
    """
    rng = random.Random(5)

    def prompt(most: int) -> list[int]:
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, most)))
        return tokenizer(text)["input_ids"][:most]

    shared = prompt(70)
    requests = []
    for number in range(count):
        unshared = prompt(60)
        k = rng.choice([0.0, 0.05, 0.3, 1.0, 3.0, 6.0])
        length = rng.choice(lengths)
        truncation: dict[str, float] = rng.choice(
            [{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": min_p}]
        )
        asked: dict[str, Any] = {"K": k * length} if number % 4 == 1 else {"k": k}
        changes = {"k": None, **asked}
        if rule.name == "pathwise" and "K" in asked:
            changes = {"k": 0.0, "bank": asked["K"]}
        elif rule.name == "pathwise":
            asked["bank"] = changes["bank"] = rng.choice([0.0, 0.5, 4.0, 20.0])
        elif number % 5 == 2:
            asked["divergence"] = changes["divergence"] = "max"
        requests.append(
            MixedRequest(
                prompt=(shared + unshared[1:]) if number % 3 == 0 else unshared,
                max_tokens=length,
                seed=rng.getrandbits(40),
                asked=asked,
                rule=replace(rule, **changes),
                sampling={
                    "temperature": rng.choice([0.7, 1.0, 1.3]),
                    "repetition_penalty": rng.choice([1.0, 1.2]),
                    **truncation,
                },
                stop=stop if number % 6 == 4 else "",
            )
        )
    return requests


Ended = list[tuple[MixedRequest, list[int]]]
"""Requests, each with the tokens that vLLM answered."""


def requests_of(tokenizer: Any, count: int, rule: Anchored = KL) -> list[MixedRequest]:
    """About the words of `TEXT`."""
    return mixed_requests(tokenizer, " ".join(TEXT).split(), count, stop="e", rule=rule)


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
