"""What a quickstart leaves behind: results.json, a table, pictures and a page of texts."""

import json
from dataclasses import asdict
from typing import Any

from anchored import Ledger
from anchored.eval.environment import environment_record
from anchored.eval.plots import BudgetTrajectory
from anchored.eval.report import (
    COPYING_COLUMNS,
    SETTING_COLUMN,
    Column,
    bits_per_byte_column,
    markdown_table,
    terminal_table,
)
from anchored.eval.side_by_side import Generation, SideBySideRecord, side_by_side_page

from .findings import Finding, findings
from .folders import Folders
from .generation import Setting, prompts, read_generations, settings
from .measurement import COPYING, read_measurement
from .pictures import draw_pictures
from .preset import Preset
from .summary import EXTRA, SettingSummary, recommended, summarize
from .training import loss_curves

RESULTS_SCHEMA = "anchored-quickstart/1"
COLUMNS = [
    SETTING_COLUMN,
    *COPYING_COLUMNS,
    bits_per_byte_column("mixture"),
    bits_per_byte_column(EXTRA),
    Column(key="gap_closed", title="gap closed", num_decimals=2),
    Column(key="spent", title="spent", num_decimals=1),
    Column(key="bound", title="bound", num_decimals=1),
]


def write_results(folders: Folders, preset: Preset, seconds: dict[str, float]) -> None:
    """results.json, table.md, the pictures and side_by_side.html."""
    summaries = summarize(folders, preset)
    results = {
        "schema": RESULTS_SCHEMA,
        "settings": asdict(preset),
        "environment": environment_record(),
        "seconds": seconds,
        "metric_set": COPYING.metric_set,
        "rows": [summary.as_json() for summary in summaries],
        "recommended": recommended(summaries).setting.name,
        "findings": [asdict(finding) for finding in _findings(preset, summaries)],
        "questions": read_measurement(folders, "questions"),
        "examples": read_measurement(folders, "copying"),
        "utility": read_measurement(folders, "utility"),
        "losses": [asdict(curve) for curve in loss_curves(folders)],
        "trajectories": [asdict(each) for each in _trajectories(folders, preset)],
    }
    _replace(folders.root / "results.json", json.dumps(results, indent=1) + "\n")
    _replace(folders.root / "table.md", _table(summaries, as_markdown=True) + "\n")
    draw_pictures(folders.root)
    records = _side_by_side(folders, preset)
    page = side_by_side_page(records, title="Anchored Decoding: the same prompt at every budget")
    _replace(folders.root / "side_by_side.html", page)


def terminal_report(folders: Folders, preset: Preset) -> str:
    """What the terminal shows at the end: the table, the findings, where to look."""
    summaries = summarize(folders, preset)
    lines = [_table(summaries), "", *map(str, _findings(preset, summaries)), ""]
    for row in read_measurement(folders, "questions"):
        lines.append(f"lm-eval {row['task']}: {row['setting']} accuracy {row['acc']:.3f}")
    return "\n".join(lines)


def _findings(preset: Preset, summaries: list[SettingSummary]) -> list[Finding]:
    return findings(summaries, shows_effects=preset.shows_effects)


def _table(summaries: list[SettingSummary], *, as_markdown: bool = False) -> str:
    rows = [summary.as_row() for summary in summaries]
    return (markdown_table if as_markdown else terminal_table)(rows, COLUMNS)


def _trajectories(folders: Folders, preset: Preset) -> list[BudgetTrajectory]:
    """One generation of the smallest, a middle and the largest budget."""
    sweep = [setting for setting in settings(preset) if setting.k is not None]
    shown = (sweep[0], sweep[len(sweep) // 2], sweep[-1])
    return [_trajectory(folders, setting) for setting in shown]


def _trajectory(folders: Folders, setting: Setting) -> BudgetTrajectory:
    """The setting's first generation that went on to its length, if there is one."""
    rows = read_generations(folders, setting)
    row = next((row for row in rows if row["finish_reason"] == "length"), rows[0])
    ledger = Ledger.load(folders.root / row["ledger"])
    return BudgetTrajectory(
        label=f"{setting.name}, {row['work']}",
        k=ledger.header.k,
        debt=ledger.header.debt,
        bound=ledger.header.bound,
        spends=[step.spend for step in ledger.steps],
        accepted=[step.accepted for step in ledger.steps],
    )


def _side_by_side(folders: Folders, preset: Preset) -> list[SideBySideRecord]:
    """The first seed's generations of every work, one column a setting."""
    copied = {
        (row["setting"], row["work"], row["seed"]): row["copied_characters"]
        for row in read_measurement(folders, "copying")
    }
    columns: dict[str, list[Generation]] = {}
    for setting in settings(preset):
        for row in read_generations(folders, setting):
            if row["seed"] == preset.seeds[0]:
                spans = copied[setting.name, row["work"], row["seed"]]
                columns.setdefault(row["work"], []).append(_generation(setting, row, spans))
    return [
        SideBySideRecord(
            title=prompt.title,
            prompt=prompt.prompt,
            reference=prompt.reference,
            columns=columns[prompt.id],
        )
        for prompt in prompts(preset)
    ]


def _generation(setting: Setting, row: dict[str, Any], spans: list[list[int]]) -> Generation:
    has_budget = setting.name != "p_r"
    return Generation(
        label=setting.name,
        pieces=[(text, accepted) for text, accepted in row["pieces"]],
        copied_spans=[(start, end) for start, end in spans],
        spent=row["spent"] if has_budget else None,
        bound=row["bound"] if has_budget else None,
        finish_reason=row["finish_reason"],
    )


def _replace(path: Any, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
