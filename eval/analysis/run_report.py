"""The report on a run's folder: what it recorded, analysed and shown on one page."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...durable_files import write_durably
from ..copying.ncr import high_protection
from ..report import tables
from ..report.page import MEDIA_TYPES, Report, Section
from ..report.side_by_side import Generation, SideBySideRecord, TokenSpend
from ..report.tables import Column
from . import copied_spans, evaluated, ledgers
from .recorded_run import PAGE, NotMeasured, RecordedGeneration, RecordedRun, evenly

BITS: Final = "bits_per_byte/"
PICTURES: Final = {
    "trade_off": "Protection and utility of every budget",
    "methods": "Protection and utility of every method",
    "ablations": "What each part of the method is worth",
    "debt_window": "Windows of the prefix debt",
    "divergences": "One text, step by step",
}
"""What a run draws by itself, by file name, and is shown where it is there."""
FIGURES: Final = {
    "fluency": "fluency",
    "factuality": "factuality",
    "win-rate": "win rate",
    "answers": "answers",
}
"""Titles of what judges say of a setting."""
NOT_TIMED: Final = "a run is not timed: anchored bench decode times every method"
ANALYSES: Final[dict[str, Callable[[RecordedRun], Section]]] = {
    "copying_distribution": evaluated.copying_distribution,
    "character_overlap": evaluated.character_overlap,
    **{name.replace("-", "_"): partial(evaluated.judgement, name) for name in evaluated.JUDGES},
    "precision_by_group": evaluated.precision_by_group,
    "step_divergences": ledgers.step_divergences,
    "prefix_ratios": ledgers.prefix_ratios,
    "debt_deciles": copied_spans.debt_deciles,
    "start_positions": copied_spans.start_positions,
    "trajectories": ledgers.budget_trajectories,
}


@dataclass(frozen=True, slots=True)
class Analyses:
    """What could be analysed, and why the rest could not, by name."""

    sections: dict[str, Section] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


def analyses(run: RecordedRun) -> Analyses:
    """All of them on one run. Raises: ValueError for damaged records."""
    result = Analyses()
    for name, analyse in ANALYSES.items():
        try:
            result.sections[name] = analyse(run)
        except NotMeasured as reason:
            result.not_measured[name] = str(reason)
    return result


def write_report(run: RecordedRun, analysed: Analyses, folder: Path, *, num_texts: int) -> None:
    """report.html, .md and .json in `folder`."""
    report = run_report(run, analysed, num_texts=num_texts)
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / PAGE, report.html())
    write_durably(folder / "report.md", report.markdown())
    write_durably(folder / "report.json", report.json())


def run_report(run: RecordedRun, analysed: Analyses, *, num_texts: int) -> Report:
    """Everything that the run's folder holds, and what it lacks.

    num_texts: prompts whose texts are shown, evenly among all, one text a setting.
    Raises: ValueError for fewer than none, or damaged records.
    """
    if num_texts < 0:
        raise ValueError(f"the number of texts must be at least 0, got {num_texts}")
    prompts = list(dict.fromkeys(text.id for rows in run.by_setting.values() for text in rows))
    shown = evenly(prompts, num_texts)
    return Report(
        title=f"Report on {run.folder.resolve().name}",
        about=_about(run, len(prompts)),
        sections=[
            *_result_sections(run),
            *_pictures(run.folder),
            *analysed.sections.values(),
        ],
        records=[_record(run, prompt) for prompt in shown],
        texts_note=f"{len(shown)} of {len(prompts)} prompts, evenly among them; of each setting "
        "the text of its first seed.",
        not_measured={**_missing(run), **analysed.not_measured, "speed": NOT_TIMED},
    )


def _about(run: RecordedRun, num_prompts: int) -> dict[str, str]:
    environment = run.results.get("environment") or {}
    num_texts = sum(len(rows) for rows in run.by_setting.values())
    known = {
        "Settings": len(run.by_setting),
        "Prompts": num_prompts,
        "Texts": num_texts,
        "Ledgers read": f"at most {run.max_ledgers or 'all'} a setting",
        "Schema": run.results.get("schema"),
        "Metrics": run.results.get("metric_set"),
        "Commit": environment.get("git_commit"),
        "Python": environment.get("python"),
        "Packages": ", ".join(f"{k} {v}" for k, v in (environment.get("packages") or {}).items()),
        "Recommended": run.results.get("recommended"),
    }
    for number, finding in enumerate(run.results.get("findings") or [], 1):
        is_record = isinstance(finding, Mapping)
        entries = [f"{name}: {value}" for name, value in finding.items()] if is_record else []
        known[f"Finding {number}"] = ", ".join(entries) or finding
    return {name: str(value) for name, value in known.items() if value}


def _missing(run: RecordedRun) -> dict[str, str]:
    missing = {}
    if not run.results.get("rows"):
        missing["results"] = "there is no results.json: the run has not come to its end"
    if not any(text.copying for rows in run.by_setting.values() for text in rows):
        missing["copying"] = "there is no measurements/copying.json"
    if not run.prompts:
        missing["prompts"] = "there is no prompts.jsonl: neither prompts nor references are shown"
    without = [name for name in run.by_setting if not run.ledgers(name)]
    if without:
        missing["ledgers"] = f"no ledgers are here of {', '.join(without)}"
    return missing


def _result_sections(run: RecordedRun) -> Iterator[Section]:
    judged = evaluated.judged_figures(run)
    rows = [
        {**row, **{judge: figures.get(row["setting"]) for judge, figures in judged.items()}}
        for row in run.rows
    ]
    if not rows:
        return
    bits = [key.removeprefix(BITS) for key in rows[0] if key.startswith(BITS)]
    asked = [key.removeprefix("accuracy/") for key in rows[0] if key.startswith("accuracy/")]
    columns = [
        tables.SETTING_COLUMN,
        *tables.COPYING_COLUMNS,
        *([tables.RECITED_COLUMN] if any(row.get("recited") is not None for row in rows) else []),
        *map(tables.bits_per_byte_column, bits),
        *map(tables.accuracy_column, asked),
        *(Column(key=judge, title=FIGURES[judge], num_decimals=2) for judge in judged),
        *tables.LAST_COLUMNS,
        *([tables.FAILED_COLUMN] if any(row.get("failed") for row in rows) else []),
    ]
    note = "Copying of the references, held-out bits per byte, nats spent and their bound."
    if run.ncr_of is not None:
        note += f" NCR is that of {run.ncr_of.folder.resolve().name}."
    yield Section(title="Results", note=note, columns=columns, rows=rows)
    best = run.results.get("high_protection") or {}
    chosen = [row for row in rows if row["setting"] in best.values()]
    if chosen:
        note = "Of each method, the setting with the best utility at NCR >= 0.75."
        yield Section(title="High protection", note=note, columns=columns, rows=chosen)
    yield from _protected_by_judges(rows, columns, judged)


def _protected_by_judges(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], judged: Collection[str]
) -> Iterator[Section]:
    """As the paper's table: the best factuality, with the other figures of that setting."""
    if "factuality" not in judged or not all("method" in row for row in rows):
        return
    best = high_protection(
        {
            "method": row["method"],
            "ncr": row["ncr"].mean if row["ncr"] else None,
            "factuality": row["factuality"].mean if row["factuality"] else None,
            "row": row,
        }
        for row in rows
    )
    chosen = [row["row"] for row in best.values() if row is not None]
    note = "Of each method, the setting with the best factuality at NCR >= 0.75."
    if chosen:
        yield Section(
            title="High protection, by factuality", note=note, columns=columns, rows=chosen
        )


