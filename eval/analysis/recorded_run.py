"""A run's folder as the analyses read it: generations, what they copied, and their ledgers."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ... import Ledger, PromptRatios
from ...decode.rules.event_bound import event_bound
from ...decode.rules.prefix_debt import prompt_digest
from ...decode.rules.registry import make_rule
from ..copying.ncr import NcrStatistics
from ..recorded_texts import PROMPTS_FILE, file_name, generation_files, grouped, json_objects
from ..report.tables import Cell
from ..statistics import SeedStatistics

MAX_LEDGERS: Final = 64
EVALUATION: Final = "evaluation"
"""Folder in a run's own of what measures and judges wrote about its texts."""
MEASURES: Final = ("copying", "nonliteral")
"""Of `evaluated`; the others are judges."""
SAFE_RULE, RISKY_RULE = "safe_only", "risky_only"
ALL_TEXTS: Final = "all texts"
"""The domain of prompts that name none."""


class NotMeasured(Exception):
    """Why a run does not hold what an analysis reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedGeneration:
    """One row of generations/SETTING.jsonl, under the setting's own name."""

    setting: str
    id: str
    """Of its prompt."""
    row: Mapping[str, Any]
    copying: Mapping[str, Any] | None = None
    """Its row of measurements/copying.json."""

    @property
    def seed(self) -> int:
        """Which of several of the same prompt."""
        return int(self.row.get("seed", 0))


