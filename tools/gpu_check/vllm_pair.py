"""A pair inside vLLM on this machine's GPU: its tokens, its ledgers, and its speed."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anchored import Decoder, Ledger, ModelPair, verify
from anchored.decode.vllm.engine import check_version, open_pair
from anchored.decode.vllm.journal import journal_ledgers
from anchored.tools.bench.decode import WARPERS
from anchored.tools.bench.options import LLAMA_3_VOCAB_SIZE
from anchored.tools.bench.options import Shape as ModelShape
from anchored.tools.bench.random_inputs import (
    ordinary_words,
    random_pair,
    random_prompts,
    saved_pair,
)

from .check import Check, Sizes
from .pair_decoding import NEW_TOKENS, PROMPT_TOKENS, RULE, Generate, generated, generation_speed
from .vllm_requests import MixedRequest, mixed_requests

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRITON_F32_DEFAULT": "ieee",  # attention in TF32 would draw other tokens than the Decoder
}
CHECKED_ENGINE = {
    "dtype": "float32",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "gpu_memory_utilization": 0.3,
    "disable_log_stats": False,
}
"""Prompts are read in chunks, requests wait for others; graphs and scheduling as by default."""
CHECKED_CONTEXT = 256
SPREAD = 0.06
"""Deviation of the checked models' weights: budgets bind, and no attention is sharp."""
REQUESTS_PER_EVENT = 20
BATCH_SIZES = (1, 16, 64)
TIMED_ENGINE = {
    "max_num_seqs": max(BATCH_SIZES),
    "enable_prefix_caching": False,  # the same prompts come again
    "gpu_memory_utilization": 0.85,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What happens to the requests of a check beside being drawn."""

    engine: dict[str, Any] = field(default_factory=dict)
    num_drafts: int = 0
    lengths: tuple[int, ...] = (1, 5, 12, 30)
    event: str = ""
    """vLLM's counter of what must happen once in REQUESTS_PER_EVENT requests; "" for nothing."""


KINDS = {
    "mixed requests": Kind(),
    "drafts": Kind(num_drafts=2, event="vllm:spec_decode_num_accepted_tokens"),
    "preemptions": Kind(
        engine={"num_gpu_blocks_override": 18, "enable_prefix_caching": False},
        lengths=(30, 60),
        event="vllm:num_preemptions",
    ),
}


def absence() -> str:
    """Why nothing can run inside vLLM here; "" where it can."""
    try:
        check_version()
    except ImportError as reason:
        return str(reason)
    return ""


def same_as_decoder(name: str, device: torch.device, sizes: Sizes) -> Check:
    """Tokens of mixed requests are the Decoder's on the same device, and their ledgers verify.

    Float32 models, so one request of all may meet a boundary of the sampler that rounding decides.
    """
    kind = KINDS[name]
    logging.getLogger("anchored.decode").setLevel(
        logging.ERROR
    )  # of debts above budgets, here meant
    with TemporaryDirectory() as root:
        folders = checked_folders(Path(root), sizes)
        pair = ModelPair.from_pretrained(*folders, dtype="float32", device=str(device))
        requests = _requests(kind, pair, sizes)
        journal = Path(root) / "journal"
        arguments = _checked_arguments(kind, folders[0], device)
        with opened(partial(open_pair, *folders, ledgers=journal, **arguments)) as llm:
            tokens = _generated_by(llm, requests)
            num_events = _count(llm, kind.event) if kind.event else 0
        ledgers = [ledger for _, ledger in journal_ledgers(journal)]
    is_enough = not kind.event or num_events >= max(1, len(requests) // REQUESTS_PER_EVENT)
    check = _compared(pair, requests, tokens, ledgers)
    happened = f"; {kind.event} {num_events}" if kind.event else ""
    return Check(passed=check.passed and is_enough, detail=check.detail + happened)


def checked_folders(root: Path, sizes: Sizes) -> tuple[Path, Path]:
    pair = random_pair(
        *sizes.pair_shapes,
        vocab_size=sizes.vocab_size,
        context_length=CHECKED_CONTEXT,
        dtype=torch.float32,
        initializer_range=SPREAD,
    )
    return saved_pair(pair, root)


def _requests(kind: Kind, pair: ModelPair, sizes: Sizes) -> list[MixedRequest]:
    return mixed_requests(
        pair.tokenizer,
        ordinary_words(sizes.vocab_size),
        sizes.num_mixed,
        stop="7",
        lengths=kind.lengths,
        min_p=0.0 if kind.num_drafts else 0.02,  # vLLM refuses it beside drafts
    )


def _checked_arguments(kind: Kind, safe: Path, device: torch.device) -> dict[str, Any]:
    arguments = {**CHECKED_ENGINE, **kind.engine, "enforce_eager": device.type == "cpu"}
    if kind.num_drafts:
        arguments["speculative_config"] = {
            "model": str(safe),
            "method": "draft_model",
            "num_speculative_tokens": kind.num_drafts,
        }
    return arguments


@contextmanager
def opened(make: Callable[[], Any]) -> Iterator[Any]:
    """An engine of vLLM, its processes and its memory gone afterwards."""
    os.environ |= ENVIRONMENT
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = make()
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def _generated_by(llm: Any, requests: list[MixedRequest]) -> list[list[int]]:
    outputs = llm.generate(
        [{"prompt_token_ids": request.prompt} for request in requests],
        [request.params() for request in requests],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def _count(llm: Any, counter: str) -> int:
    return sum(metric.value for metric in llm.get_metrics() if metric.name == counter)


def _compared(
    pair: ModelPair, requests: list[MixedRequest], tokens: list[list[int]], ledgers: list[Ledger]
) -> Check:
    own = [request.decoded(pair).token_ids for request in requests]
    num_equal = sum(a == b for a, b in zip(own, tokens, strict=True))
    reports = [verify(ledger, pair) for ledger in ledgers]
    num_verified = sum(report.is_ok for report in reports)
    num_within = sum(ledger.certified and ledger.is_within_bound for ledger in ledgers)
    count = len(requests)
    return Check(
        passed=num_equal >= count - 1 and len(ledgers) == num_verified == num_within == count,
        detail=f"{num_equal} of {count} equal to the Decoder's, {num_verified} ledgers verify, "
        f"{num_within} within; {sum(map(len, tokens))} tokens",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTiming:
    """One engine at one batch size, medians over runs; weights are random."""

    batch_size: int
    engine: str
    first_token_ms: float
    """Prompts of PROMPT_TOKENS tokens and one step."""
    tokens_per_s: float
    """After the first token, all requests together."""
    over_risky: float
    """As a share of the risky model's alone in vLLM."""


def engine_timings(
    device: torch.device,
    shapes: tuple[ModelShape, ModelShape],
    vocab_size: int = LLAMA_3_VOCAB_SIZE,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
) -> Iterator[EngineTiming]:
    """The risky model alone in vLLM, the pair there, then the pair in our own engine; bfloat16."""
    alone: dict[int, float] = {}
    with TemporaryDirectory() as root:
        folders = _timed_folders(Path(root), shapes, vocab_size, device)
        for name, engine in _engines(folders, device).items():
            with engine as generate:
                for batch_size in batch_sizes:
                    prompts = random_prompts(batch_size, PROMPT_TOKENS, vocab_size)
                    first_s, speed = generation_speed(generate, prompts, str(device))
                    yield EngineTiming(
                        batch_size=batch_size,
                        engine=name,
                        first_token_ms=1e3 * first_s,
                        tokens_per_s=speed,
                        over_risky=speed / alone.setdefault(batch_size, speed),
                    )


def _timed_folders(
    root: Path, shapes: tuple[ModelShape, ModelShape], vocab_size: int, device: torch.device
) -> tuple[Path, Path]:
    """Models are made on the device, where it takes seconds, and leave it."""
    length = 2 * (PROMPT_TOKENS + NEW_TOKENS)
    folders = saved_pair(
        random_pair(*shapes, vocab_size=vocab_size, context_length=length, device=str(device)), root
    )
    gc.collect()
    torch.cuda.empty_cache()
    return folders


def _engines(
    folders: tuple[Path, Path], device: torch.device
) -> dict[str, AbstractContextManager[Generate]]:
    arguments = {**TIMED_ENGINE, "dtype": "bfloat16", "enforce_eager": device.type == "cpu"}
    return {
        "vLLM, risky alone": _risky_alone(folders[1], arguments),
        "vLLM": _pair_in_vllm(folders, arguments),
        "ours": _pair_in_ours(folders, device),
    }


@contextmanager
def _risky_alone(folder: Path, arguments: dict[str, Any]) -> Iterator[Generate]:
    def make() -> Any:
        from vllm import LLM

        return LLM(model=str(folder), **arguments)

    sampling = {"temperature": WARPERS["temperature"], "ignore_eos": True}
    with opened(make) as llm:
        yield partial(_timed_by, llm, sampling)


@contextmanager
def _pair_in_vllm(folders: tuple[Path, Path], arguments: dict[str, Any]) -> Iterator[Generate]:
    own = {**arguments, "default_k": RULE.k, "debt": RULE.debt}
    with opened(partial(open_pair, *folders, **own)) as llm:
        yield partial(_timed_by, llm, WARPERS)


def _timed_by(
    llm: Any, sampling: dict[str, Any], prompts: list[list[int]], num_tokens: int
) -> object:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=num_tokens, **sampling)
    return llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )


@contextmanager
def _pair_in_ours(folders: tuple[Path, Path], device: torch.device) -> Iterator[Generate]:
    pair = ModelPair.from_pretrained(*folders, device=str(device))
    decoders: dict[int, Decoder] = {}

    def generate(prompts: list[list[int]], num_tokens: int) -> object:
        size = len(prompts)
        if size not in decoders:
            decoders[size] = Decoder(pair, RULE, batch_size=size)
        return generated(decoders[size], prompts, num_tokens)

    yield generate
