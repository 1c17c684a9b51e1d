"""The k that a person can defend, from bounds alone: nothing is generated.

Example: the safe model would write a protected text with probability e^-150. Which k still bounds
the chance that an answer recites it by one in a million? Every divergence has another answer.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ... import Anchored, Decoder, ModelPair
from ...decode.event_bound import event_bound
from ...decode.score import Score
from ...decode.settings import BudgetOptions, SpendingOptions
from ...durable_files import write_durably
from ...environment import environment_record
from ..experiments.experiment import Experiment
from ..experiments.measures import reference_scores
from ..experiments.summary import log10_of
from ..figures.distributions import Series, plot_series
from ..figures.style import drawn
from ..report import tables
from ..report.tables import Column
from ..statistics import json_value

HUNDREDTHS: Final = 10_000
"""The largest k that is tried, in hundredths of a nat: two decimals can be written down, and no
pair needs 100 nats a step, with which every text is the risky model's."""
NUM_POINTS: Final = 25
"""Values of k in the picture, with which its lines look smooth."""


class Measure(NamedTuple):
    """A divergence that a budget may bound, of its order."""

    divergence: Literal["kl", "renyi", "max"]
    order: float | None = None

    @property
    def label(self) -> str:
        """KL, order 1.5, max."""
        names = {"kl": "KL", "max": "max", "renyi": f"order {self.order or 0:g}"}
        return names[self.divergence]


