"""Continue a prompt: anchored generate --safe A --risky B --prompt "Once" --rule.k 1.5"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from anchored import Generation
from anchored.decode.sampling_config import SamplingConfig

from .model_options import is_first_process
from .pair_options import PairOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(PairOptions):
    """The text goes to stdout; what it spent is one line on stderr."""

    prompt: str
    """Text to continue."""
    max_new_tokens: int = 200
    """Horizon of the budget: K = k * max_new_tokens."""
    max_new_bytes: int | None = None
    """Horizon at byte level; 4 * max_new_tokens unless given."""
    seed: int = 0
    """The same seed gives the same text."""
    stop: tuple[str, ...] = ()
    """Texts at which to cut."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Warpers of both models."""
    ledger: Path | None = None
    """File for the ledger (JSON lines), to be checked by anchored verify."""


def run(config: GenerateConfig) -> int:
    """Generate and print; returns the exit status."""
    decoder = config.decoder()
    (result,) = decoder.generate(
        config.prompt,
        max_new_tokens=config.max_new_tokens,
        max_new_bytes=config.max_new_bytes,
        seed=config.seed,
        stop=config.stop,
        **config.sampling.as_dict(),
    )
    if result.error:
        raise ValueError(result.error)
    if is_first_process():
        _report(result, config.ledger)
    return 0


def _report(result: Generation, ledger: Path | None) -> None:
    print(result.text)
    print(result, file=sys.stderr)
    if ledger is not None:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        result.ledger.save(ledger)
