"""The report on a run's folder: what it recorded, analysed and shown on one page."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ... import Ledger
from ..copying.ncr import high_protection
from ..report import tables
from ..report.page import MEDIA_TYPES, Picture, Report, Section
from ..report.side_by_side import Generation, SideBySideRecord, TokenSpend
from ..report.tables import Column
from .analysis import Analysis
from .evaluated import judged_figures
from .recorded_run import RecordedGeneration, RecordedRun
from .registry import Analyses

BITS: Final = "bits_per_byte/"
PICTURES: Final = {
    "trade_off": "Protection and utility of every budget",
    "methods": "Protection and utility of every method",
    "ablations": "What each part of the method is worth",
    "debt_window": "Windows of the prefix debt",
    "losses": "Training losses",
    "divergences": "One text, step by step",
}
"""What a run draws by itself, by file name, and is shown where it is there."""
FIGURES: Final = {"fluency": "fluency", "factuality": "factuality", "win-rate": "win rate"}
"""Titles of what judges say of a setting."""
NOT_TIMED: Final = "a run is not timed: anchored bench decode times every method"


def run_report(run: RecordedRun, analysed: Analyses, *, num_texts: int) -> Report:
    """Everything that the folder holds, and what it lacks.

    num_texts: prompts whose texts are shown, evenly among all, one text a setting.
    Raises: ValueError for fewer than none, or damaged records.
    """
    if num_texts < 0:
        raise ValueError(f"the number of texts must be at least 0, got {num_texts}")
    prompts = list(dict.fromkeys(own.id for rows in run.by_setting.values() for own in rows))
    count = min(num_texts, len(prompts))
    shown = [prompts[place * len(prompts) // count] for place in range(count)]
    analyses = [_analysis_section(own) for own in analysed.found.values()]
    return Report(
        title=f"Report on {run.folder.resolve().name}",
        about=_about(run, len(prompts)),
        sections=[*_result_sections(run), *_pictures(run.folder), *analyses],
        records=[_record(run, prompt) for prompt in shown],
        texts_note=f"{count} of {len(prompts)} prompts, evenly among them; of each setting the "
        "text of its first seed.",
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
    findings = run.results.get("findings") or []
    return {name: str(value) for name, value in known.items() if value} | {
        f"Finding {number}": _finding(own) for number, own in enumerate(findings, 1)
    }


def _finding(own: Any) -> str:
    if not isinstance(own, Mapping):
        return str(own)
    return ", ".join(f"{name}: {value}" for name, value in own.items())


def _missing(run: RecordedRun) -> dict[str, str]:
    missing = {}
    if not run.results.get("rows"):
        missing["results"] = "there is no results.json: the run has not come to its end"
    if not any(own.copying for rows in run.by_setting.values() for own in rows):
        missing["copying"] = "there is no measurements/copying.json"
    if not run.prompts:
        missing["prompts"] = "there is no prompts.jsonl: neither prompts nor references are shown"
    without = [name for name in run.by_setting if not run.ledgers(name)]
    if without:
        missing["ledgers"] = f"no ledgers are here of {', '.join(without)}"
    return missing


def _result_sections(run: RecordedRun) -> Iterator[Section]:
    judged = judged_figures(run)
    rows = [
        {**row, **{judge: own.get(row["setting"]) for judge, own in judged.items()}}
        for row in run.rows
    ]
    if not rows:
        return
    bits = [key.removeprefix(BITS) for key in rows[0] if key.startswith(BITS)]
    columns = [
        tables.SETTING_COLUMN,
        *tables.COPYING_COLUMNS,
        *([tables.RECITED_COLUMN] if any(row.get("recited") is not None for row in rows) else []),
        *map(tables.bits_per_byte_column, bits),
        *(Column(key=judge, title=FIGURES[judge], num_decimals=2) for judge in judged),
        *tables.LAST_COLUMNS,
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
    asked = run.results.get("questions") or []
    if asked:
        names = ("setting", "task", "acc")
        own = [Column(key=name, title=name) for name in names]
        yield Section(title="Questions (lm-eval)", columns=own, rows=asked)


def _protected_by_judges(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], judged: Collection[str]
) -> Iterator[Section]:
    """As the paper's table: the best factuality, with the other figures of that setting."""
    if "factuality" not in judged or not all("method" in row for row in rows):
        return
    found = high_protection(
        {
            "method": row["method"],
            "ncr": row["ncr"].mean if row["ncr"] else None,
            "factuality": row["factuality"].mean if row["factuality"] else None,
            "row": row,
        }
        for row in rows
    )
    chosen = [own["row"] for own in found.values() if own is not None]
    note = "Of each method, the setting with the best factuality at NCR >= 0.75."
    if chosen:
        yield Section(
            title="High protection, by factuality", note=note, columns=columns, rows=chosen
        )


def _pictures(folder: Path) -> Iterator[Section]:
    for name, title in PICTURES.items():
        files = [folder / f"{name}{suffix}" for suffix in MEDIA_TYPES]
        for path in [path for path in files if path.is_file()][:1]:
            yield Section(title=title, picture=Picture(path.read_bytes(), path.suffix))


def _analysis_section(own: Analysis) -> Section:
    picture = None
    if own.draw is not None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            own.draw(path)
            picture = Picture(path.read_bytes(), path.suffix)
    return Section(
        title=own.title, note=own.note, columns=own.columns, rows=own.rows, picture=picture
    )


def _record(run: RecordedRun, prompt: str) -> SideBySideRecord:
    about = run.prompts.get(prompt, {})
    firsts = [
        next((own for own in rows if own.id == prompt), None) for rows in run.by_setting.values()
    ]
    return SideBySideRecord(
        title=str(about.get("title") or prompt),
        prompt=str(about.get("prompt") or "(not recorded)"),
        reference=str(about.get("reference") or "(not recorded)"),
        columns=[_column(run, own) for own in firsts if own is not None],
    )


def _column(run: RecordedRun, own: RecordedGeneration) -> Generation:
    text = str(own.row.get("text") or "")
    pieces = [(str(piece), bool(kept)) for piece, kept in own.row.get("pieces") or [(text, True)]]
    ledger = run.ledger(own)
    tokens = _tokens(ledger)
    spans = (own.copying or {}).get("copied_characters") or ()
    has_bound = own.row.get("bound") is not None
    return Generation(
        label=own.setting,
        pieces=pieces,
        copied_spans=[(start, end) for start, end in spans],
        spent=own.row.get("spent") if has_bound else None,
        bound=own.row.get("bound"),
        copy_probability=None if ledger is None else run.copy_probability(own, ledger),
        finish_reason=str(own.row.get("finish_reason") or ""),
        tokens=tokens if len(tokens) == len(pieces) else (),
    )


def _tokens(ledger: Ledger | None) -> Sequence[TokenSpend]:
    """One a step; () without a ledger."""
    if ledger is None:
        return ()
    return [
        TokenSpend(step.spend, step.budget, step.weight, step.log_prob, step.safe_log_prob)
        for step in ledger.steps
    ]