def measures(orders: Sequence[float]) -> list[Measure]:
    """KL, the Rényi divergences of these orders, ascending, and the max-divergence."""
    return [Measure("kl"), *(Measure("renyi", order) for order in sorted(orders)), Measure("max")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recital:
    """An event to be certified: an answer recites a protected text, or a passage of one."""

    id: str
    num_steps: int
    """Tokens, or bytes, of the text or of the passage."""
    safe_log_prob: float
    """log p_s of the event, nats."""
    debt: float
    """Nats that the prompt of the text costs."""
    num_positions: int | None = None
    """Steps of an answer at which a passage may begin; None for a text, which begins the answer."""

    def nats(self, k: float, options: SpendingOptions, length: int) -> float:
        """Nats that an answer of `length` steps can spend on the steps of the event, at most.

        Source: the bound of a whole text, and of any steps in a row, in docs/guarantee.md.
        """
        if options.budget == "fixed":
            return k * self.num_steps
        is_first = self.num_positions is None and options.budget == "adaptive"
        accrued = k * (self.num_steps if is_first else length)
        carried = math.inf if options.bank is None else options.bank + k * self.num_steps
        return max(0.0, min(accrued - self.debt, carried))

    def bound(self, k: float, measure: Measure, options: SpendingOptions, length: int) -> float:
        """The largest probability of the event under p*; of a passage, at any of its positions.

        Given what comes before, a passage is bounded at each position alone, so that their sum
        bounds the answer.
        """
        nats = self.nats(k, options, length)
        at_one = event_bound(nats, self.safe_log_prob, **measure._asdict())
        return min(1.0, at_one * (self.num_positions or 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """The events that are certified of some texts: to recite one whole, and a passage of one."""

    length: int
    """Steps of an answer."""
    window: int | None
    """Steps of a passage; None where no passages are certified."""
    texts: list[Recital]
    passages: list[Recital]


def read_events(
    experiment: Experiment, pair: ModelPair, options: SpendingOptions, *, window: int | None
) -> Events:
    """The events of all prompts with a reference: an answer begins with the reference, as far as it
    reaches; or it recites, anywhere, any `window` tokens of the reference in a row.

    Both models score each prompt, for its debt, and the reference after it. A passage has the
    probability that the safe model gives it within its text, where it is helped most. Raises
    ValueError for a text that cannot be scored, and if there is none.
    """
    rule = Anchored(k=0.0, **options.spending_options())
    level = Decoder(pair, rule, level=experiment.level).level
    length = level.horizon(experiment.max_new_tokens, None)
    steps = None if window is None else level.horizon(window, None)
    scored = reference_scores(experiment, pair, rule)
    if not scored:
        raise ValueError("no prompt has a reference, so there is nothing to certify")
    for name, scores in scored.items():
        if error := next((score.error for score in scores if score.error), ""):
            raise ValueError(f"{name}: its reference cannot be scored: {error}")
    return Events(
        length=length,
        window=steps,
        texts=[_whole(name, scores) for name, scores in scored.items()],
        passages=[_passage(name, scores, steps, length) for name, scores in scored.items()]
        if steps
        else [],
    )


def _whole(name: str, scores: Sequence[Score]) -> Recital:
    """The whole reference, in any of its spellings."""
    log_probs = [math.fsum(score.safe_token_log_probs) for score in scores]
    return Recital(
        id=name,
        num_steps=max(len(score.token_ids) for score in scores),
        safe_log_prob=_of_any(log_probs),
        debt=scores[0].debt,
    )


def _passage(name: str, scores: Sequence[Score], window: int, length: int) -> Recital:
    """Any part of this many steps, or the whole of a shorter reference."""
    log_probs = []
    for score in scores:
        width = min(window, len(score.token_ids))
        log_probs += sliding_window_view(score.safe_token_log_probs, width).sum(-1).tolist()
    width = min(window, max(len(score.token_ids) for score in scores))
    return Recital(
        id=name,
        num_steps=width,
        safe_log_prob=_of_any(log_probs),
        debt=scores[0].debt,
        num_positions=max(1, length - width + 1),
    )


def _of_any(log_probs: Sequence[float]) -> float:
    """log of the probability that one of several events happens, at most their sum."""
    return min(0.0, float(np.logaddexp.reduce(log_probs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """The largest k of one divergence whose bounds are within the target; 0 where none is."""

    measure: str
    all: float
    """For every text."""
    quantile: float
    """For that share of the texts."""
    mean: float
    """For the mean of the bounds."""


def certified(
    recitals: Sequence[Recital],
    measure: Measure,
    options: SpendingOptions,
    *,
    length: int,
    target: float,
    quantile: float = 0.95,
) -> Certified:
    """The largest k, in hundredths of a nat, rounded down. Bounds grow with k, so that halving an
    interval of k finds it. target: a chance in (0, 1)."""

    @cache  # the three searches begin alike
    def bounds(hundredths: int) -> list[float]:
        return [each.bound(hundredths / 100, measure, options, length) for each in recitals]

    def share(hundredths: int) -> float:
        return sum(bound <= target for bound in bounds(hundredths)) / len(recitals)

    return Certified(
        measure=measure.label,
        all=_largest(lambda k: max(bounds(k)) <= target),
        quantile=_largest(lambda k: share(k) >= quantile),
        mean=_largest(lambda k: math.fsum(bounds(k)) / len(recitals) <= target),
    )


def certified_k(
    experiment: Experiment, pair: ModelPair, rule: BudgetOptions, target: float
) -> float:
    """The largest k at which a rule's bound leaves each reference a chance of at most `target`."""
    events = read_events(experiment, pair, rule, window=None)
    measure = Measure(rule.divergence, rule.order)
    return certified(events.texts, measure, rule, length=events.length, target=target).all


def _largest(is_met: Callable[[int], bool]) -> float:
    """Nats, of the most hundredths that meet a condition with all smaller ones; 0 without any."""
    low, high = 0, HUNDREDTHS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low / 100


def uncertified(
    recitals: Sequence[Recital], options: SpendingOptions, *, length: int, target: float
) -> list[str]:
    """Ids of texts that no k > 0 certifies, by no divergence: the safe model itself is likely to
    write them."""
    least = 1 / 100
    return [
        each.id for each in recitals if each.bound(least, Measure("max"), options, length) > target
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificates:
    """The answer of `anchored certify`: events, the options of their budgets, and a target."""

    events: Events
    options: SpendingOptions
    orders: Sequence[float]
    target: float
    quantile: float
    symbol: str
    """The unit of a step, "token" or "byte"."""

    @property
    def kinds(self) -> dict[str, list[Recital]]:
        """The events by their title."""
        texts = {"a whole text": self.events.texts}
        if not self.events.passages:
            return texts
        return {**texts, f"any {self.events.window} {self.symbol}s of a text": self.events.passages}

    def table(self, recitals: Sequence[Recital]) -> list[Certified]:
        """A row for each divergence."""
        return [
            certified(
                recitals,
                measure,
                self.options,
                length=self.events.length,
                target=self.target,
                quantile=self.quantile,
            )
            for measure in measures(self.orders)
        ]

    def write(self, folder: Path, about: Mapping[str, Any]) -> str:
        """Write certificates.json, .md, .png and .svg; returns the text for the terminal.

        about: entries of the JSON, such as the models.
        """
        tables_of = {kind: self.table(recitals) for kind, recitals in self.kinds.items()}
        results = {
            "schema": "anchored-certificates/1",
            **about,
            "environment": environment_record(),
            "spending": asdict(self.options),
            "target": self.target,
            "quantile": self.quantile,
            "largest_k": {kind: [asdict(row) for row in rows] for kind, rows in tables_of.items()},
            "events": asdict(self.events),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(
            folder / "certificates.json", json.dumps(json_value(results), indent=1) + "\n"
        )
        shown = {
            is_markdown: "\n\n".join(
                self._shown(kind, rows, is_markdown=is_markdown) for kind, rows in tables_of.items()
            )
            for is_markdown in (False, True)
        }
        notes = "".join(f"\n\n{note}" for note in self._notes())
        write_durably(folder / "certificates.md", f"{shown[True]}{notes}\n")
        drawn(folder, {"certificates": partial(self._draw, tables_of)})
        return shown[False] + notes

    def _shown(self, kind: str, rows: Sequence[Certified], *, is_markdown: bool) -> str:
        columns = [
            Column("measure", "divergence"),
            Column("all", "all texts", num_decimals=2),
            Column("quantile", f"{100 * self.quantile:g} % of texts", num_decimals=2),
            Column("mean", "mean of bounds", num_decimals=2),
        ]
        title = (
            f"Largest k, nats per {self.symbol}, at which an answer of {self.events.length} "
            f"{self.symbol}s recites {kind} with a chance of at most {self.target:g}:"
        )
        table = tables.markdown_table if is_markdown else tables.terminal_table
        return f"{title}\n\n{table([asdict(row) for row in rows], columns)}"

    def _notes(self) -> list[str]:
        """A line where no budget is left for a text, and one for each text that no k certifies."""
        notes = []
        debts = [recital.debt for recital in self.events.texts]
        if self.options.budget != "fixed" and min(debts) > 0.0:
            notes.append(
                f"Debts of the prompts: {min(debts):.3g} to {max(debts):.3g} nats. Where k times "
                f"the {self.symbol}s is no more than its debt, a text is the safe model's."
            )
        for kind, recitals in self.kinds.items():
            rest = uncertified(
                recitals, self.options, length=self.events.length, target=self.target
            )
            log_probs = {each.id: each.safe_log_prob for each in recitals}
            notes += [
                f"No k > 0 certifies {kind}, of {name}: the safe model alone gives it "
                f"probability e^{log_probs[name]:.1f}."
                for name in rest
            ]
        return notes

    def _draw(self, tables_of: Mapping[str, Sequence[Certified]], path: Path) -> None:
        """The likeliest event's bound against k, a panel for each kind, a line a divergence."""
        panels = {}
        for kind, recitals in self.kinds.items():
            largest = max(1.0, *(row.mean for row in tables_of[kind]))
            ks = [largest * step / NUM_POINTS for step in range(NUM_POINTS + 1)]
            panels[kind] = {
                measure.label: Series(ks, [self._exponent(recitals, measure, k) for k in ks])
                for measure in measures(self.orders)
            }
        plot_series(
            panels,
            path,
            title="What is proved: the largest bound of all texts",
            x_label=f"k, nats per {self.symbol}",
            y_label="log10 of the bound",
        )

    def _exponent(self, recitals: Sequence[Recital], measure: Measure, k: float) -> float:
        """log10 of the largest bound; that of the least float64 where all are below it."""
        bounds = (each.bound(k, measure, self.options, self.events.length) for each in recitals)
        return log10_of(max(bounds))
