"""The report on a run's folder: its records, analyzed and shown on one page."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Final

from ...durable_files import write_durably
from ..copying.literal import HIGH_PROTECTION, high_protection
from ..recorded_texts import ALONE, PAGE, PROMPTS_FILE, RISKY, SAFE
from ..report import tables
from ..report.page import Generation, Report, Section, SideBySideRecord, Verdict
from ..report.tables import Column, at_most
from ..statistics import mean_of
from . import evaluated, texts
from .recorded_run import NotMeasured, RecordedRun, evenly
from .trade_offs import methods_of

PICTURES: Final = {
    "trade_off": "Protection and utility of every budget",
    "methods": "Protection and utility of every method",
    "ablations": "What each part of the method is worth",
    "debt_window": "Windows of the prefix debt",
    "divergences": "One text, step by step",
}
"""Titles of the pictures that a run draws, by file name."""
NOT_TIMED: Final = "a run is not timed: anchored bench decode times every method"
ANALYSES: Final[dict[str, Callable[[RecordedRun], Section]]] = {
    "copying_distribution": evaluated.copying_distribution,
    "character_overlap": evaluated.character_overlap,
    **{name.replace("-", "_"): partial(evaluated.judgement, name) for name in evaluated.JUDGES},
    "precision_by_group": evaluated.precision_by_group,
    "step_divergences": texts.step_divergences,
    "prefix_ratios": texts.prefix_ratios,
    "debt_deciles": texts.debt_deciles,
    "start_positions": texts.start_positions,
    "trajectories": texts.budget_trajectories,
}


def write_report(run: RecordedRun, folder: Path, *, num_texts: int) -> Report:
    """Write report.html and .json in `folder`; returns their content."""
    report = run_report(run, num_texts=num_texts)
    write_durably(folder / PAGE, report.html())
    write_durably(folder / "report.json", report.json())
    return report


def run_report(run: RecordedRun, *, num_texts: int) -> Report:
    """Everything that the run's folder holds, with reasons for missing parts. num_texts: prompts
    whose texts are shown, evenly among all, one text per setting. Raises: ValueError for damaged
    records."""
    analyses, not_measured = [], {}
    if not run.rows:
        not_measured["results"] = "there is no results.json: the run has not come to its end"
    if not any(run.copying(text) for rows in run.by_setting.values() for text in rows):
        not_measured["copying"] = "there is no evaluation/copying.json"
    if not (run.folder / PROMPTS_FILE).exists():
        reason = "there is no prompts.jsonl: neither prompts nor references are shown"
        not_measured["prompts"] = reason
    if without := [name for name in run.by_setting if not run.ledgers(name)]:
        not_measured["ledgers"] = f"no ledgers are here of {', '.join(without)}"
    for name, analyze in ANALYSES.items():
        try:
            analyses.append(analyze(run))
        except NotMeasured as reason:
            not_measured[name] = str(reason)
    prompts = list(dict.fromkeys(text.id for rows in run.by_setting.values() for text in rows))
    shown = evenly(prompts, num_texts)
    recited = {
        text.id: (run.copying(text) or {}).get("word_lcs", 0)
        for text in reversed(run.by_setting.get(RISKY, []))
    }
    leading = leading_settings(run)
    drawn = {run.folder / f"{name}.svg": title for name, title in PICTURES.items()}
    pictures = [
        Section(title=title, draw=partial(copyfile, path))
        for path, title in drawn.items()
        if path.is_file()
    ]
    return Report(
        title=f"Report on {run.folder.resolve().name}",
        headline=_headline(run, leading) if leading else "",
        verdicts=[_verdict(run, name) for name in leading],
        picture=pictures[0] if pictures else None,
        records=[
            _record(run, prompt, leading)
            for prompt in sorted(shown, key=lambda prompt: -recited.get(prompt, 0))
        ],
        texts_note=f"{len(shown)} of the {len(prompts)} prompts, evenly spaced, most recited "
        "first; for each setting the text of its first seed.",
        results=[*_result_sections(run), *pictures[1:]],
        analyses=analyses,
        not_measured={**not_measured, "speed": NOT_TIMED},
        about=_about(run, len(prompts)),
    )


def leading_settings(run: RecordedRun) -> list[str]:
    """The settings at the top of the page: the risky model, one that protects, the safe model. []
    if the copying of the models alone is not known; without the second if no setting protects."""
    rows = {row["setting"]: row for row in run.rows if row["setting"] in run.by_setting}
    alone = [rows.get(name, {}).get("word_lcs") for name in (SAFE, RISKY)]
    if any(math.isnan(mean_of(figure)) for figure in alone):
        return []
    protected = [
        name
        for name, row in rows.items()
        if _role(run, name) == "anchored" and mean_of(row.get("ncr")) >= HIGH_PROTECTION
    ]
    chosen = (run.results.get("recommended"), *(run.results.get("high_protection") or {}).values())
    best = [name for name in chosen if name in protected] or protected[-1:]
    return [RISKY, *best[:1], SAFE]


def _role(run: RecordedRun, setting: str) -> str:
    """The class of a setting's texts: its method's, but "anchored" for all that have a bound, some
    of which pictures draw as separate lines; "" where there are no results."""
    _, role = methods_of(run).get(setting, ("", ""))
    bounded = any(row["setting"] == setting and row.get("bound") is not None for row in run.rows)
    return "anchored" if role == "baseline" and bounded else role


def _headline(run: RecordedRun, leading: Sequence[str]) -> str:
    ncr = {row["setting"]: mean_of(row.get("ncr")) for row in run.rows}
    if math.isnan(ncr[RISKY]):
        return "The risky model copies no more of these references than the safe one."
    if len(leading) < 3:
        return f"On these prompts no budget has an NCR of {HIGH_PROTECTION} (high protection)."
    sentence = (
        f"On these prompts, {leading[1]} takes away {ncr[leading[1]]:.1%} of the copying that the "
        "risky model adds to the safe one's (NCR, the normalized copying reduction: from "
        f"{HIGH_PROTECTION} on the paper speaks of high protection)"
    )
    (recited,) = (row.get("recited") for row in run.rows if row["setting"] == leading[1])
    if recited is not None:
        most = at_most(recited)
        sentence += f", and it is proved to recite no reference with a chance of more than {most}"
    return f"{sentence}."


def _verdict(run: RecordedRun, setting: str) -> Verdict:
    (row,) = (row for row in run.rows if row["setting"] == setting)
    facts = [f"NCR {mean_of(row.get('ncr')):.3f}"]
    forms = {"bits_per_byte": "held-out {}: {:.2f} bits per byte", "accuracy": "{}: {:.2f} right"}
    for key, figure in row.items():
        kind, _, name = key.partition("/")
        if kind in forms and not math.isnan(mean_of(figure)):
            facts.append(forms[kind].format(name, mean_of(figure)))
    if row.get("bound") and row.get("spent") is not None:
        facts.append(f"spent {row['spent']:.1f} nats of at most {row['bound']:.1f}")
    if row.get("recited") is not None:
        most = at_most(row["recited"])
        facts.append(f"proved: recites no reference with a chance of more than {most}")
    return Verdict(
        label=ALONE.get(setting, setting),
        role=_role(run, setting),
        copied=mean_of(row["word_lcs"]),
        facts="; ".join(facts),
    )


def _about(run: RecordedRun, num_prompts: int) -> dict[str, str]:
    environment = run.results.get("environment") or {}
    packages = environment.get("packages") or {}
    num_texts = sum(len(rows) for rows in run.by_setting.values())
    known: dict[str, object] = {
        "Settings": len(run.by_setting),
        "Prompts": num_prompts,
        "Texts": num_texts,
        "Ledgers read": f"{run.max_ledgers or 'all'} per setting, at most",
        "Schema": run.results.get("schema"),
        "Metrics": run.results.get("metric_set"),
        "Commit": environment.get("git_commit"),
        "Python": environment.get("python"),
        "Packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        "Recommended": run.results.get("recommended"),
    }
    for number, finding in enumerate(run.results.get("findings") or [], 1):
        verdict = {None: "not shown", True: "yes", False: "no"}[finding.get("holds")]
        known[f"Finding {number}"] = f"{verdict}. {finding.get('claim')}: {finding.get('figures')}"
    return {name: str(value) for name, value in known.items() if value}


def _result_sections(run: RecordedRun) -> Iterator[Section]:
    judged = evaluated.judged_figures(run)
    rows = [
        {**row, **{judge: figures.get(row["setting"]) for judge, figures in judged.items()}}
        for row in run.rows
    ]
    if not rows:
        return
    titles = {judge: evaluated.JUDGES[judge].title.lower() for judge in judged}
    columns = tables.result_columns(
        rows, [Column(judge, title, num_decimals=2) for judge, title in titles.items()]
    )
    note = "Copying of the references, held-out bits per byte, nats spent and their bound."
    if run.ncr_of is not None:
        note += f" NCR is that of {run.ncr_of.folder.resolve().name}."
    yield Section(title="Results", note=note, columns=columns, rows=rows)
    best = run.results.get("high_protection") or {}
    protected = {"utility": [row for row in rows if row["setting"] in best.values()]}
    if "factuality" in judged and all("method" in row for row in rows):
        protected["factuality"] = [row for row in high_protection(rows).values() if row]
    for utility, chosen in protected.items():
        if chosen:
            title = f"High protection, by {utility}"
            note = f"Of each method, the setting with the best {utility} at NCR >= 0.75."
            yield Section(title=title, note=note, columns=columns, rows=chosen)


def _record(run: RecordedRun, prompt: str, leading: Sequence[str]) -> SideBySideRecord:
    shown: dict[str, Generation] = {}
    for setting, rows in run.by_setting.items():
        for text in [text for text in rows if text.id == prompt][:1]:
            ledger = run.ledger(text)
            shown[setting] = Generation(
                text=text,
                role=_role(run, setting),
                copied_spans=(run.copying(text) or {}).get("copied_characters") or (),
                copy_probability=None if ledger is None else run.copy_probability(text, ledger),
                steps=() if ledger is None else ledger.steps,
            )
    first = [name for name in leading if name in shown] or list(shown)
    return SideBySideRecord(first=[shown.pop(name) for name in first], others=list(shown.values()))
