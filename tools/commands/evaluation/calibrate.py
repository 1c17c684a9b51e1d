"""The command that chooses k: the largest whose generations keep to a target."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anchored.decode.pair_options import ModelOptions, RuleOptions
from anchored.decode.rules.registry import BudgetOptions
from anchored.decode.settings import LevelName, SamplingConfig
from anchored.durable_files import text_sha256
from anchored.fields import check_least
from anchored.inputs import check_input

if TYPE_CHECKING:
    from anchored.eval.calibration.calibration import Calibration
    from anchored.eval.calibration.search import Search, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateConfig(BudgetOptions, ModelOptions):
    """Find the largest k: anchored calibrate --safe A --risky B --prompt-file prompts.jsonl

    Measures copying at several k, and chooses the largest that keeps it within a target. A prompt
    leads into a text that must not be copied; its reference is how that goes on. Every generation
    is recorded as it ends: repeated after an interruption, the command goes on.
    """

    prompt_file: Path
    """File of prompts, JSON lines {"id": ..., "prompt": ..., "reference": ...}, as anchored prompts
    writes them."""
    rule: Literal["anchored", "pathwise"] = "anchored"
    """Rule whose k is searched: pathwise charges what was drawn."""
    output: Path = Path("runs/calibration")
    """Folder of generations, ledgers, calibration.json, table and picture."""
    metric: Literal["ncr", "word_lcs", "char_lcs", "word_acs"] = "ncr"
    """Measure of copying: ncr is the share of the copying gap between both models that is closed;
    the others are means over texts of the words or characters of the longest copied span, and of
    the words of all copied spans."""
    target: float | None = None
    """Least NCR, or largest mean copy; an NCR of 0.75 unless given."""
    strict: bool = True
    """Ask that the worse end of the interval meet the target, not the mean alone. By the mean,
    about every other choice misses its target on fresh seeds."""
    certify: float | None = None
    """Largest chance that bounds may leave to reciting any of the references, such as 1e-6: no k
    above is chosen, whatever was copied."""
    confidence: float = 0.95
    """Confidence level of the intervals (bootstrap over prompts)."""
    smallest_k: float = 0.1
    """Smallest k to try, in nats per token, or per byte if the tokenizers differ."""
    largest_k: float = 20.0
    """Largest k to try."""
    first_ks: int = 5
    """Values of k that are measured first, equally far apart in log k."""
    resolution: float = 1.1
    """Ratio to the result within which the next larger measured k must lie."""
    seeds: int = 4
    """Generations of a prompt at each k, by the same seeds at each."""
    check_seeds: int = 4
    """Generations at the chosen k by seeds that it was not chosen by; 0 for none."""
    max_new_tokens: int = 200
    """Horizon of the budget, and length of what is compared; a token is four bytes at byte
    level."""
    temperature: float = 0.7
    """Number that divides the logits of both models."""

    repetition_penalty: float = 1.1
    """Penalty of tokens seen before, in both models; 1 is none."""
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where the tokenizers share them, else
    bytes."""
    batch_size: int = 16
    """Texts that are decoded together."""

    def __post_init__(self) -> None:
        SamplingConfig(temperature=self.temperature, repetition_penalty=self.repetition_penalty)
        if self.target is None and self.metric != "ncr":
            raise ValueError(f"--metric {self.metric} needs a --target")
        if self.certify is not None and not 0.0 < self.certify < 1.0:
            raise ValueError(f"--certify must be in (0, 1), got {self.certify}")
        check_least(self, 1, "seeds", "max_new_tokens", "batch_size")
        check_least(self, 0, "check_seeds")
        ModelOptions.__post_init__(self)
        check_input(self.prompt_file)
        self.rule_options().checked()
        self.target_options()
        self.search()

    def target_options(self) -> "Target":
        """The target; ValueError for one that is out of range."""
        from anchored.eval.calibration.search import Target
        from anchored.eval.copying.literal import HIGH_PROTECTION

        return Target(
            metric=self.metric,
            value=HIGH_PROTECTION if self.target is None else self.target,
            confidence=self.confidence,
            is_strict=self.strict,
        )

    def search(self) -> "Search":
        """The search for k; ValueError for values that are out of range."""
        from anchored.eval.calibration.search import Search

        return Search(
            smallest=self.smallest_k,
            largest=self.largest_k,
            num_first=self.first_ks,
            resolution=self.resolution,
        )

    def rule_options(self) -> RuleOptions:
        """The rule at the smallest k."""
        return RuleOptions(rule=self.rule, k=self.smallest_k, **self.budget_options())


def run(config: CalibrateConfig) -> int:
    """Generate, choose, report; the exit status is 1 where fresh seeds miss the target."""
    from anchored.eval.calibration import calibration as calibrating
    from anchored.eval.copying.metrics import METRIC_SET
    from anchored.eval.experiments.generations import is_at_bytes
    from anchored.eval.experiments.steps import Steps

    calibration = _calibration(config)
    pair = config.load()
    fingerprints = dict(pair.fingerprints)
    # What decides the generations: a folder belongs to one of these, whatever the target.
    experiment, rule = calibration.experiment, calibration.rule_settings
    prompts = {each.id: text_sha256(each.prompt, each.reference) for each in experiment.prompts}
    options = ("seeds", "max_new_tokens", "temperature", "repetition_penalty", "level")
    decides = {name: getattr(config, name) for name in options}
    decides |= {"models": fingerprints, "prompts": prompts, "rule": rule, "metric_set": METRIC_SET}
    Steps(config.output, decides, owner="calibration")
    logging.getLogger(calibrating.__name__).setLevel(logging.INFO)
    calibrated = calibrating.calibrate(calibration, pair)
    symbol = "byte" if is_at_bytes(experiment, pair) else "token"
    print(
        calibrating.write_results(
            calibration, calibrated, symbol=symbol, about={"models": fingerprints}
        )
    )
    print(f"All figures: {config.output}/calibration.json; the curve: calibration.png")
    has_missed = calibrated.check is not None and not calibrated.check.is_met
    return 1 if has_missed else 0


def _calibration(config: CalibrateConfig) -> "Calibration":
    """All settings, with the prompts of the file."""
    from anchored.decode.rules.anchored import Indebted
    from anchored.eval.calibration.calibration import Calibration
    from anchored.eval.experiments.experiment import Experiment, load_prompts

    rule = config.rule_options().make()
    assert isinstance(rule, Indebted)
    return Calibration(
        experiment=Experiment(
            folder=config.output,
            prompts=load_prompts(config.prompt_file),
            settings=(),
            seeds=list(range(config.seeds)),
            max_new_tokens=config.max_new_tokens,
            repetition_penalty=config.repetition_penalty,
            temperature=config.temperature,
            level=config.level,
            batch_size=config.batch_size,
        ),
        rule=rule,
        target=config.target_options(),
        search=config.search(),
        num_check_seeds=config.check_seeds,
        certify=config.certify,
    )
