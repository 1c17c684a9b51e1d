"""The command that takes recorded texts through the whole evaluation, to one page."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from tyro.conf import Positional

from anchored import AnchoredError
from anchored.durable_files import file_sha256, locked, write_durably
from anchored.eval.copying.nonliteral import NonLiteralConfig
from anchored.eval.quality.win_rate import WinRateConfig
from anchored.eval.recorded_texts import (
    EVALUATION,
    PAGE,
    PROMPTS_FILE,
    RecordedText,
    generation_files,
    read_texts,
)
from anchored.inputs import check_input, check_least

from .judging import (
    EvidenceOptions,
    JudgeOptions,
    Judging,
    check_judge,
    check_judged,
    has_failures,
    judge_plan,
    judged,
)

StepName = Literal[
    "copying", "nonliteral", "answers", "fluency", "win-rate", "factuality", "report"
]
JUDGES = ("fluency", "win-rate", "factuality")


@dataclass(frozen=True, kw_only=True)  # no slots: those of several bases do not mix
class CopyingOptions:
    """Which settings are one model alone, between which NCR is measured."""

    safe_setting: str = "p_s"
    """Name of the setting that is the safe model alone."""
    risky_setting: str = "p_r"
    """Name of the setting that is the risky model alone."""
    beside: str | None = None
    """Setting from whose NCR that of each other one is subtracted, prompt by prompt and seed by
    seed, with a 95 % interval over prompts; none unless given."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How much of a run the page shows."""

    texts: int = 4
    """Prompts whose texts the page shows, evenly among all."""
    ledgers: int = 64
    """Ledgers of each setting that the analyses read, evenly among its texts; 0 reads all."""
    ncr_of: Path | None = None
    """Folder of another run of the same settings whose NCR is shown, where the judged texts have no
    references, as biographies."""

    def __post_init__(self) -> None:
        check_input(self.ncr_of, "folder")
        check_least(self, 0, "texts", "ledgers")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ReportOptions, NonLiteralConfig, CopyingOptions, Judging):
    """Measure, judge and analyze recorded texts: anchored evaluate runs/methods

    Takes copying with its distribution, characters taken over, answers to questions of fact, the
    judges (where --judge-model is given) and the analyses to one page. Nothing is generated. What
    is done is not done again, unless the texts or its options have changed; an interrupted run goes
    on, and no answer is paid for twice.
    """

    run: Positional[Path]
    """Folder of a run, or a file: JSON lines of "text", "reference", "prompt", "setting", "seed"
    and "id", or what CopyBench writes."""
    only: tuple[StepName, ...] = ()
    """Steps to do; all that the texts and options allow unless given."""
    prompts: Path | None = None
    """File of what the texts lack, JSON lines of "id" and "reference" or the like; a run's own
    prompts unless given."""
    output: Path | None = None
    """Folder for evaluation/ and the page; that of the run, or FILE.evaluation for a file, unless
    given."""
    dry_run: bool = False
    """Print the steps, and how much the judges would be asked, and send nothing."""

    def __post_init__(self) -> None:
        if not self.run.exists():
            raise FileNotFoundError(f"there is no file or folder {self.run}")
        check_input(self.prompts)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is no folder to write results in")
        for kind in (ReportOptions, NonLiteralConfig, JudgeOptions, EvidenceOptions, WinRateConfig):
            kind.__post_init__(self)
        if self.judge_model is None and (self.has_evidence or set(self.only) & set(JUDGES)):
            raise ValueError("a judge is needed: give --judge-model too")
        if "factuality" in self.only and not self.has_evidence:
            raise ValueError("factuality: give one of --serper, --corpus and --evidence")
        if "report" in self.only and not self.run.is_dir():
            raise ValueError(f"a report is on a run's folder, and {self.run} is a file of texts")

    @property
    def folder(self) -> Path:
        """Where all of it is written."""
        if self.output is not None or self.run.is_dir():
            return self.output or self.run
        return self.run.with_name(f"{self.run.name}.evaluation")


OPTIONS: Final[dict[StepName, tuple[type, ...]]] = {
    "copying": (CopyingOptions,),
    "nonliteral": (NonLiteralConfig,),
    "answers": (),
    "fluency": (JudgeOptions,),
    "win-rate": (JudgeOptions, WinRateConfig),
    "factuality": (JudgeOptions, EvidenceOptions),
    "report": (ReportOptions,),
}
"""What decides the results of each step, beside the texts."""
NEEDED: Final[dict[StepName, str]] = {
    "copying": "reference",
    "nonliteral": "characters",
    "answers": "answer",
}
"""What a measure reads of every text."""


def run(config: EvaluateConfig) -> int:
    """Do what is not done yet; returns 1 where a judge could not judge, else 0.

    Raises ValueError for texts that another process evaluates at the time: two would pay for the
    same answers, and write the same files.
    """
    texts = read_texts(config.run, config.prompts)
    names = config.only or tuple(_possible(config, texts))
    _check(config, names, texts)  # before anything takes its time or is paid for
    if config.dry_run:
        print("\n".join(judge_plan(n, texts, config) if n in JUDGES else n for n in names))
        return 0
    with locked(config.folder / EVALUATION / "claim", waits=False) as is_ours:
        if not is_ours:
            raise ValueError(f"another evaluation is at work in {config.folder}")
        is_whole = _do(config, names, texts)
    if (last := _output(config, names[-1])).exists():
        print(last)
    return 0 if is_whole else 1


