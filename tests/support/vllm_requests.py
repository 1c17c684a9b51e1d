"""Mixed requests for a pair in vLLM, and what the Decoder says to each."""

import random
from dataclasses import dataclass, field
from typing import Any

from tiny_models import TEXT

import anchored


@dataclass(kw_only=True)
class Mixed:
    """One request, in words that both engines understand."""

    prompt: list[int]
    max_tokens: int
    seed: int
    budget: dict[str, float]
    divergence: str
    sampling: dict[str, float]
    stop: str = ""
    joins_at: int = 0
    tokens: list[int] = field(default_factory=list)
    """What vLLM answered."""

    def params(self) -> Any:
        from vllm import SamplingParams

        extra = {f"anchored_{name}": nats for name, nats in self.budget.items()}
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=self.stop or None,
            extra_args={
                **extra,
                "anchored_seed": self.seed,
                "anchored_divergence": self.divergence,
            },
            **self.sampling,
        )

    def decoded(self, pair: anchored.ModelPair, debt: str = "top") -> anchored.Generation:
        """By our own engine."""
        rule = anchored.Anchored(divergence=self.divergence, debt=debt, **self.budget)
        decoder = anchored.Decoder(pair, rule, level="token")
        (result,) = decoder.generate(
            [self.prompt],
            max_new_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop or (),
            **self.sampling,
        )
        return result


def mixed_requests(
    tokenizer: Any, count: int, *, longest: int = 60, tokens=(1, 5, 12, 30), min_p: float = 0.02
) -> list[Mixed]:
    """Requests of every kind, a third of them with a prefix in common; in order of joining.

    Prompts end with whole characters: where they do not, vLLM's text begins with the rest of one.
    """
    rng, words = random.Random(5), " ".join(TEXT).split()

    def prompt(most: int) -> list[int]:
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, most)))
        return tokenizer(text)["input_ids"][:most]

    shared = prompt(70)
    requests = []
    for number in range(count):
        own = prompt(longest)
        k = rng.choice([0.0, 0.05, 0.3, 1.0, 3.0, 6.0])
        length = rng.choice(tokens)
        truncation = rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": min_p}])
        requests.append(
            Mixed(
                prompt=(shared + own[1:]) if number % 3 == 0 else own,
                max_tokens=length,
                seed=rng.getrandbits(40),
                budget={"K": k * length} if number % 4 == 1 else {"k": k},
                divergence="max" if number % 5 == 2 else "kl",
                sampling={
                    "temperature": rng.choice([0.7, 1.0, 1.3]),
                    "repetition_penalty": rng.choice([1.0, 1.2]),
                    **truncation,
                },
                stop="e" if number % 6 == 4 else "",
                joins_at=rng.randrange(0, 60),
            )
        )
    return sorted(requests, key=lambda request: request.joins_at)


def run(llm: Any, requests: list[Mixed], *, aborts_at: tuple[int, ...] = ()) -> list[Mixed]:
    """Join, step and abort; returns the requests that ended by themselves, with their tokens."""
    engine, step, num_joined = llm.llm_engine, 0, 0
    live: dict[str, Mixed] = {}
    ended: list[Mixed] = []
    while num_joined < len(requests) or engine.has_unfinished_requests():
        while num_joined < len(requests) and (requests[num_joined].joins_at <= step or not live):
            request = requests[num_joined]
            name = f"r{num_joined}"
            engine.add_request(name, {"prompt_token_ids": request.prompt}, request.params())
            live[name], num_joined = request, num_joined + 1
        for output in engine.step():
            if output.finished and output.request_id in live:
                request = live.pop(output.request_id)
                request.tokens = list(output.outputs[0].token_ids)
                ended.append(request)
        step += 1
        if step in aborts_at:
            names = list(live)[:2]
            engine.abort_request(names, internal=False)
            for name in names:
                del live[name]
    return ended
