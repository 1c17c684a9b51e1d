"""A pair, its rule and its decoder as plain values: of a command line, a config or lm-eval.

Torch is imported when a rule is made or a pair is loaded, so that --help costs nothing.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..errors import AnchoredError, in_one_line
from ..fields import check_least
from ..inputs import check_input, read_prompts
from .pair.folder import model_location
from .pair.pair_file import PairFile
from .rules.registry import (
    BUDGET_OPTIONS,
    DEFAULT_K,
    RULES,
    BudgetOptions,
    BudgetSize,
    budget_names,
    make_rule,
)
from .settings import FLAT, MODEL, REPEATED, LevelName, Speculate

if TYPE_CHECKING:
    from .decoder import Decoder
    from .pair.model_pair import ModelPair
    from .rules.rule import Rule

ModelName = Annotated[str | Path | None, MODEL]
"""A folder or a Hub id; none is named by None."""
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
_DEVICES = re.compile(r"cpu|mps|(cuda|xpu)(:\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairNames:
    """The names of two models."""

    safe: ModelName = None
    """Hugging Face folder or Hub id of the safe model."""
    risky: ModelName = None
    """Hugging Face folder or Hub id of the risky model."""
    pair: ModelName = None
    """A folder or Hub id with a pair.json, which replaces both: it names them, their revisions and
    perhaps k and level."""
    safe_revision: str | None = None
    """Branch, tag or commit of the safe model's Hub id; its main branch unless given."""
    risky_revision: str | None = None
    """Branch, tag or commit of the risky model's Hub id; its main branch unless given."""
    allow_quantized_safe: bool = False
    """Take a quantized safe model: the bound then holds against that one."""

    def __post_init__(self) -> None:
        if self.pair is not None:
            try:
                named = PairFile.read(self.pair)
            except ValueError as error:  # the file is wrong, and no option
                raise AnchoredError(str(error)) from None
            self._take(named)
        for model in self.locations.values():
            model_location(model)  # FileNotFoundError for neither a folder nor a Hub id

    def _take(self, named: PairFile) -> None:
        """Have the models of a pair.json; ValueError next to options that name models."""
        for name in ("safe", "risky", "safe_revision", "risky_revision"):
            if getattr(self, name) is not None:
                raise ValueError(f"--pair names both models: remove --{name.replace('_', '-')}")
            object.__setattr__(self, name, getattr(named, name))
        object.__setattr__(self, "pair", None)  # so that a copy of these options may be made

    @property
    def locations(self) -> dict[str, str | Path]:
        """Folder or Hub id by "safe" and "risky"; ValueError unless both are named."""
        if self.safe is None or self.risky is None:
            raise ValueError("a pair needs --safe and --risky, or --pair")
        return {"safe": self.safe, "risky": self.risky}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions(PairNames):
    """Two models, with one tokenizer or two, and how they are loaded."""

    dtype: Dtype = "auto"
    """Type of the numbers that the models compute in; auto takes each model's as it is stored."""
    device: str | None = None
    """Device of the models: cpu, cuda, cuda:0 and so on; CUDA, where there is one, unless given."""
    risky_device: str | None = None
    """Device of the risky model, where it is another one; needs --device for the safe model."""
    risky_device_map: str | None = None
    """Split of the risky model over several devices, as accelerate names it: auto, balanced and so
    on."""
    safe_attn_implementation: str | None = None
    """Attention of the safe model, as transformers names it: sdpa, eager and so on; transformers
    chooses unless given."""
    risky_attn_implementation: str | None = None
    """Attention of the risky model, named in the same way."""
    risky_quantization: Path | None = None
    """JSON file with a quantization config of transformers for the risky model, as {"quant_method":
    "torchao", ...}; its weights are taken as they are stored unless given."""

    def __post_init__(self) -> None:
        PairNames.__post_init__(self)
        check_input(self.risky_quantization)
        for device in (self.device, self.risky_device):
            if device is not None:
                check_device_name(device)
        if self.risky_device is not None and self.device is None:
            raise ValueError(
                f"--risky-device {self.risky_device} needs --device for the safe model"
            )

    def load(self) -> "ModelPair":
        """Both models, loaded without a bar for every file of weights; ValueError if refused."""
        from transformers.utils.logging import disable_progress_bar

        from .pair.loading import LoadOptions, quantization_config
        from .pair.model_pair import ModelPair

        for device in (self.device, self.risky_device):
            check_presence(device or "cpu")
        file = self.risky_quantization
        devices: str | dict[str, Any] | None = self.device
        if self.device is not None and self.risky_device is not None:
            devices = {"safe": self.device, "risky": self.risky_device}
        disable_progress_bar()
        return ModelPair.from_pretrained(
            self.locations["safe"],
            self.locations["risky"],
            dtype=self.dtype,
            device=devices,
            risky_quantization=None if file is None else quantization_config(file),
            allow_quantized_safe=self.allow_quantized_safe,
            safe_options=LoadOptions(
                revision=self.safe_revision, attn_implementation=self.safe_attn_implementation
            ),
            risky_options=LoadOptions(
                revision=self.risky_revision,
                attn_implementation=self.risky_attn_implementation,
                device_map=self.risky_device_map,
            ),
        )


def check_device_name(device: str) -> None:
    """Raise ValueError for what can be no device; torch is not asked."""
    if not _DEVICES.fullmatch(device):
        raise ValueError(f"a device must be cpu, cuda, cuda:N, xpu, xpu:N or mps, got {device!r}")


