"""The command that takes a recorded run through the whole evaluation, to one page."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from anchored import AnchoredError
from anchored.durable_files import file_sha256, locked, write_durably
from anchored.eval.quality.chat_client import OPENAI_URL
from anchored.eval.recorded_texts import PROMPTS_FILE, generation_files, read_texts

from . import analyse, judge, measure, report
from .judge import AskingOptions, EvidenceOptions

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig(EvidenceOptions, AskingOptions, analyse.RunOptions):
    """All that is measured of a recorded run: anchored evaluate runs/methods --judge-model NAME

    Copying with its distribution, characters taken over, the judges (with --judge-model), analyses,
    and the page of anchored report. Nothing is generated. What is done is not done again, unless
    the texts have changed; an interrupted run goes on, and no answer is paid for twice.
    """

    judge_model: str | None = None
    """As the judges' endpoint names it; without it nothing is judged."""
    judge_url: str = OPENAI_URL
    """Any OpenAI-compatible endpoint."""
    num_comparisons: int = 200
    """Pairs of texts for each setting's win rate."""
    texts: int = 4
    """Prompts whose texts the page shows, evenly among all."""

    def __post_init__(self) -> None:
        analyse.RunOptions.__post_init__(self)
        AskingOptions.__post_init__(self)
        EvidenceOptions.__post_init__(self)
        if self.num_evidence and self.judge_model is None:
            raise ValueError("evidence is for a judge: give --judge-model too")


@dataclass(frozen=True, slots=True)
class Step:
    """A command of this evaluation."""

    name: str
    output: Path
    """A file or folder that it writes."""
    inputs: Iterable[Path]
    """What it reads: it is done again where these have changed."""
    options: Any
    run: Callable[[Any], int]

    def identity(self) -> str:
        """All that decides what it writes."""
        read = [[path.name, file_sha256(path)] for path in self.inputs if path.is_file()]
        return hashlib.sha256(repr([self.options, read]).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """Which steps are done, with what, in how many seconds: RUN/evaluation/steps.json."""

    path: Path
    done: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> "Record":
        """What was recorded; nothing where it cannot be read."""
        try:
            return cls(path, dict(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError):
            return cls(path)

    def run(self, step: Step, title: str) -> None:
        """Do a step that is not done. Raises what its command raises."""
        identity, known = step.identity(), self.done.get(step.name, {})
        if known.get("identity") == identity and step.output.exists():
            print(f"{title}: done before ({known['seconds']:.1f} s)", file=sys.stderr)
            return
        print(title, file=sys.stderr)
        start = time.perf_counter()
        step.run(step.options)
        print(flush=True)
        if _has_failures(step.output):
            return  # what has no answer is asked for again
        self.done[step.name] = {"identity": identity, "seconds": time.perf_counter() - start}
        write_durably(self.path, json.dumps(self.done, indent=1) + "\n")


def run(config: EvaluateConfig) -> int:
    """Do what is not done yet; returns 1 where a judge could not judge, else 0.

    Raises ValueError for a run that another process evaluates at the time: two would pay for the
    same answers, and write the same files.
    """
    from anchored.eval.analysis.recorded_run import EVALUATION

    folder, steps = config.run / EVALUATION, list(_steps(config))
    for step in steps:
        if isinstance(step.options, judge.JudgeOptions):
            step.options.client()  # refuses a key or an address before anything takes its time
    with locked(folder / "claim", waits=False) as is_ours:
        if not is_ours:
            raise ValueError(f"another evaluation is at work in {config.run}")
        problems = _problems(steps, Record.of(folder / "steps.json"))
    print(f"{config.run / report.PAGE}")
    return 1 if problems else 0


def _problems(steps: list[Step], record: Record) -> list[str]:
    """Do the steps; what judges could not judge, a line each."""
    problems = []
    for number, step in enumerate(steps, 1):
        try:
            record.run(step, f"[{number}/{len(steps)}] {step.name}")
        except AnchoredError as error:  # of a judge: the page says what is missing
            problems.append(f"{step.name}: {error}")
            print(problems[-1], file=sys.stderr)
    return problems


def _steps(config: EvaluateConfig) -> Iterator[Step]:
    from anchored.eval.analysis.recorded_run import MEASURES, evaluation_file
    from anchored.eval.report.judgements import JUDGES

    recorded = read_texts(config.run)
    texts = [*generation_files(config.run), config.run / PROMPTS_FILE]

    def step(title: str, name: str, kind: Callable[..., Any], of: Any, **options: Any) -> Step:
        output = evaluation_file(config.run, name)
        own = kind(texts=config.run, output=output, overwrite=True, **options)
        return Step(title, output, texts, own, of.run)

    if all(own.reference for own in recorded):
        yield step("copying", "copying", measure.MeasureCopyingConfig, measure)
    if all(own.characters is not None for own in recorded):
        yield step("characters", "nonliteral", measure.MeasureNonliteralConfig, measure)
    if config.judge_model is not None:
        asking = {"model": config.judge_model, "base_url": config.judge_url}
        asking |= _shared(AskingOptions, config)
        compared = {**asking, "num_comparisons": config.num_comparisons}
        yield step("fluency", "fluency", judge.JudgeFluencyConfig, judge, **asking)
        yield step("win rate", "win-rate", judge.JudgeWinRateConfig, judge, **compared)
        if config.num_evidence:
            evidence = asking | _shared(EvidenceOptions, config)
            yield step("factuality", "factuality", judge.JudgeFactualityConfig, judge, **evidence)
    shared = _shared(analyse.RunOptions, config)
    figures = [*(config.run / "measurements").glob("*.json"), config.run / "results.json"]
    figures += [evaluation_file(config.run, name) for name in (*MEASURES, *JUDGES)]
    inputs = [*texts, *sorted(figures), *filter(None, [config.factuality])]
    inputs += [config.ncr_of / "results.json"] if config.ncr_of else []
    tables, page = (
        analyse.AnalyseConfig(**shared),
        report.ReportConfig(**shared, texts=config.texts),
    )
    yield Step("analyses", config.run / analyse.FOLDER, inputs, tables, analyse.run)
    yield Step("page", config.run / report.PAGE, inputs, page, report.run)


def _shared(kind: type, config: EvaluateConfig) -> dict[str, Any]:
    """The options of this kind that a command has too."""
    return {own.name: getattr(config, own.name) for own in fields(kind)}


def _has_failures(output: Path) -> bool:
    """Whether a judge has no answer to a part of what it was asked."""
    if output.suffix != ".json":
        return False
    settings = json.loads(output.read_text(encoding="utf-8"))["settings"]
    return any(
        count
        for own in settings
        for name, count in own.items()
        if name in ("num_failed", "num_failed_sentences", "num_failed_claims")
    )
