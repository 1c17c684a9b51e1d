"""Both models read a batch of prompts once: caches, last logits and the ratios behind the debt."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .model_pair import ModelPair
from .prefix_debt import log_likelihood_ratios
from .stream import ModelStream


@dataclass(frozen=True, slots=True)
class PromptReading:
    """What is known after the prompts, before the first new token."""

    streams: dict[str, ModelStream]
    """By "safe" and "risky"."""
    logits: dict[str, Tensor]
    """(batch, vocab_size), raw, after the last prompt token."""
    ratios: list[Tensor]
    """Per row (num_positions,) float64 log p_r - log p_s of tokens 1.., special ones left out."""
    broken_models: list[str]
    """Per row the model whose logits over the prompt are no distribution, "" for none."""
    seen: Tensor
    """(batch, vocab_size) bool on the safe model's device: tokens that occur in the prompt."""


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(token_ids, mask), both (batch, longest) int64; padding is token 0 with mask 0."""
    width = max(len(prompt) for prompt in prompts)
    token_ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    for row, prompt in enumerate(prompts):
        token_ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return token_ids, mask


def read_prompts(pair: ModelPair, prompts: list[list[int]]) -> PromptReading:
    """Prefill both models with prompts of any lengths; no (L, V) logits are ever held."""
    token_ids, mask = left_padded(prompts)
    streams, logits, log_probs = {}, {}, {}
    for name, model in pair.models.items():
        streams[name] = ModelStream(model, len(prompts), pair.vocab_size)
        logits[name], log_probs[name] = _read(streams[name], token_ids, mask)
    counted = _counted_positions(pair, token_ids, mask)
    ratios = log_likelihood_ratios(log_probs["risky"], log_probs["safe"])
    return PromptReading(
        streams=streams,
        logits=logits,
        ratios=[row[keep & ~row.isnan()] for row, keep in zip(ratios, counted, strict=True)],
        broken_models=_broken_models(log_probs, mask),
        seen=_seen(token_ids, mask, pair.vocab_size).to(pair.safe.device),
    )


def _read(stream: ModelStream, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(last logits (batch, vocab_size), log-probabilities of tokens 1.. (batch, columns - 1))."""
    gathered = []
    for start, logits in stream.feed_in_chunks(token_ids, mask):
        targets = token_ids[:, start + 1 : start + 1 + logits.shape[1]].to(logits.device)
        gathered.append(_token_log_probs(logits[:, : targets.shape[1]], targets).cpu())
    return logits[:, -1], torch.cat(gathered, dim=1)


def _token_log_probs(logits: Tensor, token_ids: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    chosen = wide.gather(-1, token_ids[..., None])[..., 0]
    return (chosen - wide.logsumexp(-1)).double()


def _counted_positions(pair: ModelPair, token_ids: Tensor, mask: Tensor) -> Tensor:
    special = torch.tensor(sorted(pair.tokenizer.all_special_ids), dtype=torch.long)
    is_token = (mask[:, 1:] == 1) & (mask[:, :-1] == 1)
    return is_token & ~torch.isin(token_ids[:, 1:], special)


def _broken_models(log_probs: dict[str, Tensor], mask: Tensor) -> list[str]:
    is_read = (mask[:, 1:] == 1) & (mask[:, :-1] == 1)
    names = [""] * mask.shape[0]
    for name, values in log_probs.items():
        for row in (values.isnan() & is_read).any(-1).nonzero()[:, 0].tolist():
            names[row] = name
    return names


def _seen(token_ids: Tensor, mask: Tensor, vocab_size: int) -> Tensor:
    counts = torch.zeros(token_ids.shape[0], vocab_size, dtype=torch.long)
    return counts.scatter_add_(1, token_ids, mask).bool()
