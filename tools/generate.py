"""Continue a prompt: anchored generate --safe A --risky B --prompt "Once" --rule.k 1.5"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from anchored import Generation, Ledger
from anchored.decode.sampling_config import SamplingConfig

from .model_options import is_first_process
from .pair_options import PairOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(PairOptions):
    """The text goes to stdout; what it spent is one line on stderr."""

    prompt: str | None = None
    """Text to continue."""
    continue_from: Path | None = None
    """Ledger of a generation that reached its length, to go on from in place of a prompt."""
    num_return_sequences: int = 1
    """Samples of the prompt, drawn independently; their bounds add up."""
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
    """File for the ledger (JSON lines), to be checked by anchored verify; of several samples,
    NAME-0.jsonl and so on."""


def run(config: GenerateConfig) -> int:
    """Generate and print; returns the exit status."""
    if (config.prompt is None) == (config.continue_from is None):
        raise ValueError("give either --prompt or --continue-from")
    earlier = Ledger.load(config.continue_from) if config.continue_from else None
    results = config.decoder().generate(
        () if config.prompt is None else config.prompt,
        continue_from=earlier,
        num_return_sequences=config.num_return_sequences,
        max_new_tokens=config.max_new_tokens,
        max_new_bytes=config.max_new_bytes,
        seed=config.seed,
        stop=config.stop,
        **config.sampling.as_dict(),
    )
    for result, ledger in zip(results, _ledger_paths(config), strict=True):
        if is_first_process() and not result.error:
            _report(result, ledger)
    if errors := [result.error for result in results if result.error]:
        raise ValueError(errors[0])
    return 0


def _ledger_paths(config: GenerateConfig) -> list[Path | None]:
    path, count = config.ledger, config.num_return_sequences
    if path is None or count == 1:
        return [path] * count
    return [path.with_stem(f"{path.stem}-{sample}") for sample in range(count)]


def _report(result: Generation, ledger: Path | None) -> None:
    print(result.text)
    print(result, file=sys.stderr)
    if ledger is not None:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        result.ledger.save(ledger)
