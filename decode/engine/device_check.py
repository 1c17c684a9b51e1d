"""A few steps on the device against the same steps from the host."""

import math
from functools import partial
from typing import Literal

import torch

from ..ledger import LedgerStep
from ..levels.level import TokenLevel
from ..models.model_pair import ModelPair
from ..rules.anchored import Anchored
from ..settings import SamplingConfig
from .device_batch import DeviceBatch
from .paired_batch import PairedBatch, decode_all
from .request import Request

PROMPT_LENGTHS = (5, 2)
NUM_STEPS = 3
TOLERANCE_NATS = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}
"""Largest difference of a step that rounding of the same batch explains, at temperature 1."""
NATS_PER_STEP = 4.0
"""A budget that lets the risky model through, so that its errors would show."""


def largest_difference(
    pair: ModelPair, divergence: Literal["kl", "max"], *, num_drafts: int
) -> tuple[float, float]:
    """(largest difference of a spend or a log-probability, what rounding explains), in nats.

    Two rows of different lengths, NUM_STEPS tokens, as far as both draw the same tokens: past a
    token at a boundary of the sampler, which rounding can decide, the rows have nothing in common.
    num_drafts: of a step on the device.
    """
    rule = Anchored(k=NATS_PER_STEP, divergence=divergence, debt="none")
    sampling = SamplingConfig(temperature=1.0)
    drafting = partial(DeviceBatch, draft_lengths=(num_drafts,))
    by_host, by_device = (
        _steps(open_batch(TokenLevel(pair), rule, sampling, num_rows=2, max_length=_max_length()))
        for open_batch in (PairedBatch, drafting)
    )
    pairs = zip(by_host, by_device, strict=True)
    error = max(_difference(host, device) for host, device in pairs)
    return error, TOLERANCE_NATS[pair.dtype]


def _max_length() -> int:
    return max(PROMPT_LENGTHS) + NUM_STEPS


def _steps(batch: PairedBatch) -> list[list[LedgerStep]]:
    """Of each request, in order."""
    vocab_size = batch.pair.vocab_size
    requests = [
        Request(
            prompt_token_ids=[(7 * place + 3 * row + 2) % vocab_size for place in range(length)],
            max_new_tokens=NUM_STEPS,
            seed=row,
            index=row,
        )
        for row, length in enumerate(PROMPT_LENGTHS)
    ]
    finished = {state.request.index: state.steps for state in decode_all(batch, requests)}
    return [finished[request.index] for request in requests]


def _difference(by_host: list[LedgerStep], by_device: list[LedgerStep]) -> float:
    """Infinite where only one of them could go on after the same tokens."""
    error = 0.0
    for host, device in zip(by_host, by_device, strict=False):
        error = max(error, abs(host.spend - device.spend))
        if host.token_id != device.token_id:
            return error
        error = max(error, abs(host.log_prob - device.log_prob))
        assert host.safe_log_prob is not None and device.safe_log_prob is not None
        error = max(error, abs(host.safe_log_prob - device.safe_log_prob))
    return error if len(by_host) == len(by_device) else math.inf
