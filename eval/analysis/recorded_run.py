"""A run's folder as the analyses read it: generations, what they copied, and their ledgers."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from ... import Ledger, PromptRatios
from ...decode.rules.budget import prompt_digest
from ...decode.rules.event_bound import event_bound
from ...decode.rules.registry import make_rule
from ...inputs import json_objects
from ..copying.ncr import NcrStatistics
from ..recorded_texts import (
    EVALUATION,
    SAFE,
    Record,
    RecordedText,
    by_setting,
    generation_files,
    grouped,
    read_json,
    setting_names,
    texts_in,
)
from ..report.tables import Cell
from ..statistics import SeedStatistics

Item = TypeVar("Item")
MAX_LEDGERS: Final = 64
"""Ledgers of each setting: 1,600 of a run of 25 settings, which take half a second a hundred."""
ALL_TEXTS: Final = "all texts"
"""The domain of prompts that name none."""


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """As many of the items, at the same distance from each other; all where there are no more."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


class NotMeasured(Exception):
    """Why a run does not hold what an analysis reads."""


@dataclass(frozen=True)
class RecordedRun:
    """What `anchored quickstart` or `anchored sweep` left in a folder; every part is read once.

    Raises ValueError, which names the file, for a folder without generations or a damaged file.
    """

    folder: Path
    max_ledgers: int = MAX_LEDGERS
    """Ledgers of each setting that are read, evenly among its generations; 0 reads all."""
    evaluation: Path | None = None
    """Folder of what measures and judges recorded; that of the run unless given."""
    ncr_of: "RecordedRun | None" = None
    """Another run of the same settings, whose NCR stands for that of this one: of other prompts, as
    those of judged texts have no references."""
    _read: dict[str, list[tuple[RecordedText, Ledger]]] = field(default_factory=dict)

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """results.json; {} where the run has not come to it."""
        path = self.folder / "results.json"
        return read_json(path, "anchored quickstart or sweep") if path.exists() else {}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of results a setting, its figures as cells of tables; [] before there are any."""
        rows = [
            {name: recorded_cell(figure) for name, figure in row.items()}
            for row in self.results.get("rows", [])
        ]
        if self.ncr_of is None:
            return rows
        ncr = {row["setting"]: row["ncr"] for row in self.ncr_of.rows}
        return [{**row, "ncr": ncr.get(row["setting"])} for row in rows]

    def evaluated(self, name: str) -> Mapping[str, Any]:
        """What `anchored evaluate RUN --only NAME` recorded, settings in the run's order.

        Raises: NotMeasured without it, ValueError for a file that is something else.
        """
        path = (self.evaluation or self.folder / EVALUATION) / f"{name}.json"
        if not path.is_file():
            raise NotMeasured(
                f"there is no {path.name} in {path.parent.name}/: anchored evaluate --only {name}"
            )
        writer = f"anchored evaluate --only {name}"
        results = read_json(path, writer)
        kinds, settings = (results.get("measure"), results.get("judge")), results.get("settings")
        if name not in kinds or not isinstance(settings, list):
            raise ValueError(f"{path} is not what {writer} writes")
        figures = {own["setting"]: own for own in settings}
        # Settings that the run does not have stand last.
        order = dict.fromkeys([*self.by_setting, *figures])
        return {**results, "settings": [figures[own] for own in order if own in figures]}

    @cached_property
    def by_setting(self) -> dict[str, list[RecordedText]]:
        """Texts by setting, in the order of the results' rows, then of the files; [] of a setting
        whose generations all failed."""
        texts, names = by_setting(texts_in(self.folder)[0]), setting_names(self.folder)
        files = [names.get(path.stem, path.stem) for path in generation_files(self.folder)]
        known = [name for name in names.values() if name in files]
        return {name: texts.get(name, []) for name in dict.fromkeys([*known, *files])}

    def copying(self, text: RecordedText) -> Record | None:
        """Its row of measurements/copying.json."""
        return self._copying.get((text.setting, text.id, text.seed))

    @cached_property
    def _copying(self) -> dict[tuple[str, str, int], Record]:
        rows = self._measured("copying")
        return {(row["setting"], str(row["id"]), row["seed"]): row for row in rows}

    def _measured(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "measurements" / f"{name}.json"
        return [row for _, row in json_objects(path)] if path.exists() else []

    def domain(self, text: RecordedText) -> str:
        """What kind of text its prompt is from."""
        return str(text.row.get("domain") or ALL_TEXTS)

    def ledgers(self, setting: str) -> list[tuple[RecordedText, Ledger]]:
        """Texts with the ledgers that are there, `max_ledgers` of them at most."""
        if setting not in self._read:
            there = list(filter(self._ledger_file, self.by_setting.get(setting, [])))
            chosen = evenly(there, self.max_ledgers or len(there))
            read = [(text, self.ledger(text)) for text in chosen]
            self._read[setting] = [(text, ledger) for text, ledger in read if ledger is not None]
        return self._read[setting]

    def ledger(self, text: RecordedText) -> Ledger | None:
        """Its ledger, if it is there."""
        path = self._ledger_file(text)
        return None if path is None else Ledger.load(path, text.row.get("ledger_part"))

    def copy_probability(self, text: RecordedText, ledger: Ledger) -> float | None:
        """The largest probability that its bound left to texts that begin with the reference.

        None without a bound, and where the run did not measure what the safe model gives to it.
        """
        safe_log_prob = self._safe_log_probs.get(text.id)
        if safe_log_prob is None or not ledger.certified:
            return None
        rule = make_rule(ledger.header.rule, ledger.header.rule_settings)
        divergence = rule.divergence or "kl"
        return event_bound(ledger.header.bound, safe_log_prob, divergence=divergence)

    @cached_property
    def _safe_log_probs(self) -> dict[str, float]:
        return {str(row["id"]): float(row["safe_log_prob"]) for row in self._measured("verbatim")}

    def _ledger_file(self, text: RecordedText) -> Path | None:
        """Where its ledger lies, if it is there, within the folder."""
        path = self.folder / str(text.row.get("ledger") or "")
        is_inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if is_inside and path.is_file() else None

    @cached_property
    def budgeted(self) -> list[str]:
        """The settings with a bound, the safe model alone apart."""
        return [
            name
            for name in self.by_setting
            if name != SAFE
            and all(ledger.certified for _, ledger in self.ledgers(name))
            and self.ledgers(name)
        ]

    @cached_property
    def debts(self) -> dict[int, dict[str, float]]:
        """By window and prompt, nats owed: the mean of as many of the largest ratios (paper)."""
        debts: dict[int, dict[str, float]] = {}
        for name in self.budgeted:
            rule_settings = self.ledgers(name)[0][1].header.rule_settings
            if rule_settings.get("debt") == "top":
                of_window = debts.setdefault(int(rule_settings["debt_window"]), {})
                for text in self.by_setting[name]:
                    of_window.setdefault(text.id, text.debt or 0.0)
        return debts

    @cached_property
    def prompt_ratios(self) -> dict[str, list[float]]:
        """By prompt, log p_r - log p_s of its symbols; {} where no rule of the run has a debt."""
        path = self.folder / "prompt_ratios.safetensors"
        recorded = PromptRatios.load(path).by_prompt if path.exists() else {}
        read = itertools.chain.from_iterable(map(self.ledgers, self.by_setting))
        digests = {text.id: prompt_digest(ledger.header.prompt_token_ids) for text, ledger in read}
        ratios = {name: recorded[own].tolist() for name, own in digests.items() if own in recorded}
        return {name: own for name, own in ratios.items() if own}

    def by_domain(self, values: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
        """Values by prompt, as those of each domain together."""
        texts = itertools.chain.from_iterable(self.by_setting.values())
        domains = {text.id: self.domain(text) for text in texts}
        groups = grouped(values, lambda prompt: domains[prompt])
        return {
            domain: [value for prompt in prompts for value in values[prompt]]
            for domain, prompts in groups.items()
        }


def recorded_cell(figure: Any) -> Cell:
    """A figure of results.json, in which nan is null."""
    if not isinstance(figure, Mapping):
        return figure if isinstance(figure, str | int | float) else None
    mean, std = (math.nan if figure[name] is None else figure[name] for name in ("mean", "std"))
    statistics = SeedStatistics(mean, std, figure.get("num_seeds", 1))
    if "num_metrics" not in figure:
        return statistics
    scope = figure["num_metrics"], figure.get("num_texts"), figure.get("num_all_texts")
    return NcrStatistics(*statistics, *scope)
