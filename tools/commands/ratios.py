"""The command that keeps what prompts owe in a file."""

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import UseAppendAction

from .files import check_outputs, json_nats
from .options import PairOptions, is_first_process


@dataclass(frozen=True, kw_only=True, slots=True)
class RatiosConfig(PairOptions):
    """What prompts owe: anchored ratios --safe A --risky B --prompt "To be" --output to.safetensors

    Writes the log-likelihood ratios of prompts and prints a line of JSON for each.
    """

    prompt: UseAppendAction[tuple[str, ...]]
    """Text whose debt generate and score will ask for; give it again for more."""
    output: Path
    """File for --prompt-ratios of these commands."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        PairOptions.__post_init__(self)
        if not self.prompt:
            raise ValueError("give at least one --prompt")


def run(config: RatiosConfig) -> int:
    """Compute, save and print; returns the exit status."""
    from anchored.decode.rules.prefix_debt import prefix_debt

    check_outputs(config.output, overwrite=config.overwrite)
    decoder = config.decoder()
    ratios = decoder.prompt_ratios(list(config.prompt))
    if is_first_process():
        config.output.parent.mkdir(parents=True, exist_ok=True)
        ratios.save(config.output)
        for prompt in config.prompt:
            own = ratios.of(decoder.level.encode(prompt))
            debt = prefix_debt(own, mode=config.rule.debt, window=config.rule.debt_window)
            row = {"prompt": prompt, "num_positions": len(own), "debt": json_nats(debt)}
            print(json.dumps(row))
    return 0
