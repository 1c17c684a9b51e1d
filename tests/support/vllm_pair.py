"""A pair inside vLLM next to the Decoder: the same tokens, and ledgers that verify."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm_requests import KL, MixedRequest, mixed_requests, run

import anchored
from anchored import Anchored, ModelPair, Pathwise, verify
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.bench.inputs import ordinary_words, random_pair

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRITON_F32_DEFAULT": "ieee",  # attention in TF32 would draw other tokens than the Decoder
}
ENGINE = {
    "dtype": "float32",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "gpu_memory_utilization": 0.3,
    "disable_log_stats": False,
}
"""Prompts are read in chunks, requests wait for others; graphs and scheduling as by default."""
REQUESTS_PER_EVENT = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Events that befall requests besides being drawn."""

    rule: Anchored | Pathwise = KL
    engine: dict[str, Any] = field(default_factory=dict)
    num_drafts: int = 0
    lengths: tuple[int, ...] = (1, 5, 12, 30)
    event: str = ""
    """vLLM's counter of what must happen once in REQUESTS_PER_EVENT requests; "" for nothing."""


DRAFTS = "vllm:spec_decode_num_accepted_tokens"
FEW_BLOCKS: dict[str, Any] = {
    "engine": {"num_gpu_blocks_override": 18, "enable_prefix_caching": False},
    "lengths": (30, 60),
    "event": "vllm:num_preemptions",
}
KINDS = {
    "mixed requests": Kind(),
    "drafts": Kind(num_drafts=2, event=DRAFTS),
    "preemptions": Kind(**FEW_BLOCKS),
    "pathwise, drafts": Kind(rule=Pathwise(), num_drafts=4, event=DRAFTS),
    "pathwise, preemptions": Kind(rule=Pathwise(), **FEW_BLOCKS),
    # 1 to 3 tokens: slots are taken and left at every step, and most budgets are not yet free.
    "short requests": Kind(lengths=(1, 1, 2, 3)),
}


def assert_same_as_decoder(
    name: str,
    root: Path,
    device: torch.device,
    *,
    shapes: tuple[str, str],
    vocab_size: int,
    num_requests: int,
    num_apart: int,
) -> None:
    """Tokens of mixed requests are the Decoder's on the same device, and all ledgers verify.

    root: takes models and ledgers. num_apart: requests that may differ, as models are in float32
    and a boundary of the sampler may be decided by rounding.
    """
    kind = KINDS[name]
    folders = saved_pair(root, shapes, vocab_size)
    pair = ModelPair.from_pretrained(*folders, dtype="float32", device=str(device))
    requests = mixed_requests(
        pair.tokenizer,
        ordinary_words(vocab_size),
        num_requests,
        stop="7",
        lengths=kind.lengths,
        rule=kind.rule,
    )
    arguments = {**ENGINE, **kind.engine, "enforce_eager": device.type == "cpu"}
    if kind.num_drafts:
        arguments["speculative_config"] = {
            "model": str(folders[0]),
            "method": "draft_model",
            "num_speculative_tokens": kind.num_drafts,
        }
    journal = root / "journal"
    with opened(folders, rule=kind.rule, ledgers=journal, **arguments) as decoder:
        ended = run(decoder.llm, requests, last_join=1)
        metrics = decoder.llm.get_metrics()
    num_events = sum(each.value for each in metrics if each.name == kind.event)
    if kind.event:
        assert num_events >= max(1, num_requests // REQUESTS_PER_EVENT)
    assert len(ended) == num_requests
    check_texts(requests, ended, pair, journal, num_apart=num_apart)


def check_texts(
    requests: list[MixedRequest],
    ended: dict[int, list[int]],
    pair: ModelPair,
    journal: Path,
    *,
    num_apart: int = 0,
) -> None:
    """Tokens are the Decoder's but for some texts, and all ledgers of the journal verify."""
    apart = [n for n, tokens in ended.items() if requests[n].decoded(pair).token_ids != tokens]
    assert len(apart) <= num_apart, apart
    ledgers = dict(journal_ledgers(journal))
    assert {str(index) for index in ended} <= ledgers.keys()
    gives_back = any(step.spend < 0.0 for ledger in ledgers.values() for step in ledger.steps)
    assert gives_back is (requests[0].rule.name == "pathwise")
    assert all(ledger.certified and ledger.is_within_bound for ledger in ledgers.values())
    reports = verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []


def saved_pair(root: Path, shapes: tuple[str, str], vocab_size: int) -> tuple[Path, Path]:
    """Folders of a float32 pair of random weights, each with the tokenizer."""
    pair = random_pair(
        *shapes,
        vocab_size=vocab_size,
        context_length=256,
        dtype=torch.float32,
        initializer_range=0.06,  # budgets bind, and no attention is sharp
    )
    folders = root / "safe", root / "risky"
    for folder, model in zip(folders, pair.models.values(), strict=True):
        model.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
    return folders


@contextmanager
def opened(folders: tuple[Path, Path], **arguments: Any) -> Iterator[Any]:
    """A decoder inside vLLM; the engine's processes and its memory are gone afterwards."""
    os.environ.update(ENVIRONMENT)
    from vllm.distributed import cleanup_dist_env_and_memory

    decoder = anchored.vllm.open_pair(*folders, **arguments)
    try:
        yield decoder
    finally:
        decoder.llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
