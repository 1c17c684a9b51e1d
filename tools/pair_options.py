"""Options that every command with a model pair shares."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transformers.utils.logging import disable_progress_bar

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly
from anchored.decode.rules.rule import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOptions:
    """How the next token is chosen."""

    name: Literal["anchored", "safe_only", "risky_only"] = "anchored"
    """anchored stays within a budget of the safe model; the others use one model alone."""
    k: float = 1.0
    """Nats a token; K = k * horizon."""
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
class PairOptions:
    """Two models that share a tokenizer."""

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    dtype: str = "auto"
    """auto (as stored), float32, bfloat16, float16 or float64."""
    device: str | None = None
    """cpu, cuda, cuda:0, ...; CUDA where there is one unless given."""
    rule: RuleOptions = field(default_factory=RuleOptions)

    def decoder(self) -> Decoder:
        """A decoder; the rule is checked before the models are loaded."""
        rule = self.rule.make()
        pair = load_pair(self.safe, self.risky, dtype=self.dtype, device=self.device)
        return Decoder(pair, rule)


def load_pair(safe: Path, risky: Path, *, dtype: str = "auto", device: str | None) -> ModelPair:
    """ModelPair.from_pretrained without a bar for every file of weights."""
    disable_progress_bar()
    return ModelPair.from_pretrained(safe, risky, dtype=dtype, device=device)
