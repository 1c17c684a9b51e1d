"""The command that takes recorded texts through the whole evaluation, to one page."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from anchored import AnchoredError
from anchored.durable_files import file_sha256, locked
from anchored.eval.copying.copybench import NonLiteralConfig
from anchored.eval.quality.win_rate import WinRateConfig
from anchored.eval.recorded_texts import (
    EVALUATION,
    PAGE,
    PROMPTS_FILE,
    RecordedText,
    evaluation_rows,
    file_settings,
    is_run,
    names_of,
    read_texts,
    write_evaluation,
)
from anchored.fields import check_least
from anchored.inputs import check_input

from ..option_types import POSITIONAL
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
    """The settings of one model alone, between which NCR is measured."""

    safe_setting: str = "p_s"
    """Name of the setting that is the safe model alone."""
    risky_setting: str = "p_r"
    """Name of the setting that is the risky model alone."""
    beside: str | None = None
    """Setting from whose NCR that of each other one is subtracted, prompt by prompt and seed by
    seed, with a 95 % interval over prompts; none unless given."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The part of a run that the page shows."""

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

    run: Annotated[tuple[Path, ...], POSITIONAL]
    """Folder of a run; or files of texts, or a folder of them: JSON lines of "text", "reference",
    "prompt", "setting", "seed" and "id", or what CopyBench writes. Each of several files is a
    setting with the file's name, without its ending."""
    only: tuple[StepName, ...] = ()
    """Steps to do; all that the texts and options allow unless given."""
    prompts: Path | None = None
    """File of what the texts lack, JSON lines of "id" and "reference" or the like; the run's
    prompts unless given."""
    output: Path | None = None
    """Folder for evaluation/ and the page; that of the run or the texts, or FILE.evaluation of the
    first file, unless given."""
    dry_run: bool = False
    """Print the steps, and how much the judges would be asked, and send nothing."""

    def __post_init__(self) -> None:
        if not self.run:
            raise ValueError("name the folder of a run, or files of texts")
        if self.judge_model is None and (self.has_evidence or set(self.only) & set(JUDGES)):
            raise ValueError("a judge is needed: give --judge-model too")
        if "factuality" in self.only and not self.has_evidence:
            raise ValueError("factuality: give one of --serper, --corpus and --evidence")
        for kind in (ReportOptions, NonLiteralConfig, JudgeOptions, EvidenceOptions, WinRateConfig):
            kind.__post_init__(self)
        for path in self.run:
            if not path.exists():
                raise FileNotFoundError(f"there is no file or folder {path}")
        check_input(self.prompts)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is no folder to write results in")

    @property
    def folder(self) -> Path:
        """The folder of all that is written."""
        first = self.run[0]
        return self.output or (
            first if first.is_dir() else first.with_name(f"{first.name}.evaluation")
        )

    @property
    def has_run(self) -> bool:
        """Whether it is the folder of a quickstart or a sweep, which a page is made of."""
        return len(self.run) == 1 and is_run(self.run[0])


OPTIONS: Final[dict[StepName, tuple[type, ...]]] = {
    "copying": (CopyingOptions,),
    "nonliteral": (NonLiteralConfig,),
    "answers": (),
    "fluency": (JudgeOptions,),
    "win-rate": (JudgeOptions, WinRateConfig),
    "factuality": (JudgeOptions, EvidenceOptions),
    "report": (ReportOptions,),
}
"""Options that decide the results of each step, next to its texts."""
NEEDED: Final[dict[StepName, str]] = {
    "copying": "reference",
    "nonliteral": "characters",
    "answers": "answer",
}
"""The entries that a measure reads of every text."""


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
    if config.has_run:
        yield "report"


def _check(config: EvaluateConfig, names: tuple[StepName, ...], texts: list[RecordedText]) -> None:
    """Raise ValueError, in one line, for what a step cannot be done with."""
    if not names:
        raise ValueError(
            f"{names_of(config.run)}: texts without references, characters, answers or "
            "--judge-model"
        )
    if "report" in names and not config.has_run:
        raise ValueError(f"a report is on a run's folder, not on texts as {config.run[0]}")
    for name in (name for name in NEEDED if name in names):
        if without := [text for text in texts if not getattr(text, NEEDED[name])]:
            raise ValueError(
                f'{without[0].key} has no "{NEEDED[name]}": give --prompts FILE, which has them '
                "by id"
            )
    if set(names) & set(JUDGES):
        check_judge(config, texts, config.run[0], needs_key=not config.dry_run)
    if "copying" in names:
        _check_alone(config, {text.setting for text in texts})


