"""Options of the commands that decode: the pair, the rule, the engine."""

from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, arg

import anchored
from anchored.decode.byte.settings import ByteSettings
from anchored.decode.settings import EngineName, LevelName, Speculate

from .files import check_input
from .options import ModelOptions

if TYPE_CHECKING:
    from anchored.decode.rules.rule import Rule

DEFAULT_K = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOptions:
    """How the next token is chosen."""

    name: Annotated[Literal["anchored", "safe_only", "risky_only"], arg(name="rule")] = "anchored"
    """anchored stays within a budget of the safe model; the others use one model alone."""
    k: float | None = None
    """Nats a token (a byte at byte level), K = k * horizon; 1 unless K is given."""
    K: float | None = None
    """Nats for the whole text, in place of k."""
    divergence: Literal["kl", "max"] = "kl"
    """kl bounds the mean log-ratio, max the worst case."""
    debt: Literal["top", "average", "none"] = "top"
    """How the prompt's likelihood ratios are charged before the first token."""
    debt_window: int = 5
    """Prompt tokens that make the top debt."""
    budget: Literal["adaptive", "global", "fixed"] = "adaptive"
    """Whether unspent nats carry over, are free from the start, or are lost."""

    def __post_init__(self) -> None:
        if self.name != "anchored" and astuple(self)[1:] != astuple(RuleOptions())[1:]:
            raise ValueError(f"--rule {self.name} has no budget: leave out --k and its like")

    def make(self) -> "Rule":
        """The rule; ValueError for values that are out of range."""
        if self.name == "safe_only":
            return anchored.SafeOnly()
        if self.name == "risky_only":
            return anchored.RiskyOnly()
        return anchored.Anchored(
            k=DEFAULT_K if self.k is None and self.K is None else self.k,
            K=self.K,
            divergence=self.divergence,
            debt_window=self.debt_window,
            debt=self.debt,
            budget=self.budget,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions(ModelOptions):
    """A pair, the rule it decodes by and where its steps run."""

    rule: OmitArgPrefixes[RuleOptions] = field(default_factory=RuleOptions)
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where the tokenizers share them."""
    byte: ByteSettings = field(default_factory=ByteSettings)
    """Of the byte level."""
    engine: EngineName = "auto"
    """eager looks at every token on the host; device keeps steps there; auto chooses."""
    speculate: Speculate = "off"
    """Tokens that the safe model drafts before one risky forward verifies them; auto chooses."""
    batch_size: int = 16
    """Texts that are decoded together."""
    prompt_ratios: Path | None = None
    """File that anchored ratios wrote for the same models, settings and prompts."""

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        check_input(self.prompt_ratios)

    def decoder(self) -> "anchored.Decoder":
        """A decoder; the rule and the ratios' file are checked before the models are loaded."""
        rule = self.rule.make()
        path = self.prompt_ratios
        ratios = anchored.PromptRatios.load(path) if path is not None else None
        return anchored.Decoder(
            self.pair(),
            rule,
            level=self.level,
            batch_size=self.batch_size,
            engine=self.engine,
            speculate=self.speculate,
            byte_settings=None if self.byte == ByteSettings() else self.byte,
            prompt_ratios=ratios,
        )
