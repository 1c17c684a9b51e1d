"""A few steps on the device against the same steps from the host."""

import math

import torch

from ..ledger import LedgerStep
from ..levels.level import TokenLevel
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


def largest_difference(batch: DeviceBatch) -> tuple[float, float]:
    """(largest difference of a spend or a log-probability, what rounding explains), in nats.

    Two texts of different lengths, in two rows where the batch has them, NUM_STEPS tokens with each
    of its draft lengths, as far as both engines draw the same tokens: past a token at a boundary of
    the sampler, which rounding can decide, the texts have nothing in common.
    batch: empty, and so again afterwards.
    """
    pair, level = batch.pair, TokenLevel(batch.pair)
    rule = Anchored(k=NATS_PER_STEP, divergence=batch.rule.divergence, debt="none")
    sampling = SamplingConfig(temperature=1.0)
    length = max(PROMPT_LENGTHS) + NUM_STEPS
    by_host = _steps(PairedBatch(level, rule, sampling, num_rows=2, max_length=length))
    error = 0.0
    for num_drafts in batch.draft_lengths:
        with batch.trial(level, rule, num_drafts):
            pairs = zip(by_host, _steps(batch), strict=True)
            error = max(error, *(_difference(host, device) for host, device in pairs))
    return error, TOLERANCE_NATS[pair.dtype]


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
