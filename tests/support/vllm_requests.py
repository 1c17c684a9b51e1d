"""Mixed requests for a pair in vLLM, which join, are aborted and leave at different steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchored import Anchored, Decoder, Generation, ModelPair, Pathwise
from anchored.decode.engine.request import Request
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.admission import parameters

KL = Anchored(k=1.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedRequest:
    """One request, for both engines."""

    prompt: list[int]
    max_tokens: int
    seed: int
    rule: Anchored | Pathwise
    sampling: dict[str, Any]
    stop: tuple[str, ...]

    def params(self, name: str) -> Any:
        """vLLM's SamplingParams, by which the journal names it so."""
        request = Request(
            prompt_token_ids=self.prompt,
            max_new_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop,
        )
        sampling, stop = SamplingConfig(**self.sampling), list(self.stop)
        return parameters(request, self.rule, sampling, name=name, stop=stop)

    def decoded(self, pair: ModelPair) -> Generation:
        """The Decoder's answer to it, alone."""
        settings = {"max_new_tokens": self.max_tokens, "seed": self.seed, "stop": self.stop}
        decoder = Decoder(pair, self.rule, level="token")
        (result,) = decoder.generate([self.prompt], **settings, **self.sampling)
        return result


def mixed_requests(
    tokenizer: Any,
    words: Sequence[str],
    count: int,
    *,
    stop: str,
    lengths: Sequence[int] = (1, 5, 12, 30),
    rule: Anchored | Pathwise = KL,
) -> list[MixedRequest]:
    """Requests of every kind, the same ones every time; a third of them have a prefix in common.

    words: of the prompts. stop: of every sixth request. lengths: to choose max_tokens from. rule:
    of the engine, whose numbers requests change.
    Prompts end with whole characters: where they do not, vLLM's text begins with the rest of one.
    """
    rng = random.Random(5)

    def prompt(most: int) -> list[int]:
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, most)))
        return tokenizer(text)["input_ids"][:most]

    shared = prompt(70)
    requests = []
    for number in range(count):
        unshared, length = prompt(60), rng.choice(lengths)
        k = rng.choice([0.0, 0.05, 0.3, 1.0, 3.0, 6.0])
        changes: dict[str, Any] = {"k": k}
        if rule.name == "pathwise":
            changes["bank"] = rng.choice([0.0, 0.5, 4.0, 20.0])
        elif number % 4 == 1:
            changes = {"k": None, "K": k * length}
        elif number % 5 == 2:
            changes["divergence"] = "max"
        truncations: list[dict[str, float]] = [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02}]
        requests.append(
            MixedRequest(
                prompt=(shared + unshared[1:]) if number % 3 == 0 else unshared,
                max_tokens=length,
                seed=rng.getrandbits(40),
                rule=replace(rule, **changes),
                sampling={
                    "temperature": rng.choice([0.7, 1.0, 1.3]),
                    "repetition_penalty": rng.choice([1.0, 1.2]),
                    **rng.choice(truncations),
                },
                stop=(stop,) if number % 6 == 4 else (),
            )
        )
    return requests


def run(
    llm: Any, requests: list[MixedRequest], *, last_join: int = 60, aborts_at: tuple[int, ...] = ()
) -> dict[int, list[int]]:
    """Join, step and abort; the tokens of the requests that ended by themselves, by index.

    last_join: the step of the engine by which all have joined.
    """
    rng, engine, step, waiting = random.Random(6), llm.llm_engine, 0, list(range(len(requests)))
    joins_at = sorted(rng.randrange(last_join) for _ in requests)
    live, ended = set(), {}
    while waiting or engine.has_unfinished_requests():
        while waiting and (joins_at[waiting[0]] <= step or not live):
            name = str(waiting[0])
            request = requests[waiting.pop(0)]
            prompt = {"prompt_token_ids": request.prompt}
            engine.add_request(name, prompt, request.params(name))
            live.add(name)
        for output in engine.step():
            if output.finished and output.request_id in live:
                live.remove(output.request_id)
                ended[int(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
        if step in aborts_at:
            names = sorted(live)[:2]
            engine.abort_request(names, internal=False)
            live -= set(names)
    return ended
