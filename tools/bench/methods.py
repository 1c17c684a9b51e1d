"""Every decoding method, as benchmarks run it, and its speed beside the risky model alone."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from anchored import (
    RCAD,
    Anchored,
    ColdStart,
    CPFuse,
    GlobalSwitch,
    MemFree,
    NoOpt,
    RiskyOnly,
    SafeOnly,
    System,
    TokenSwap,
)
from anchored.decode.rules.rule import Rule

from .timing import WALL, Clock, deviation, timed, times_baseline

RCAD_ALPHA = 0.5


def bench_rules(
    *, k: float, horizon: int, passages: Sequence[str], words: Sequence[str]
) -> dict[str, Rule]:
    """The rules by the names in `options.METHODS`.

    Those without a budget run without the safe model unless they read it, as their authors run
    them. k: nats a symbol. horizon: symbols of a text. passages: whose n-grams MemFree blocks.
    words: those that TokenSwap swaps.
    """
    return {
        "safe_only": SafeOnly(),
        "risky_only": RiskyOnly(compared=False),
        "system": System(compared=False),
        "memfree": MemFree(passages=list(passages), compared=False),
        "rcad": RCAD(alpha=RCAD_ALPHA, compared=False),
        "cp_fuse": CPFuse(),
        "token_swap": TokenSwap(words=list(words)),
        "anchored": Anchored(k=k, debt="none"),
        "anchored_debt": Anchored(k=k),
        "anchored_inf": Anchored(k=k, debt="none", divergence="max"),
        "no_opt": NoOpt(k=k, debt="none"),
        "cold_start": ColdStart(k=k),
        "global_switch": GlobalSwitch(K=k * horizon),
    }


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one method in several runs."""

    first_s: list[float] = field(default_factory=list)
    """Seconds to the first symbol of every request: the prompts and one step."""
    per_s: list[float] = field(default_factory=list)
    """Symbols a second after the first ones, all requests together."""

    @property
    def first_ms(self) -> float:
        """The median."""
        return 1e3 * statistics.median(self.first_s)

    @property
    def mean(self) -> float:
        """Mean symbols a second."""
        return statistics.mean(self.per_s)

    @property
    def error(self) -> float:
        """Sample standard deviation of that over the runs; nan of one run."""
        return deviation(self.per_s)

    def slowdown(self, baseline: "Speed") -> tuple[float, float]:
        """(how many times as fast the baseline is in the same run, the deviation of that)."""
        return times_baseline(baseline.per_s, self.per_s)


def speeds(
    generates: Mapping[str, Callable[[int], int]],
    length: int,
    *,
    runs: int,
    clock: Clock = WALL,
    device: str = "cpu",
) -> dict[str, Speed]:
    """Speeds of methods that take turns in every run, after a warm-up of each.

    generates: make that many symbols a prompt, and return how many these are altogether. Raises
    ValueError where all texts end with their first symbol.
    Source: paper, section on efficiency: (N_T - N_1) / (t_T - t_1).
    """
    for generate in generates.values():
        generate(length)
    found = {name: Speed() for name in generates}
    for _ in range(runs):
        for name, generate in generates.items():
            (one_s, one), (whole_s, whole) = (
                timed(partial(generate, number), clock, device=device) for number in (1, length)
            )
            if whole <= one:
                raise ValueError(f"{name} ends its texts at once: there is no speed to measure")
            found[name].first_s.append(one_s)
            found[name].per_s.append((whole - one) / (whole_s - one_s))
    return found