def _check_alone(config: EvaluateConfig, settings: set[str]) -> None:
    """Say why there is no NCR; ValueError where an option names a setting that is not there."""
    lacking, names = [], ", ".join(sorted(settings))
    for option in ("safe_setting", "risky_setting"):
        setting, default = getattr(config, option), getattr(CopyingOptions, option)
        if setting not in settings:
            lacking.append(setting)
            if setting != default:
                flag = f"--{option.replace('_', '-')}"
                raise ValueError(f"{flag}: there are no texts of {setting!r}, only of {names}")
    if lacking and len(settings) > 1:
        print(
            f"no NCR: there are no texts of {' or '.join(lacking)}; name the models alone with "
            f"--safe-setting and --risky-setting, of {names}",
            file=sys.stderr,
        )


def _do(config: EvaluateConfig, names: tuple[StepName, ...], texts: list[RecordedText]) -> bool:
    """Do the steps, recording those that are done; whether each judge could judge something."""
    from anchored.eval.analysis.evaluated import evaluation_table
    from anchored.eval.experiments.steps import Steps

    steps, is_whole = Steps(config.folder / EVALUATION, {}, total=len(names)), True
    for name in names:
        output = _output(config, name)
        work: Callable[[], bool] = partial(_evaluate, config, name, texts)
        if name == "report":
            work = partial(_write_report, config)
        try:
            steps.run(name, work, identity=_identity(config, name), output=output)
        except AnchoredError as error:  # of a judge: the page says what is missing
            print(f"{name}: {error}", file=sys.stderr)
            is_whole = False
        if name != "report" and output.exists():
            results = json.loads(output.read_text(encoding="utf-8"))
            print(evaluation_table(name, results), end="\n\n", flush=True)
    return is_whole


def _identity(config: EvaluateConfig, name: StepName) -> dict[str, Any]:
    """All that decides what a step writes: its options, and the files that it reads."""
    texts = {setting: path for path, setting in file_settings(config.run).items()}
    files = [config.run[0] / PROMPTS_FILE]
    files += [config.prompts] if config.prompts else []
    if name == "report":
        files += [_output(config, step) for step in get_args(StepName) if step != "report"]
        folder = config.run[0]
        files += [*sorted(folder.glob("measurements/*.json")), folder / "results.json"]
    named = {**{path.name: path for path in files}, **texts}
    if name == "report" and config.ncr_of:  # by another name than the run's results
        named["ncr_of"] = config.ncr_of / "results.json"
    options = _options(config, name)
    # Files by what they hold, in place of their paths, so that folders can be moved.
    paths = {option: value for option, value in options.items() if isinstance(value, Path)}
    plain = {option: value for option, value in options.items() if option not in paths}
    identity: dict[str, Any] = {"options": plain | _hashes(paths), "files": _hashes(named)}
    if name == "copying":
        from anchored.eval.copying.metrics import metric_packages

        identity["packages"] = dict(metric_packages())
    return identity


def _hashes(paths: Mapping[str, Path]) -> dict[str, str]:
    return {name: file_sha256(path) for name, path in paths.items() if path.is_file()}


def _options(config: EvaluateConfig, name: StepName) -> dict[str, Any]:
    """The options of a step, by name."""
    options = [field.name for kind in OPTIONS[name] for field in fields(kind)]
    return {option: getattr(config, option) for option in options}


def _output(config: EvaluateConfig, name: StepName) -> Path:
    """The file that a step writes."""
    return config.folder / (PAGE if name == "report" else f"{EVALUATION}/{name}.json")


def _evaluate(config: EvaluateConfig, name: StepName, texts: list[RecordedText]) -> bool:
    """Take a measure or ask a judge, and record it. Whether nothing of it is left to do."""
    from anchored.eval.copying.copybench import answer_results, nonliteral_results
    from anchored.eval.copying.literal import copying_results

    if name == "copying":
        safe, risky, folder = config.safe_setting, config.risky_setting, config.folder
        results = copying_results(
            texts,
            safe=safe,
            risky=risky,
            beside=config.beside,
            known=[row for run in {folder, config.run[0]} for row in evaluation_rows(run, name)],
            progress=sys.stderr.isatty(),
        )
    elif name == "nonliteral":
        results = nonliteral_results(texts, **_options(config, name))
    elif name == "answers":
        results = answer_results(texts)
    else:
        results = judged(name, texts, config, config.run[0])
    write_evaluation(config.folder, name, results)
    if name in JUDGES:
        check_judged(results)
    return not has_failures(results)


def _write_report(config: EvaluateConfig) -> bool:
    """Write the page, and print the tables of its analyses."""
    from anchored.eval.analysis.recorded_run import RecordedRun
    from anchored.eval.analysis.run_report import write_report
    from anchored.eval.report.tables import terminal_table

    other = None if config.ncr_of is None else RecordedRun(config.ncr_of)
    recorded = RecordedRun(
        config.run[0],
        max_ledgers=config.ledgers,
        evaluation=config.folder / EVALUATION,
        ncr_of=other,
    )
    report = write_report(recorded, config.folder, num_texts=config.texts)
    for section in report.analyses:
        print(f"{section.title}\n{terminal_table(section.rows, section.columns)}\n")
    for name, why in report.not_measured.items():
        print(f"not measured: {name}: {why}")
    return True
