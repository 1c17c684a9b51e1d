"""Logits of many requests, each warped by its repetition penalty and its temperature."""

import torch
from torch import Tensor

from .project import takes_triton

# S slots, B requests of a step, G rows of a request, R rows of logits, V vocabulary.


def seen_by_row(seen: Tensor, slots: Tensor, drafts: Tensor) -> Tensor:
    """(B, G, V) bool: the tokens of each request's text, and the drafts before each row.

    seen: (S, V) bool, of the text in each slot. slots: (B,) int64. drafts: (B, G - 1) int64, -1 for
    none; what rows after that have seen says nothing.
    """
    by_row = [seen[slots]]
    for draft in drafts.unbind(1):
        by_row.append(by_row[-1].scatter(1, draft.clamp(min=0)[:, None], True))
    return torch.stack(by_row, dim=1)


def warped_rows(
    logits: Tensor,
    index: Tensor,
    *,
    slots: Tensor,
    drafts: Tensor,
    seen: Tensor,
    penalty: Tensor,
    temperature: Tensor,
) -> Tensor:
    """(B, G, V) float32 logits, penalized and divided by the temperature of their requests.

    logits: (R, at least V), of at most 32 bits. index: (B, G) int64, the rows of each request.
    slots, drafts, seen: as for `seen_by_row`. penalty, temperature: (S,) float32.
    On a GPU one launch reads each row and writes it, and nothing waits for the device.
    Source: Keskar et al. 2019, "CTRL", section 4.1, as transformers applies it.
    """
    if takes_triton(logits.device):
        from .gpu import warp  # triton is not there on every platform

        return warp.warped_rows(logits, index, slots, drafts, seen, penalty, temperature)
    penalty, temperature = penalty[slots, None, None], temperature[slots, None, None]
    scores = logits[:, : seen.shape[1]][index].float()
    penalized = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen_by_row(seen, slots, drafts), penalized, scores) / temperature
