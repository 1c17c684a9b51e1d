"""The commands that choose k: by what generations copy, and by bounds on reciting alone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anchored.decode.pair_options import ModelOptions, RuleOptions
from anchored.decode.rules.registry import BudgetOptions, DebtOptions
from anchored.decode.settings import LevelName, SamplingConfig
from anchored.durable_files import text_sha256
from anchored.fields import check_least, checked_nats
from anchored.inputs import check_input

if TYPE_CHECKING:
    from anchored.eval.calibration.calibration import Calibration
    from anchored.eval.experiments.experiment import Experiment, Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceOptions(ModelOptions):
    """Prompts with the texts that must not follow, and how both models read them."""

    prompt_file: Path
    """File of prompts, JSON lines {"id": ..., "prompt": ..., "reference": ...}, as anchored prompts
    writes them."""
    temperature: float = 0.7
    """Number that divides the logits of both models."""
    repetition_penalty: float = 1.1
    """Penalty of tokens seen before, in both models; 1 is none."""
    level: LevelName | Literal["auto"] = "auto"
    """Unit that is decoded step by step; auto takes tokens where the tokenizers share them, else
    bytes."""
    batch_size: int = 16
    """Texts that are decoded or scored together."""

    def __post_init__(self) -> None:
        SamplingConfig(temperature=self.temperature, repetition_penalty=self.repetition_penalty)
        check_least(self, 1, "batch_size")
        ModelOptions.__post_init__(self)
        check_input(self.prompt_file)

    def experiment(self, prompts: Sequence["Prompt"], **options: Any) -> "Experiment":
        """Prompts without settings, to be decoded or scored so."""
        from anchored.eval.experiments.experiment import Experiment

        shared = ("temperature", "repetition_penalty", "level", "batch_size")
        options |= {name: getattr(self, name) for name in shared}
        return Experiment(prompts=prompts, settings=(), **options)


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateConfig(BudgetOptions, ReferenceOptions):
    """Find the largest k: anchored calibrate --safe A --risky B --prompt-file prompts.jsonl

    Measures copying at several k, and chooses the largest that keeps it within a target. A prompt
    leads into a text that must not be copied; its reference is how that goes on. Every generation
    is recorded as it ends: repeated after an interruption, the command goes on.
    """

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

    def __post_init__(self) -> None:
        if self.target is None and self.metric != "ncr":
            raise ValueError(f"--metric {self.metric} needs a --target")
        if self.certify is not None and not 0.0 < self.certify < 1.0:
            raise ValueError(f"--certify must be in (0, 1), got {self.certify}")
        check_least(self, 1, "seeds", "max_new_tokens")
        check_least(self, 0, "check_seeds")
        ReferenceOptions.__post_init__(self)
        self.calibration([])

    def calibration(self, prompts: Sequence["Prompt"]) -> "Calibration":
        """All settings, with these prompts; ValueError for values that are out of range."""
        from anchored.decode.rules.anchored import Indebted
        from anchored.eval.calibration.calibration import Calibration
        from anchored.eval.calibration.search import Search, Target
        from anchored.eval.copying.literal import HIGH_PROTECTION

        rule = RuleOptions(rule=self.rule, k=self.smallest_k, **self.budget_options()).make()
        assert isinstance(rule, Indebted)
        return Calibration(
            experiment=self.experiment(
                prompts,
                folder=self.output,
                seeds=list(range(self.seeds)),
                max_new_tokens=self.max_new_tokens,
            ),
            rule=rule,
            target=Target(
                metric=self.metric,
                value=HIGH_PROTECTION if self.target is None else self.target,
                confidence=self.confidence,
                is_strict=self.strict,
            ),
            search=Search(
                smallest=self.smallest_k,
                largest=self.largest_k,
                num_first=self.first_ks,
                resolution=self.resolution,
            ),
            num_check_seeds=self.check_seeds,
            certify=self.certify,
        )


def calibrate(config: CalibrateConfig) -> int:
    """Generate, choose, report; the exit status is 1 where fresh seeds miss the target."""
    from anchored.eval.calibration import calibration as calibrating
    from anchored.eval.copying.metrics import METRIC_SET
    from anchored.eval.experiments.experiment import load_prompts
    from anchored.eval.experiments.generations import is_at_bytes
    from anchored.eval.experiments.steps import Steps

    calibration = config.calibration(load_prompts(config.prompt_file))
    pair = config.load()
    fingerprints = dict(pair.fingerprints)
    # What decides the generations: a folder belongs to one of these, whatever the target.
    experiment, rule = calibration.experiment, calibration.rule_settings
    prompts = {one.id: text_sha256(one.prompt, one.reference) for one in experiment.prompts}
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
    return 1 if calibrated.check is not None and not calibrated.check.is_met else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifyConfig(DebtOptions, ReferenceOptions):
    """Find the k to defend: anchored certify --safe A --risky B --prompt-file prompts.jsonl

    Scores the references under both models, and prints the largest k of each rule, without a bank
    and with several, whose bound on the chance of reciting any of them is within a target. Nothing
    is generated.
    """

    output: Path = Path("runs/certificates")
    """Folder of certificates.json and the table."""
    target: float = 1e-6
    """Largest chance that an answer recites a text, the likeliest one."""
    bank: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    """Banks to show, in nats; each is full at the start of an answer."""
    window: int | None = None
    """Tokens of a passage: certifies every passage of that length too, anywhere in an answer."""
    length: int = 200
    """Tokens of an answer, the horizon of its budget; four bytes each at byte level."""

    def __post_init__(self) -> None:
        if self.temperature == 0.0:
            raise ValueError("--temperature must be > 0: greedy decoding has no bound")
        if not 0.0 < self.target < 1.0:
            raise ValueError(f"--target must be in (0, 1), got {self.target}")
        for bank in self.bank:
            checked_nats("--bank", bank)
        check_least(self, 1, "window", "length", "debt_window")
        if self.window is not None and self.window > self.length:
            raise ValueError(f"--window must be <= --length {self.length}, got {self.window}")
        ReferenceOptions.__post_init__(self)


def certify(config: CertifyConfig) -> int:
    """Score, search, report; returns the exit status."""
    from anchored.eval.calibration.certificates import read_events, write_certificates
    from anchored.eval.experiments.experiment import load_prompts

    prompts = load_prompts(config.prompt_file)
    experiment = config.experiment(prompts, folder=config.output, max_new_tokens=config.length)
    pair = config.load()
    events = read_events(experiment, pair, config, window=config.window)
    about = {"models": dict(pair.fingerprints)}
    print(
        write_certificates(
            config.output, events, banks=config.bank, target=config.target, about=about
        )
    )
    print(f"\nAll figures: {config.output}/certificates.json")
    return 0