@dataclass(frozen=True)
class RecordedRun:
    """What `anchored quickstart` or `anchored sweep` left in a folder; every part is read once.

    Raises ValueError, which names the file, for a folder without generations or a damaged file.
    """

    folder: Path
    max_ledgers: int = MAX_LEDGERS
    """Ledgers of each setting that are read, evenly among its generations; 0 reads all."""
    named: Mapping[str, Path] = field(default_factory=dict)
    """By measure or judge, as "win-rate", results that lie elsewhere than in the folder."""
    ncr_of: "RecordedRun | None" = None
    """Another run of the same settings, whose NCR stands for that of this one: of other prompts, as
    those of judged texts have no references."""
    _read: dict[str, list[tuple[RecordedGeneration, Ledger]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_ledgers < 0:
            raise ValueError(f"the number of ledgers must be at least 0, got {self.max_ledgers}")

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """results.json; {} where the run has not come to it."""
        path = self.folder / "results.json"
        return read_json(path, "anchored quickstart or sweep") if path.exists() else {}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of results a setting, its figures as cells of tables; [] before there are any."""
        rows = [
            {name: _cell(own) for name, own in row.items()} for row in self.results.get("rows", [])
        ]
        if self.ncr_of is None:
            return rows
        ncr = {row["setting"]: row["ncr"] for row in self.ncr_of.rows}
        return [{**row, "ncr": ncr.get(row["setting"])} for row in rows]

    @cached_property
    def prompts(self) -> dict[str, Mapping[str, Any]]:
        """prompts.jsonl by id; {} where there is none."""
        path = self.folder / PROMPTS_FILE
        rows = [row for _, row in json_objects(path)] if path.exists() else []
        return {str(row.get("id")): row for row in rows}

    def evaluated(self, name: str) -> Mapping[str, Any]:
        """What `anchored measure NAME` or `anchored judge NAME` wrote about the run's texts.

        Raises: NotMeasured without it, ValueError for a file that is something else.
        """
        path = self.named.get(name) or evaluation_file(self.folder, name)
        verb = "measure" if name in MEASURES else "judge"
        if not path.is_file():
            raise NotMeasured(
                f"no results of anchored {verb} {name} are here: there is no {path.name} in "
                f"{EVALUATION}/ (anchored evaluate)"
            )
        found = read_json(path, f"anchored {verb} {name}")
        if found.get(verb) != name or not isinstance(found.get("settings"), list):
            raise ValueError(f"{path} is not what anchored {verb} {name} writes")
        named = {self.own_name(own["setting"]): own for own in found["settings"]}
        in_order = dict.fromkeys([*(name for name in self.by_setting if name in named), *named])
        return {**found, "settings": [{**named[name], "setting": name} for name in in_order]}

    def own_name(self, setting: str) -> str:
        """Of a setting that is named like its file, as texts are that were read by themselves."""
        return self._names.get(setting, setting)

    @cached_property
    def _names(self) -> dict[str, str]:
        return {file_name(name): name for name in self.by_setting}

    @cached_property
    def by_setting(self) -> dict[str, list[RecordedGeneration]]:
        """Generations by setting, in the order of the results' rows, then of the files."""
        copying = {
            (str(row["setting"]), str(row["work"]), int(row["seed"])): row
            for row in self._measured("copying")
        }
        named = dict.fromkeys([row["setting"] for row in self.results.get("rows", [])])
        named |= dict.fromkeys(name for name, _, _ in copying)
        names = {file_name(name): name for name in named}
        found = {}
        for path in generation_files(self.folder):
            setting = names.get(path.stem, path.stem)
            found[setting] = [
                _generation(setting, row, number, copying) for number, row in json_objects(path)
            ]
        known = [name for name in names.values() if name in found]
        return {name: found[name] for name in dict.fromkeys([*known, *found])}

    def _measured(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "measurements" / f"{name}.json"
        return [row for _, row in json_objects(path)] if path.exists() else []

    def domain(self, generation: RecordedGeneration) -> str:
        """What kind of text its prompt is from."""
        return str(self.prompts.get(generation.id, {}).get("domain") or ALL_TEXTS)

    def ledgers(self, setting: str) -> list[tuple[RecordedGeneration, Ledger]]:
        """Generations with the ledgers that are there, `max_ledgers` of them at most."""
        if setting not in self._read:
            files = [(own, self.ledger_file(own)) for own in self.by_setting[setting]]
            there = [(own, path) for own, path in files if path is not None]
            count = min(self.max_ledgers or len(there), len(there))
            chosen = [there[place * len(there) // count] for place in range(count)]
            self._read[setting] = [(own, Ledger.load(path)) for own, path in chosen]
        return self._read[setting]

    def ledger(self, generation: RecordedGeneration) -> Ledger | None:
        """Its ledger, if it is there."""
        path = self.ledger_file(generation)
        return None if path is None else Ledger.load(path)

    def copy_probability(self, generation: RecordedGeneration, ledger: Ledger) -> float | None:
        """The largest probability that its bound left to texts that begin with the reference.

        None without a bound, and where the run did not measure what the safe model gives to it.
        """
        safe_log_prob = self._safe_log_probs.get(generation.id)
        if safe_log_prob is None or not ledger.certified:
            return None
        rule = make_rule(ledger.header.rule, ledger.header.rule_settings)
        divergence = rule.divergence or "kl"
        return event_bound(ledger.header.bound, safe_log_prob, divergence=divergence)

    @cached_property
    def _safe_log_probs(self) -> dict[str, float]:
        return {str(row["work"]): float(row["safe_log_prob"]) for row in self._measured("verbatim")}

    def ledger_file(self, generation: RecordedGeneration) -> Path | None:
        """Where its ledger lies, if it is there, within the folder."""
        path = self.folder / str(generation.row.get("ledger") or "")
        is_inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if is_inside and path.is_file() else None

    def rule(self, setting: str) -> str:
        """The rule that its ledgers name; "" without ledgers."""
        return next((ledger.header.rule for _, ledger in self.ledgers(setting)), "")

    @cached_property
    def risky(self) -> str | None:
        """The setting that is the risky model alone."""
        return next((name for name in self.by_setting if self.rule(name) == RISKY_RULE), None)

    @cached_property
    def budgeted(self) -> list[str]:
        """The settings with a bound, the safe model alone apart."""
        return [
            name
            for name in self.by_setting
            if self.rule(name) != SAFE_RULE
            and all(ledger.certified for _, ledger in self.ledgers(name))
            and self.ledgers(name)
        ]

    @cached_property
    def ks(self) -> dict[str, float]:
        """k in nats a step, of the settings with a bound that have one."""
        found = {name: self.ledgers(name)[0][1].header.k for name in self.budgeted}
        return {name: k for name, k in found.items() if math.isfinite(k)}

    @cached_property
    def k_sweep(self) -> list[str]:
        """The largest group of settings of one rule that differ in k alone, k ascending."""

        def rest(name: str) -> str:
            header = self.ledgers(name)[0][1].header
            others = {key: each for key, each in header.rule_settings.items() if key != "k"}
            return json.dumps([header.rule, others], sort_keys=True)

        groups = grouped(sorted(self.ks, key=self.ks.__getitem__), rest)
        return max(groups.values(), key=len, default=[])

    @cached_property
    def replayed(self) -> list[Ledger]:
        """Ledgers with divergences: divergences.jsonl, divergences/*.jsonl and any of the run's."""
        files = [self.folder / "divergences.jsonl", *(self.folder / "divergences").glob("*.jsonl")]
        longer = [Ledger.load(path) for path in sorted(files) if path.is_file()]
        own = (ledger for name in self.by_setting for _, ledger in self.ledgers(name))
        return longer + [ledger for ledger in own if ledger.header.prompt_ratios is not None]

    @cached_property
    def debts(self) -> dict[str, float]:
        """By prompt, nats that it owes by the rule of the paper (mean of the largest ratios)."""
        found: dict[str, float] = {}
        for name in self.budgeted:
            header = self.ledgers(name)[0][1].header
            if header.rule_settings.get("debt") == "top":
                for own in self.by_setting[name]:
                    found.setdefault(own.id, float(own.row.get("debt") or 0.0))
        return found

    @cached_property
    def prompt_ratios(self) -> dict[str, list[float]]:
        """By prompt, log p_r - log p_s of its symbols, where the run or a longer ledger has it."""
        path = self.folder / "prompt_ratios.safetensors"
        by_digest: dict[str, list[float]] = {}
        if path.exists():
            recorded = PromptRatios.load(path).by_prompt
            by_digest = {digest: ratios.tolist() for digest, ratios in recorded.items()}
        for ledger in self.replayed:
            if ledger.header.prompt_ratios is not None:
                digest = prompt_digest(ledger.header.prompt_token_ids)
                by_digest.setdefault(digest, ledger.header.prompt_ratios)
        found = {}
        for own, ledger in (each for name in self.by_setting for each in self.ledgers(name)):
            if ratios := by_digest.get(prompt_digest(ledger.header.prompt_token_ids)):
                found[own.id] = ratios
        return found

    def by_domain(self, values: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
        """Values by prompt, as those of each domain together."""
        domains = {own.id: self.domain(own) for rows in self.by_setting.values() for own in rows}
        groups = grouped(values, lambda prompt: domains[prompt])
        return {
            domain: [value for prompt in prompts for value in values[prompt]]
            for domain, prompts in groups.items()
        }


def _cell(own: Any) -> Cell:
    """A figure of results.json, in which nan is null."""
    if not isinstance(own, Mapping):
        return own if isinstance(own, str | int | float) else None
    found = SeedStatistics.recorded(own)
    if found is not None and "num_metrics" in own:
        return NcrStatistics(*found, own["num_metrics"])
    return found


def _generation(
    setting: str,
    row: Mapping[str, Any],
    number: int,
    copying: Mapping[tuple[str, str, int], Mapping[str, Any]],
) -> RecordedGeneration:
    prompt = str(row.get("work", row.get("id", number)))
    key = (setting, prompt, int(row.get("seed", 0)))
    return RecordedGeneration(setting=setting, id=prompt, row=row, copying=copying.get(key))


def evaluation_file(folder: Path, name: str) -> Path:
    """Where a run's folder has the results of a measure or judge of this name."""
    return folder / EVALUATION / f"{name}.json"


def read_json(path: Path, kind: str) -> Mapping[str, Any]:
    """An object of a file; ValueError that says what the file is not."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not what {kind} writes")
    return found
