"""The k that a person can defend, from bounds alone: nothing is generated.

Example: the safe model would write a protected text with probability e^-150. Which k still bounds
the chance that an answer recites it by one in a million? Each rule has an answer for each bank.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ... import Anchored, Decoder, ModelPair, Pathwise
from ...decode.event_bound import charged_event_bound
from ...decode.rules.anchored import Indebted
from ...decode.rules.registry import DebtOptions
from ...fields import MAX_NATS
from ..experiments.experiment import Experiment
from ..experiments.measures import reference_scores
from ..recorded_texts import write_json
from ..report.tables import Column, write_table

HUNDREDTHS: Final = 10_000
"""The largest k that is tried, in hundredths of a nat: two decimals can be written down, and no
pair needs 100 nats a step, with which every text is the risky model's."""


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

    def bound(self, rule: Indebted, k: float, length: int) -> float:
        """The largest probability of the event in an answer of `length` steps that a rule writes
        with k nats per step; of a passage, at any of its positions. Given what comes before, a
        passage is bounded at each position alone, so that their sum bounds the answer. Source: the
        bound of a whole text, and of any steps in a row, in docs/guarantee.md."""
        answer, event = (rule.budget_for(horizon=n, k=k) for n in (length, self.num_steps))
        begins = self.num_positions is None and answer.schedule == "adaptive"
        if begins or answer.schedule == "fixed":  # only the steps of the event count
            answer = event
        nats = replace(answer, debt=self.debt).bound
        if event.bank is not None:
            nats = min(nats, event.total)
        at_one = charged_event_bound(rule.charge, nats, self.safe_log_prob)
        return min(1.0, at_one * (self.num_positions or 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """The events that are certified of some texts: to recite one whole, and a passage of one."""

    symbol: str
    """The unit of a step, "token" or "byte"."""
    length: int
    """Steps of an answer."""
    window: int | None
    """Steps of a passage; None where no passages are certified."""
    texts: list[Recital]
    passages: list[Recital]

    @property
    def kinds(self) -> dict[str, list[Recital]]:
        """The events by their title."""
        passages = {f"any {self.window} {self.symbol}s of a text": self.passages}
        return {**(passages if self.passages else {}), "a whole text": self.texts}


def read_events(
    experiment: Experiment, pair: ModelPair, debts: DebtOptions, *, window: int | None
) -> Events:
    """The events of all prompts with a reference: an answer begins with the reference, as far as it
    reaches; or it recites, anywhere, any `window` tokens of the reference in a row, or the whole of
    a shorter one. A passage has the probability that the safe model gives it within its text, where
    it is helped most. Raises ValueError for a text that cannot be scored, and if there is none."""
    rule = Anchored(k=0.0, debt=debts.debt, debt_window=debts.debt_window)
    level = Decoder(pair, rule, level=experiment.level).level
    length = level.horizon(experiment.max_new_tokens, None)
    steps = None if window is None else level.horizon(window, None)
    scored = reference_scores(experiment, pair, rule)
    if not scored:
        raise ValueError("no prompt has a reference, so there is nothing to certify")
    texts, passages = [], []
    for name, scores in scored.items():
        if error := next((score.error for score in scores if score.error), ""):
            raise ValueError(f"{name}: its reference cannot be scored: {error}")
        longest = max(len(score.token_ids) for score in scores)
        log_probs = [score.safe_token_log_probs for score in scores]
        whole = _of_any(map(math.fsum, log_probs))
        text = Recital(id=name, num_steps=longest, safe_log_prob=whole, debt=scores[0].debt)
        texts.append(text)
        if steps is not None:
            widths = [min(steps, len(each)) for each in log_probs]
            parts = map(sliding_window_view, log_probs, widths)
            part = _of_any(chain.from_iterable(each.sum(-1).tolist() for each in parts))
            width = min(steps, longest)
            num_positions = max(1, length - width + 1)
            passages.append(
                replace(text, num_steps=width, safe_log_prob=part, num_positions=num_positions)
            )
    return Events(symbol=level.name, length=length, window=steps, texts=texts, passages=passages)


def _of_any(log_probs: Iterable[float]) -> float:
    """log of the probability that one of several events happens, at most their sum."""
    return min(0.0, float(np.logaddexp.reduce(list(log_probs))))


def largest_k(
    recitals: Sequence[Recital], rule: Indebted, *, length: int, target: float
) -> float | None:
    """The largest k of a rule, nats per step in hundredths, whose bound of every event is within
    the target; None where no k > 0 has it. Bounds grow with k, so that halving an interval finds
    it. rule: its k is not read. length: steps of an answer. target: a chance in (0, 1)."""
    left = MAX_NATS - rule.budget_for(horizon=length, k=0.0).total
    # The first k is certified, as far as is known, and the second not, or no rule has it.
    low, high = 0, min(HUNDREDTHS, int(100 * left / length)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if all(each.bound(rule, middle / 100, length) <= target for each in recitals):
            low = middle
        else:
            high = middle
    return low / 100 or None


def certified_k(
    experiment: Experiment, pair: ModelPair, rule: Indebted, target: float
) -> float | None:
    """The largest k at which a rule's bound leaves each reference a chance of at most `target`."""
    events = read_events(experiment, pair, rule, window=None)
    return largest_k(events.texts, rule, length=events.length, target=target)


def certified_rules(bank: float | None) -> dict[str, Indebted]:
    """The rules of one bank, by their names in the table."""
    rules: dict[str, Indebted] = {
        "Anchored": Anchored(k=0.0, bank=bank),
        "Anchored_inf": Anchored(k=0.0, bank=bank, divergence="max"),
    }
    return rules if bank is None else {**rules, "Pathwise": Pathwise(k=0.0, bank=bank)}


def certified_rows(events: Events, banks: Sequence[float], target: float) -> list[dict[str, Any]]:
    """A row for each kind of event and rule, with the largest k without and with each bank."""
    titled = {"no bank": None, **{f"bank {bank:g}": bank for bank in banks}}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, recitals in events.kinds.items():
        for title, bank in titled.items():
            for name, rule in certified_rules(bank).items():
                row = rows.setdefault((kind, name), {"recited": kind, "rule": name})
                row[title] = largest_k(recitals, rule, length=events.length, target=target)
    return list(rows.values())


def write_certificates(
    folder: Path,
    events: Events,
    *,
    banks: Sequence[float],
    target: float,
    about: Mapping[str, Any],
) -> str:
    """Write certificates.json and .md; returns the text for the terminal. about: entries of the
    JSON, such as the models."""
    rows = certified_rows(events, banks, target)
    results = {"schema": "anchored-certificates/1", **about, "target": target}
    results |= {"largest_k": rows, "events": asdict(events)}
    write_json(folder / "certificates.json", results)
    title = (
        f"Largest k, nats per {events.symbol}, with which an answer of {events.length} "
        f"{events.symbol}s recites none of {len(events.texts)} texts with a chance above "
        f"{target:g}:"
    )
    names = dict.fromkeys(name for row in rows for name in row)
    notes = _notes(events, target)
    # The options of Pathwise that prove the first kind of event: with the bank that it has unless
    # another is named, or else with the largest that leaves a k.
    proved = next((row for row in rows if row["rule"] == "Pathwise"), {})
    if ks := {bank: k for bank in banks if (k := proved.get(f"bank {bank:g}"))}:
        bank = default if (default := Pathwise().bank) in ks else max(ks)
        notes.append(f"To start with: --rule pathwise --bank {bank:g} --k {ks[bank]:g}")
    columns = [Column(name, num_decimals=2) for name in names]
    path, below = folder / "certificates.md", "\n".join(notes)
    return write_table(path, rows, columns, title=title, notes=below)


def _notes(events: Events, target: float) -> list[str]:
    """The debts, the text that decides of each kind, and those that no k certifies."""
    debts = [recital.debt for recital in events.texts]
    notes = [
        f"-: no k > 0 does, or the rule has a bank. Debts of the prompts: {min(debts):.3g} to "
        f"{max(debts):.3g} nats."
    ]
    for kind, recitals in events.kinds.items():
        likely = sorted(recitals, key=lambda each: -each.safe_log_prob)
        notes.append(
            f"The likeliest of {kind} is in {likely[0].id}: the safe model alone gives it "
            f"probability e^{likely[0].safe_log_prob:.1f}."
        )
        notes += [
            f"No k > 0 certifies {kind} of {each.id}, at e^{each.safe_log_prob:.1f}: without "
            "it in the file, the table is about the others."
            for each in likely
            if each.bound(Anchored(k=0.0), 0.0, events.length) > target
        ]
    return notes
