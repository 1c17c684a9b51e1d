"""What prompts owe: anchored ratios --safe A --risky B --prompt "To be" --output to.safetensors"""

import json
from dataclasses import dataclass
from pathlib import Path

from anchored.decode.prefix_debt import prefix_debt

from .model_options import is_first_process
from .pair_options import PairOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class RatiosConfig(PairOptions):
    """Writes the log-likelihood ratios of prompts and prints a line of JSON for each."""

    prompt: tuple[str, ...]
    """Texts whose debts generate and score will ask for."""
    output: Path
    """File for --prompt-ratios of these commands."""


def run(config: RatiosConfig) -> int:
    """Compute, save and print; returns the exit status."""
    decoder = config.decoder()
    ratios = decoder.prompt_ratios(list(config.prompt))
    if is_first_process():
        config.output.parent.mkdir(parents=True, exist_ok=True)
        ratios.save(config.output)
        for prompt in config.prompt:
            own = ratios.of(decoder.level.encode(prompt))
            debt = prefix_debt(own, mode=config.rule.debt, window=config.rule.debt_window)
            print(json.dumps({"prompt": prompt, "num_positions": len(own), "debt": debt}))
    return 0
