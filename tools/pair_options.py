"""Options of the commands that decode: the pair, the rule, the engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from anchored import Anchored, Decoder, PromptRatios, RiskyOnly, SafeOnly
from anchored.decode.byte.byte_settings import ByteSettings
from anchored.decode.engine import EngineName
from anchored.decode.level import LevelName
from anchored.decode.rules.rule import Rule
from anchored.decode.speculation import Speculate

from .model_options import ModelOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOptions:
    """How the next token is chosen."""

    name: Literal["anchored", "safe_only", "risky_only"] = "anchored"
    """anchored stays within a budget of the safe model; the others use one model alone."""
    k: float = 1.0
    """Nats a token (a byte at byte level); K = k * horizon."""
    divergence: Literal["kl", "max"] = "kl"
    """kl bounds the mean log-ratio, max the worst case."""
    debt: Literal["top", "average", "none"] = "top"
    """How the prompt's likelihood ratios are charged before the first token."""
    debt_window: int = 5
    """Prompt tokens that make the top debt."""
    budget: Literal["adaptive", "global", "fixed"] = "adaptive"
    """Whether unspent nats carry over, are free from the start, or are lost."""

    def make(self) -> Rule:
        """The rule; ValueError for values that are out of range."""
        if self.name == "safe_only":
            return SafeOnly()
        if self.name == "risky_only":
            return RiskyOnly()
        return Anchored(
            k=self.k,
            divergence=self.divergence,
            debt_window=self.debt_window,
            debt=self.debt,
            budget=self.budget,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions(ModelOptions):
    """A pair, the rule it decodes by and where its steps run."""

    rule: RuleOptions = field(default_factory=RuleOptions)
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where both models have one tokenizer."""
    byte: ByteSettings = field(default_factory=ByteSettings)
    """Of the byte level."""
    engine: EngineName = "auto"
    """eager looks at every token on the host; device keeps steps there; auto chooses."""
    speculate: Speculate = "off"
    """Tokens that the safe model drafts before one risky forward verifies them; auto chooses."""

    prompt_ratios: Path | None = None
    """File that anchored ratios wrote for the same models, settings and prompts."""

    def decoder(self) -> Decoder:
        """A decoder; the rule is checked before the models are loaded."""
        rule = self.rule.make()
        return Decoder(
            self.pair(),
            rule,
            level=self.level,
            engine=self.engine,
            speculate=self.speculate,
            byte_settings=None if self.byte == ByteSettings() else self.byte,
            prompt_ratios=PromptRatios.load(self.prompt_ratios) if self.prompt_ratios else None,
        )
