"""Speculative against plain decoding: speeds, forwards, acceptance, changed tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from anchored import Anchored, Decoder, Generation, ModelPair, text_tables
from anchored.decode.pair_options import check_presence
from anchored.decode.rules.rule import NextToken, StepInputs
from anchored.decode.settings import Speculate

from .baselines import Generate, transformers_alone
from .inputs import BenchInputs
from .options import BenchSpeculateConfig
from .timing import CLOCKS, deviation, in_turns, timed, times_baseline

PLAIN, RISKY_ALONE = "off", "transformers, risky alone"
WIDTH, NAME_WIDTH = 10, 26
TITLES = (
    *("k", "risky fwd", "fwd/tok", "kept", "1 - TV", "+-", "bound", "ms/token", "error"),
    *("x plain", "error", "x risky", "error", "flips"),
)


@torch.inference_mode()
def run(config: BenchSpeculateConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    inputs = BenchInputs.of(config, config.prompt_tokens + config.new_tokens)
    print(
        f"{config} ({torch.get_num_threads()} threads), torch {torch.__version__}, batch "
        f"{config.batch_size}, {config.num_prompts} x {config.new_tokens} tokens behind "
        f"{config.prompt_tokens}, {config.runs} runs"
    )
    text_tables.print_lines(_rows(inputs, config), WIDTH, name_width=NAME_WIDTH)
    return 0


class Acceptance(NamedTuple):
    """How many of the safe model's draws were kept, over the steps that could spend something."""

    num_steps: int
    observed: float
    """Share of tokens that are the safe model's draw."""
    expected: float
    """Mean of 1 - TV(p*, p_s)."""
    error: float
    """Standard error of the observed share about the expected one."""


@dataclass(frozen=True, slots=True)
class _Watched(Anchored):
    """Anchored, which keeps 1 - TV of every step that has a budget."""

    kept: list[Tensor] = field(default_factory=list)

    def next_token(self, inputs: StepInputs) -> NextToken:
        drawn = Anchored.next_token(self, inputs)
        star = drawn.log_probs().double().exp()
        safe = inputs.warped("safe").double().softmax(-1)
        chances = star.minimum(safe).sum(-1)[inputs.budget > 0.0]
        self.kept.append(chances.cpu())
        return drawn


def measured_acceptance(
    pair: ModelPair, rule: Anchored, prompts: list[list[int]], num_tokens: int
) -> Acceptance:
    """Acceptance of plain decoding from these prompts, `num_tokens` each, at temperature 0.7."""
    watched = _Watched(**{f.name: getattr(rule, f.name) for f in fields(Anchored)})
    results = Decoder(pair, watched, level="token").generate(prompts, max_new_tokens=num_tokens)
    steps = [s for result in results for s in result.ledger.steps if s.budget > 0.0]
    chances = [chance for kept in watched.kept for chance in kept.tolist()]
    variance = sum(chance * (1.0 - chance) for chance in chances)
    count = max(len(steps), 1)
    return Acceptance(
        num_steps=len(steps),
        observed=sum(step.accepted for step in steps) / count,
        expected=math.fsum(chances) / count,
        error=math.sqrt(variance) / count,
    )


def flips_per_1000(plain: list[list[int]], drafted: list[list[int]]) -> float:
    """Tokens that differ from plain decoding's, for each 1,000 drawn after the same text.

    Behind its first difference a request has another text, so it counts up to there.
    """
    num_flips = num_alike = 0
    for one, other in zip(plain, drafted, strict=True):
        alike = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        num_alike += len(alike)
        num_flips += one != other
    return 1000.0 * num_flips / (num_alike + num_flips)


def _rows(inputs: BenchInputs, config: BenchSpeculateConfig) -> Iterator[tuple[str, ...]]:
    """The titles; for each budget the risky model alone, plain decoding and every draft length."""
    yield ("", *TITLES)
    prompts = inputs.prompts(config.num_prompts, config.prompt_tokens)
    for k in config.ks:
        rule = Anchored(k=k)
        kept = measured_acceptance(inputs.pair, rule, prompts, config.new_tokens)
        bound = max(0.0, 1.0 - math.sqrt(k / 2))  # Pinsker's inequality
        shares = (kept.observed, kept.expected, kept.error, bound)
        results: dict[str, list[Generation]] = {}
        works = {RISKY_ALONE: _alone(inputs, prompts, config)} | {
            draft: _drafting(inputs.pair, rule, draft, prompts, config, results)
            for draft in (PLAIN, *config.drafts)
        }
        token_s = in_turns(
            {name: partial(_seconds_a_token, work, config) for name, work in works.items()},
            config.runs,
        )
        for name, seconds in token_s.items():
            figures = [
                f"{1e3 * sum(seconds) / len(seconds):.2f}",
                f"{1e3 * deviation(seconds):.2f}",
            ]
            for baseline in (PLAIN, RISKY_ALONE):
                ratio = times_baseline(token_s[baseline], seconds)
                figures += [f"{number:.2f}" for number in ratio]
            if name == RISKY_ALONE:
                yield (name, f"{k:g}", *["-"] * 6, *figures, "-")
                continue
            yield (
                name,
                f"{k:g}",
                *_forward_cells(results[name]),
                *(f"{share:.3f}" for share in shares),
                *figures,
                f"{flips_per_1000(_tokens(results[PLAIN]), _tokens(results[name])):.1f}",
            )


def _alone(inputs: BenchInputs, prompts: list[list[int]], config: BenchSpeculateConfig) -> Generate:
    """The risky model in transformers, batch after batch."""
    size = config.batch_size
    batches = [
        transformers_alone(inputs.pair.risky, prompts[start : start + size])
        for start in range(0, len(prompts), size)
    ]
    return lambda num_tokens: sum(generate(num_tokens) for generate in batches)


def _drafting(
    pair: ModelPair,
    rule: Anchored,
    draft: str,
    prompts: list[list[int]],
    config: BenchSpeculateConfig,
    results: dict[str, list[Generation]],
) -> Generate:
    """The pair with drafts of one length; `results` takes the latest generations."""
    speculate: Speculate = int(draft) if draft.isdecimal() else draft  # type: ignore[assignment]
    decoder = Decoder(pair, rule, level="token", batch_size=config.batch_size, speculate=speculate)

    def generate(num_tokens: int) -> int:
        seeds = list(range(len(prompts)))
        results[draft] = decoder.generate(prompts, max_new_tokens=num_tokens, seed=seeds)
        return sum(map(len, _tokens(results[draft])))

    return generate


def _seconds_a_token(generate: Generate, config: BenchSpeculateConfig) -> float:
    work = partial(generate, config.new_tokens)
    seconds, num_tokens = timed(work, CLOCKS[config.clock], device=config.device)
    return seconds / num_tokens


def _forward_cells(results: list[Generation]) -> tuple[str, str]:
    """Risky forwards, those of prompts left out, altogether and a token."""
    forwards = sum(result.ledger.risky_forwards - 1 for result in results)
    return str(forwards), f"{forwards / sum(map(len, _tokens(results))):.2f}"


def _tokens(results: list[Generation]) -> list[list[int]]:
    return [result.token_ids for result in results]
