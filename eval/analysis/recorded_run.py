"""A run's folder as the analyses read it: generations, what they copied, and their ledgers."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from ... import Ledger, PromptRatios
from ...decode.rules.budget import prompt_digest
from ...inputs import json_objects
from ..recorded_texts import (
    EVALUATION,
    SAFE,
    Record,
    RecordedText,
    by_setting,
    file_settings,
    read_json,
    texts_in,
)

Item = TypeVar("Item")
MAX_LEDGERS: Final = 64
"""Ledgers of each setting: 1,600 of a run of 25 settings, which take half a second a hundred."""
ALL_TEXTS: Final = "all texts"
"""The domain of prompts that name none."""


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Up to `count` of the items, evenly spaced."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


class NotMeasured(Exception):
    """The reason for which a run lacks the input of an analysis."""


@dataclass(frozen=True)
class RecordedRun:
    """The folder of `anchored quickstart` or `anchored sweep`; every part is read once. Raises
    ValueError, which names the file, for a folder without generations or a damaged file."""

    folder: Path
    max_ledgers: int = MAX_LEDGERS
    """Ledgers of each setting that are read, evenly among its generations; 0 reads all."""
    evaluation: Path | None = None
    """Folder of measures' and judges' results that come before those of the run."""
    ncr_of: "RecordedRun | None" = None
    """Another run of the same settings, whose NCR replaces that of this one: of other prompts, as
    those of judged texts have no references."""
    _read: dict[str, list[tuple[RecordedText, Ledger]]] = field(default_factory=dict)

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """results.json; {} before it is written."""
        path = self.folder / "results.json"
        return read_json(path, "anchored quickstart or sweep") if path.exists() else {}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of results of each setting; [] before there are any."""
        rows = list(self.results.get("rows", []))
        if self.ncr_of is None:
            return rows
        ncr = {row["setting"]: row["ncr"] for row in self.ncr_of.rows}
        return [{**row, "ncr": ncr.get(row["setting"])} for row in rows]

    def evaluated(self, name: str) -> Mapping[str, Any]:
        """Results of `anchored evaluate RUN --only NAME`, settings in the run's order. Raises:
        NotMeasured without it, ValueError for a file that is something else."""
        folders = [self.evaluation or self.folder / EVALUATION, self.folder / EVALUATION]
        paths = [folder / f"{name}.json" for folder in folders]
        if (path := next(filter(Path.is_file, paths), None)) is None:
            raise NotMeasured(
                f"there is no {name}.json in {EVALUATION}/: anchored evaluate --only {name}"
            )
        writer = f"anchored evaluate --only {name}"
        results = read_json(path, writer)
        kinds, settings = (results.get("measure"), results.get("judge")), results.get("settings")
        if name not in kinds or not isinstance(settings, list):
            raise ValueError(f"{path} is not what {writer} writes")
        figures = {each["setting"]: each for each in settings}
        # Settings that the run does not have come last.
        order = dict.fromkeys([*self.by_setting, *figures])
        return {**results, "settings": [figures[name] for name in order if name in figures]}

    @cached_property
    def by_setting(self) -> dict[str, list[RecordedText]]:
        """Texts by setting, in the order of the results' rows, then of the files; [] for a setting
        whose generations all failed."""
        texts = by_setting(texts_in(self.folder)[0])
        return {name: texts.get(name, []) for name in file_settings([self.folder]).values()}

    def copying(self, text: RecordedText) -> Record | None:
        """The text's row of evaluation/copying.json."""
        return self._copying.get((text.setting, text.id, text.seed))

    @cached_property
    def _copying(self) -> dict[tuple[str, str, int], Record]:
        try:
            rows = self.evaluated("copying").get("rows", [])
        except NotMeasured:
            return {}
        return {(row["setting"], str(row["id"]), row["seed"]): row for row in rows}

    def domain(self, text: RecordedText) -> str:
        """The kind of text of the prompt."""
        return str(text.row.get("domain") or ALL_TEXTS)

    def ledgers(self, setting: str) -> list[tuple[RecordedText, Ledger]]:
        """Texts with their ledgers, of those that have one, at most `max_ledgers`."""
        if setting not in self._read:
            texts = list(filter(self._ledger_file, self.by_setting.get(setting, [])))
            chosen = evenly(texts, self.max_ledgers or len(texts))
            read = [(text, self.ledger(text)) for text in chosen]
            self._read[setting] = [(text, ledger) for text, ledger in read if ledger is not None]
        return self._read[setting]

    def ledger(self, text: RecordedText) -> Ledger | None:
        """The text's ledger; None without one."""
        path = self._ledger_file(text)
        return None if path is None else Ledger.load(path, text.row.get("ledger_part"))

    def copy_probability(self, text: RecordedText, ledger: Ledger) -> float | None:
        """The largest probability that a text's bound left to beginning with the reference. None
        without a bound, or without the reference's log-probability under the safe model."""
        safe_log_prob = self._safe_log_probs.get(text.id)
        if safe_log_prob is None or not ledger.certified:
            return None
        return ledger.event_bound(safe_log_prob)

    @cached_property
    def _safe_log_probs(self) -> dict[str, float]:
        path = self.folder / "measurements" / "verbatim.json"
        rows = json_objects(path) if path.exists() else ()
        return {str(row["id"]): float(row["safe_log_prob"]) for _, row in rows}

    def _ledger_file(self, text: RecordedText) -> Path | None:
        """The file of the text's ledger, if it exists within the folder."""
        path = self.folder / str(text.row.get("ledger") or "")
        is_inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if is_inside and path.is_file() else None

    @cached_property
    def budgeted(self) -> list[str]:
        """The settings with a bound, without the safe model alone."""
        ledgers = {name: self.ledgers(name) for name in self.by_setting if name != SAFE}
        are_certified = {n: [one.certified for _, one in read] for n, read in ledgers.items()}
        return [name for name, flags in are_certified.items() if flags and all(flags)]

    @cached_property
    def debts(self) -> dict[int, dict[str, float]]:
        """Debts in nats by window and prompt: the mean of so many largest ratios (paper)."""
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
        """log p_r - log p_s of the symbols of each prompt; {} if no rule of the run has a debt."""
        path = self.folder / "prompt_ratios.safetensors"
        recorded = PromptRatios.load(path).by_prompt if path.exists() else {}
        read = itertools.chain.from_iterable(map(self.ledgers, self.by_setting))
        digests = {text.id: prompt_digest(ledger.header.prompt_token_ids) for text, ledger in read}
        ratios = {name: recorded[key].tolist() for name, key in digests.items() if key in recorded}
        return {name: values for name, values in ratios.items() if values}

    def by_domain(self, values: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
        """Values by prompt, as those of each domain together."""
        texts = itertools.chain.from_iterable(self.by_setting.values())
        domains, joined = {text.id: self.domain(text) for text in texts}, dict[str, list[float]]()
        for prompt, of_prompt in values.items():
            joined.setdefault(domains[prompt], []).extend(of_prompt)
        return joined
