"""Checks of whole decoding: batches, ledgers and their replay, on tiny random models."""

from collections.abc import Iterator
from itertools import cycle, islice

import torch

from anchored import Anchored, Decoder, Generation, ModelPair, verify
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import EngineName, Speculate
from anchored.tools.random_pair import random_pair

from .check import Check, skipped

VOCAB_SIZE = 2048
NUM_REQUESTS = 9
NUM_NEW_TOKENS = 12
LENGTHS = (3, 17, 40)
"""Prompt tokens, in turn, so that rows differ and join and leave."""


def engine_checks(device: torch.device) -> Iterator[Check]:
    """Both divergences: the same tokens in any batch and engine, within the bound, verified."""
    pair = _pair(torch.float64, device)
    for rule in (Anchored(k=0.5), Anchored(k=0.5, divergence="max")):
        yield same_in_any_batch(pair, rule)
        yield ledgers_verify(pair, rule)
        for num_drafts in (0, 3):
            yield same_in_any_engine(rule, device, num_drafts)


def same_in_any_batch(pair: ModelPair, rule: Rule) -> Check:
    """Tokens of a request are the same alone and beside others (float64 models)."""
    alone, together = (_generate(pair, rule, batch_size) for batch_size in (1, 4))
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True))
    return Check(
        name=f"{rule.name}: tokens do not depend on the batch",
        passed=num_equal == NUM_REQUESTS,
        detail=f"{num_equal} of {NUM_REQUESTS} requests equal at batch 1 and 4",
    )


def ledgers_verify(pair: ModelPair, rule: Rule) -> Check:
    """Every ledger stays within its bound, and a replay agrees with the first of them."""
    results = _generate(pair, rule, batch_size=4)
    num_within = sum(result.ledger.is_within_bound for result in results)
    report = verify(results[0].ledger, pair)
    return Check(
        name=f"{rule.name}: ledgers stay within their bound and verify",
        passed=num_within == NUM_REQUESTS and report.is_ok,
        detail=f"{num_within} of {NUM_REQUESTS} within; {report}",
    )


def same_in_any_engine(rule: Rule, device: torch.device, num_drafts: int) -> Check:
    """Steps captured in a CUDA graph draw the tokens of eager ones, and their ledgers verify.

    The eager ones are plain, whatever those in the graph draft.

    Float32 models, so one request of all may meet a boundary of the sampler that rounding decides.
    """
    name = f"{rule.name}: a captured step with {num_drafts} drafts draws the tokens of an eager one"
    if device.type != "cuda":
        return skipped(name, "needs CUDA")
    pair = _pair(torch.float32, device)
    eager = _generate(pair, rule, 4)
    captured = _generate(pair, rule, 4, "device", num_drafts or "off")
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(eager, captured, strict=True))
    reports = [verify(result.ledger, pair) for result in captured]
    num_verified = sum(report.is_ok for report in reports)
    return Check(
        name=name,
        passed=num_equal >= NUM_REQUESTS - 1 and num_verified == NUM_REQUESTS,
        detail=f"{num_equal} of {NUM_REQUESTS} equal, {num_verified} verify; {reports[0]}",
    )


def _pair(dtype: torch.dtype, device: torch.device) -> ModelPair:
    return random_pair(
        "tiny",
        "small",
        vocab_size=VOCAB_SIZE,
        context_length=128,
        dtype=dtype,
        device=str(device),
    )


def _generate(
    pair: ModelPair,
    rule: Rule,
    batch_size: int,
    engine: EngineName = "eager",
    speculate: Speculate = "off",
) -> list[Generation]:
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
        for length in islice(cycle(LENGTHS), NUM_REQUESTS)
    ]
    decoder = Decoder(pair, rule, batch_size=batch_size, engine=engine, speculate=speculate)
    return decoder.generate(prompts, max_new_tokens=NUM_NEW_TOKENS, seed=list(range(NUM_REQUESTS)))
