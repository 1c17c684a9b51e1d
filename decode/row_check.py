"""Rows of different lengths against the plain forward: run once, when a model is loaded."""

import logging
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .output_layer import OutputLayer
from .row_attention import RowAttention, row_attention
from .row_stream import RowStream

logger = logging.getLogger(__name__)

LENGTHS = (7, 4)
"""Tokens of the two rows that are compared; the last two of the first and one of the second are
fed after the prompt."""


def checked_row_attention(model: PreTrainedModel, name: str) -> RowAttention | None:
    """How rows of this model share a forward; None, with one log line, where they cannot."""
    try:
        attention = row_attention(model)
    except ValueError as reason:
        logger.warning("the %s model decodes in whole batches: %s", name, reason)
        return None
    error, tolerance = largest_error(model, attention)
    if error <= tolerance:
        return attention
    logger.warning(
        "the %s model decodes in whole batches: with rows its logits are off by %.2g "
        "(%.2g allowed)",
        name,
        error,
        tolerance,
    )
    return None


@torch.inference_mode()
def largest_error(model: PreTrainedModel, attention: RowAttention) -> tuple[float, float]:
    """(largest difference of logits, difference that rounding explains): sqrt(eps) of the largest.

    The wrong masks that transformers accepts silently are off by far more.
    """
    vocab_size = model.config.vocab_size
    texts = [_text(row, length, vocab_size) for row, length in enumerate(LENGTHS)]
    plain = [model(text[None].to(model.device), use_cache=False).logits[0] for text in texts]
    pairs = list(_row_logits(model, attention, texts, plain))
    error = max(_difference(actual, expected) for actual, expected in pairs)
    scale = max(1.0, *(expected.nan_to_num().abs().max().item() for _, expected in pairs))
    return error, scale * math.sqrt(torch.finfo(model.dtype).eps)


def _row_logits(
    model: PreTrainedModel, attention: RowAttention, texts: list[Tensor], plain: list[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(by rows, plain): after prompts, after ragged columns, after one row was rolled back."""
    first, second = texts
    stream = RowStream(
        model,
        attention,
        num_rows=2,
        max_length=sum(LENGTHS),
        output=OutputLayer(model, len(plain[0][0])),
    )
    prompts = [first[:-2].tolist(), second[:-1].tolist()]
    read = stream.read(prompts, [0, 1])
    yield read.logits[0], plain[0][-3]
    yield read.logits[1], plain[1][-2]
    columns = torch.stack([first[-2:], second[-1:].expand(2)])
    fed = stream.feed(columns, torch.tensor([[1, 1], [1, 0]]))
    yield fed[0], plain[0][-2:]
    yield fed[1, 0], plain[1][-1]
    stream.roll_back(0, LENGTHS[0] - 1)
    again = stream.feed(columns[:, -1:], torch.tensor([[1], [0]]))
    yield again[0, 0], plain[0][-1]


def _text(row: int, length: int, vocab_size: int) -> Tensor:
    return (torch.arange(length) * 7 + 3 * row + 2) % vocab_size


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; NaN at the same place is none."""
    return (actual.nan_to_num() - expected.nan_to_num()).abs().max().item()