def check_presence(device: str) -> None:
    """Raise ValueError, in one line, if this machine has no such device."""
    import torch

    with in_one_line(f"there is no device {device} on this machine"):
        torch.empty(0, device=device)


RuleName = Annotated[str, tuple(RULES)]
"""The name of a rule: one of these, or of an installed package's."""


def named_values(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """The values of an option's NAME=VALUE, by name: each as JSON, or else as text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"{option} must be NAME=VALUE, got {text!r}")
        if name in values:
            raise ValueError(f"{option} gives {name} twice: {values[name]} and {value}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOptions(BudgetOptions, BudgetSize):
    """The rule that chooses the next token."""

    rule: RuleName = "anchored"
    """Rule of decoding: anchored stays within a budget of the safe model, pathwise charges what was
    drawn and bounds every passage, safe_only and risky_only use one model alone, the others are the
    paper's baselines and ablations, or rules of installed packages."""
    setting: Annotated[tuple[str, ...], REPEATED] = ()
    """Setting of another rule, NAME=VALUE, as alpha=0.5 of rcad or n=5 of memfree; give it again
    for more."""
    passages: Path | None = None
    """File of anchored retrieve, whose passages hold the n-grams that memfree blocks; --setting
    corpus=FILE blocks those of a whole corpus."""

    def __post_init__(self) -> None:
        allowed = budget_names(self.rule)
        if any(name not in allowed for name in self._budget()):
            names = ", ".join(f"--{name.replace('_', '-')}" for name in allowed)
            taken = f"of a budget only {names}" if allowed else "no budget: remove --k and the like"
            raise ValueError(f"--rule {self.rule} takes {taken}")
        if self.passages is not None and self.rule != "memfree":
            raise ValueError(f"--passages are those of --rule memfree, got {self.rule}")
        settings = self._settings()
        if self.rule == "memfree" and self.passages is None and "corpus" not in settings:
            raise ValueError("--rule memfree needs --passages FILE or --setting corpus=FILE")
        if allowed == ("K",) and self.K is None:
            raise ValueError(f"--rule {self.rule} needs --K")
        check_input(self.passages)
        if self.rule == "memfree" and isinstance(corpus := settings.get("corpus"), str):
            check_input(Path(corpus))

    def make(self) -> "Rule":
        """The rule; ValueError for values out of range, and for a file without passages."""
        if self.passages is None:
            return self.checked()
        lines = read_prompts(self.passages)  # some share no word with the corpus
        passages = [line.passage for line in lines if line.passage is not None]
        if not passages:
            raise ValueError(f"{self.passages}: no line has a passage")
        return self._made(passages=passages)

    def checked(self) -> "Rule":
        """The rule without the passages of a file, which is not read: ValueError for values that
        are out of range."""
        return self._made() if self.passages is None else self._made(passages=[""])

    def _made(self, **more: Any) -> "Rule":
        settings = {**self._budget(), **self._settings(), **more}
        has_default = self.rule == "pathwise"  # its k is the rule's
        if "k" in budget_names(self.rule) and self.k is self.K is None and not has_default:
            settings["k"] = DEFAULT_K
        return make_rule(self.rule, settings)

    def _settings(self) -> dict[str, Any]:
        """The settings that --setting gives, by name.

        Refused are names that have an option, which one of both would silently replace.
        """
        settings = named_values("--setting", self.setting)
        for name, value in settings.items():
            if name in (*BUDGET_OPTIONS, "passages"):
                option = name.replace("_", "-")
                raise ValueError(f"--setting {name}={value}: give --{option} in its place")
        return settings

    def _budget(self) -> dict[str, Any]:
        """The options of the budget that are not at their defaults, by name."""
        options = [option for option in fields(self) if option.name in BUDGET_OPTIONS]
        values = [(option, getattr(self, option.name)) for option in options]
        return {option.name: value for option, value in values if value != option.default}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions(ModelOptions):
    """A pair, and the rule it decodes by."""

    rule: Annotated[RuleOptions, FLAT] = field(default_factory=RuleOptions)
    """Rule of decoding, which chooses the next token, and its budget."""
    level: LevelName | Literal["auto"] = "auto"
    """The unit of one decoding step; auto takes tokens where the tokenizers share them, else
    bytes."""
    speculate: Speculate = "off"
    """Tokens that the safe model drafts before one forward of the risky model checks them; off
    drafts none."""
    batch_size: int = 16
    """Texts that are decoded together."""

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        check_least(self, 1, "batch_size")
        if isinstance(self.speculate, int) and self.speculate < 1:
            raise ValueError(f"--speculate must be off or >= 1, got {self.speculate}")
        self.rule.checked()

    def _take(self, named: PairFile) -> None:
        ModelOptions._take(self, named)
        rule = self.rule
        if named.k is not None and rule.k is rule.K is None and "k" in budget_names(rule.rule):
            object.__setattr__(self, "rule", replace(rule, k=named.k))
        if named.level is not None and self.level == "auto":
            object.__setattr__(self, "level", named.level)

    def decoder(self, rule: "Rule | None" = None) -> "Decoder":
        """A decoder; its rule, unless the caller made it, is checked before models are loaded."""
        from .decoder import Decoder

        rule = rule or self.rule.make()
        return Decoder(
            self.load(),
            rule,
            level=self.level,
            batch_size=self.batch_size,
            speculate=self.speculate,
        )