def _pictures(folder: Path) -> Iterator[Section]:
    for name, title in PICTURES.items():
        files = [folder / f"{name}{suffix}" for suffix in MEDIA_TYPES]
        if there := [path for path in files if path.is_file()]:
            yield Section(title=title, picture=there[0])


def _record(run: RecordedRun, prompt: str) -> SideBySideRecord:
    about = run.prompts.get(prompt, {})
    firsts = [
        next((text for text in rows if text.id == prompt), None) for rows in run.by_setting.values()
    ]
    return SideBySideRecord(
        title=str(about.get("title") or prompt),
        prompt=str(about.get("prompt") or "(not recorded)"),
        reference=str(about.get("reference") or "(not recorded)"),
        columns=[_column(run, text) for text in firsts if text is not None],
    )


def _column(run: RecordedRun, generation: RecordedGeneration) -> Generation:
    row, ledger = generation.row, run.ledger(generation)
    pieces = row.get("pieces") or [(str(row.get("text") or ""), True)]
    tokens = [
        TokenSpend(step.spend, step.budget, step.weight, step.log_prob, step.safe_log_prob)
        for step in ([] if ledger is None else ledger.steps)
    ]
    spans = (generation.copying or {}).get("copied_characters") or ()
    has_bound = row.get("bound") is not None
    return Generation(
        label=generation.setting,
        pieces=[(str(piece), bool(kept)) for piece, kept in pieces],
        copied_spans=[(start, end) for start, end in spans],
        spent=row.get("spent") if has_bound else None,
        bound=row.get("bound"),
        copy_probability=None if ledger is None else run.copy_probability(generation, ledger),
        finish_reason=str(row.get("finish_reason") or ""),
        tokens=tokens if len(tokens) == len(pieces) else (),
    )
