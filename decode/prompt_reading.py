"""Both models read prompts once: last logits and the ratios behind the debt."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .level import Level
from .prefix_debt import log_likelihood_ratios
from .stream import Stream

# R prompts.


@dataclass(frozen=True, slots=True)
class PromptReading:
    """What is known after the prompts, before the first new token."""

    logits: dict[str, Tensor]
    """By "safe" and "risky": (R, vocab_size), raw, after the last prompt token."""
    ratios: list[Tensor]
    """Per prompt (num_positions,) float64 log p_r - log p_s of symbols 1.., but special ones, in
    nats of a token."""
    errors: list[str]
    """Per prompt what is wrong with a model's logits over it, "" for nothing."""
    num_forwards: dict[str, int]
    """By model: forwards that each prompt took part in."""
    seen: Tensor
    """(R, vocab_size) bool on the safe model's device: symbols that occur in the prompt."""


def read_prompts(
    level: Level, streams: Mapping[str, Stream], prompts: list[list[int]], rows: list[int]
) -> PromptReading:
    """Prefill empty rows of both streams with prompts of any lengths."""
    read = {name: stream.read(prompts, rows) for name, stream in streams.items()}
    log_probs = {name: prompt.token_log_probs for name, prompt in read.items()}
    return PromptReading(
        logits={name: prompt.logits for name, prompt in read.items()},
        ratios=[
            _ratios(level, torch.tensor(prompt), log_probs["risky"][i], log_probs["safe"][i])
            for i, prompt in enumerate(prompts)
        ],
        errors=[
            _error({name: values[i] for name, values in log_probs.items()})
            for i in range(len(prompts))
        ],
        num_forwards={name: prompt.num_forwards for name, prompt in read.items()},
        seen=_seen(prompts, level.vocab_size).to(level.pair.safe.device),
    )


def _ratios(level: Level, prompt: Tensor, risky: Tensor, safe: Tensor) -> Tensor:
    special = torch.tensor(level.special_token_ids, dtype=torch.long)
    ratios = level.symbols_per_token * log_likelihood_ratios(risky, safe)
    return ratios[~torch.isin(prompt[1:], special) & ~ratios.isnan()]


def _error(log_probs: dict[str, Tensor]) -> str:
    broken = [name for name, values in log_probs.items() if values.isnan().any()]
    return f"the {broken[-1]} model's logits over the prompt are NaN or +inf" if broken else ""


def _seen(prompts: list[list[int]], vocab_size: int) -> Tensor:
    seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        seen[row, prompt] = True
    return seen