def _possible(config: EvaluateConfig, texts: list[RecordedText]) -> Iterator[StepName]:
    """The steps that the texts and the options allow."""
    for name, needed in NEEDED.items():
        if all(getattr(text, needed) for text in texts):
            yield name
    if config.judge_model is not None:
        yield "fluency"
        if len({text.setting for text in texts}) > 1:
            yield "win-rate"
        if config.has_evidence:
            yield "factuality"
    if config.run.is_dir():
        yield "report"


def _check(config: EvaluateConfig, names: tuple[StepName, ...], texts: list[RecordedText]) -> None:
    """Raise ValueError, in one line, for what a step cannot be done with."""
    if not names:
        raise ValueError(
            f"{config.run}: texts without references, characters, answers or --judge-model"
        )
    for name in (name for name in NEEDED if name in names):
        if without := [text for text in texts if not getattr(text, NEEDED[name])]:
            raise ValueError(
                f'{without[0].key} has no "{NEEDED[name]}": give --prompts FILE, which has them '
                "by id"
            )
    if set(names) & set(JUDGES):
        check_judge(config, texts, config.run)


def _do(config: EvaluateConfig, names: tuple[StepName, ...], texts: list[RecordedText]) -> bool:
    """Do the steps, recording those that are done; whether each judge could judge something."""
    path = config.folder / EVALUATION / "steps.json"
    try:
        done = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        done = {}
    is_whole = True
    for number, name in enumerate(names, 1):
        title, output = f"[{number}/{len(names)}] {name}", _output(config, name)
        identity, known = _identity(config, name), done.get(name, {})
        if known.get("identity") == identity and output.exists():
            print(f"{title}: done before ({known['seconds']:.1f} s)", file=sys.stderr)
            _show(name, output)
            continue
        print(title, file=sys.stderr)
        start = time.perf_counter()
        try:
            is_done = _write_report(config) if name == "report" else _evaluate(config, name, texts)
        except AnchoredError as error:  # of a judge: the page says what is missing
            print(f"{name}: {error}", file=sys.stderr)
            is_whole = is_done = False
        if is_done:
            done[name] = {"identity": identity, "seconds": time.perf_counter() - start}
            write_durably(path, json.dumps(done, indent=1) + "\n")
    return is_whole


def _identity(config: EvaluateConfig, name: StepName) -> str:
    """A hash of all that decides what a step writes: its options, and the files that it reads."""
    files = [config.run]
    if config.run.is_dir():
        files = [*generation_files(config.run), config.run / PROMPTS_FILE]
    files += [config.prompts] if config.prompts else []
    if name == "report":
        files += [_output(config, step) for step in get_args(StepName) if step != "report"]
        files += [*sorted(config.run.glob("measurements/*.json")), config.run / "results.json"]
        files += [config.ncr_of / "results.json"] if config.ncr_of else []
    read: list[Any] = [[path.name, file_sha256(path)] for path in files if path.is_file()]
    if name == "copying":
        from anchored.eval.copying.metrics import metric_packages

        read += metric_packages().items()
    return hashlib.sha256(repr([_options(config, name), read]).encode()).hexdigest()


def _options(config: EvaluateConfig, name: StepName) -> dict[str, Any]:
    """The options of a step, by name."""
    options = [field.name for kind in OPTIONS[name] for field in fields(kind)]
    return {option: getattr(config, option) for option in options}


def _output(config: EvaluateConfig, name: StepName) -> Path:
    """The file that a step writes."""
    return config.folder / (PAGE if name == "report" else f"{EVALUATION}/{name}.json")


def _evaluate(config: EvaluateConfig, name: StepName, texts: list[RecordedText]) -> bool:
    """Take a measure or ask a judge; record and print it. Whether nothing of it is left to do."""
    from anchored.environment import environment_record
    from anchored.eval.copying.literal import copying_results
    from anchored.eval.copying.nonliteral import nonliteral_results
    from anchored.eval.quality.answers import answer_results
    from anchored.eval.statistics import json_value

    if name == "copying":
        safe, risky = config.safe_setting, config.risky_setting
        results = copying_results(
            texts, safe=safe, risky=risky, beside=config.beside, progress=sys.stderr.isatty()
        )
    elif name == "nonliteral":
        results = nonliteral_results(texts, **_options(config, name))
    elif name == "answers":
        results = answer_results(texts)
    else:
        results = judged(name, texts, config, config.run)
    whole = json_value({**results, "environment": environment_record()})
    output = _output(config, name)
    write_durably(output, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    _show(name, output)
    if name in JUDGES:
        check_judged(results)
    return not has_failures(results)


def _show(name: StepName, output: Path) -> None:
    """Print the table of a measure's or judge's results."""
    from anchored.eval.analysis.evaluated import evaluation_table

    if name != "report":
        results = json.loads(output.read_text(encoding="utf-8"))
        print(evaluation_table(name, results), end="\n\n", flush=True)


def _write_report(config: EvaluateConfig) -> bool:
    """Print the analyses' tables and write the page."""
    from anchored.eval.analysis.recorded_run import RecordedRun
    from anchored.eval.analysis.run_report import analyses, write_report
    from anchored.eval.report.tables import terminal_table

    other = None if config.ncr_of is None else RecordedRun(config.ncr_of)
    recorded = RecordedRun(
        config.run,
        max_ledgers=config.ledgers,
        evaluation=config.folder / EVALUATION,
        ncr_of=other,
    )
    result = analyses(recorded)
    for section in result.sections.values():
        print(f"{section.title}\n{terminal_table(section.rows, section.columns)}\n")
    for name, why in result.not_measured.items():
        print(f"not measured: {name}: {why}")
    write_report(recorded, result, config.folder, num_texts=config.texts)
    return True
