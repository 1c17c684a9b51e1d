"""Very many short requests through a pair in vLLM: what they spend, and what the engine keeps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anchored import Ledger, ModelPair, verify
from anchored.decode.vllm.engine import open_pair
from anchored.decode.vllm.journal import journal_ledgers
from anchored.tools.bench.random_inputs import ordinary_words

from .check import Check, Sizes
from .vllm_pair import CHECKED_ENGINE, checked_folders, opened
from .vllm_requests import MixedRequest, mixed_requests

NUM_SLOTS = 256
ENGINE: dict[str, Any] = {
    **CHECKED_ENGINE,
    "max_num_seqs": NUM_SLOTS,
    "max_num_batched_tokens": 4096,
}
LENGTHS = (1, 1, 2, 3)
LONGEST_PROMPT = 12
NUM_WAVES = 20
"""Calls of `generate`: memory is looked at after each."""
WARM_UP = 0.25
"""Share of the requests after which memory may not grow."""
MOST_GROWN_MIB = 64
NUM_VERIFIED = 2000

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wave:
    """What stood where after a call."""

    requests: int
    """So far."""
    tokens: int
    per_s: float
    """Requests of this call a second."""
    front_mib: float
    """Resident memory of this process."""
    engine_mib: float
    """Of its children: the engine's processes, where it has processes of its own."""
    state_mib: float
    """Tensors of the slots."""
    in_slots: int
    """Requests that the engine knows of."""
    parked: int
    """Requests that left their slots and may come back."""

    def __str__(self) -> str:
        return "  ".join(f"{value:>10g}" for value in _rounded(self))


def _rounded(wave: Wave) -> Iterator[float]:
    return (round(value, 1) for value in asdict(wave).values())


HEADINGS = "  ".join(f"{name:>10}" for name in Wave.__dataclass_fields__)


def short_requests(device: torch.device, sizes: Sizes, tell: Tell = lambda line: None) -> Check:
    """Mixed requests of 1 to 3 tokens: none spends more than its bound, memory stays flat.

    Spends are added up again from the journal's ledgers, some of which are replayed by both models
    in transformers. tell: takes a line after each call of `generate`.
    """
    with TemporaryDirectory() as root:
        folders = checked_folders(Path(root), sizes)
        pair = ModelPair.from_pretrained(*folders, dtype="float32", device=str(device))
        journal = Path(root) / "journal"
        arguments = {**ENGINE, "enforce_eager": device.type == "cpu"}
        # What the engine's processes hold is asked of them by a function of ours.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        with opened(partial(open_pair, *folders, ledgers=journal, **arguments)) as llm:
            waves = list(_waves(llm, _requests(pair, sizes), tell))
        ledgers = [ledger for _, ledger in journal_ledgers(journal)]
    return _checked(pair, waves, ledgers)


def _requests(pair: ModelPair, sizes: Sizes) -> list[MixedRequest]:
    return mixed_requests(
        pair.tokenizer,
        ordinary_words(sizes.vocab_size),
        sizes.num_short,
        stop="7",
        longest=LONGEST_PROMPT,
        lengths=LENGTHS,
    )


def _waves(llm: Any, requests: list[MixedRequest], tell: Tell) -> Iterator[Wave]:
    size = -(-len(requests) // NUM_WAVES)
    num_tokens = 0
    tell(HEADINGS)
    for start in range(0, len(requests), size):
        own, begun = requests[start : start + size], time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": request.prompt} for request in own],
            [request.params() for request in own],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - begun
        for output in outputs:
            if not (output.anchored["certified"] and is_within(output.anchored)):
                raise RuntimeError(f"overspent or not certified: {output.anchored}")
        num_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
        del outputs
        wave = _looked_at(llm, start + len(own), num_tokens, len(own) / seconds)
        tell(str(wave))
        yield wave


def is_within(answer: dict[str, Any]) -> bool:
    """Whether what an answer says was spent is at most its bound."""
    spent, bound = float(answer["spent"]), float(answer["bound"])
    return spent <= bound


def _looked_at(llm: Any, num_requests: int, num_tokens: int, per_s: float) -> Wave:
    (state,) = llm.collective_rpc(state_sizes)
    return Wave(
        requests=num_requests,
        tokens=num_tokens,
        per_s=per_s,
        front_mib=resident_mib(os.getpid()),
        engine_mib=sum(map(resident_mib, _children(os.getpid()))),
        **state,
    )


def state_sizes(worker: Any) -> dict[str, float]:
    """Of the pair's state in a process of the engine."""
    state = worker.model_runner.model_state
    tensors = [own for own in vars(state.slots).values() if isinstance(own, torch.Tensor)]
    return {
        "state_mib": sum(own.numel() * own.element_size() for own in tensors) / 2**20,
        "in_slots": len(state._requests),
        "parked": len(state._parked),
    }


def resident_mib(process: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    own = [int(child) for thread in threads for child in thread.read_text().split()]
    return [*own, *(below for child in own for below in _children(child))]


def _checked(pair: ModelPair, waves: list[Wave], ledgers: list[Ledger]) -> Check:
    count, last = waves[-1].requests, waves[-1]
    num_within = sum(own.certified and overspent(own) <= 0 for own in ledgers)
    sample = ledgers[:: -(-len(ledgers) // NUM_VERIFIED)]
    num_verified = sum(verify(own, pair).is_ok for own in sample)
    grown = grown_mib(waves)
    return Check(
        passed=len(ledgers) == num_within == count
        and num_verified == len(sample)
        and grown <= MOST_GROWN_MIB
        and last.in_slots <= NUM_SLOTS,
        detail=f"{num_within} of {count} within their bounds, {last.tokens} tokens, "
        f"{num_verified} of {len(sample)} ledgers verify; {_spends(ledgers)}; {grown:.1f} MiB more "
        f"from {_warm(waves).requests} requests to {count}, {last.in_slots} in slots, "
        f"{last.parked} parked",
    )


def overspent(ledger: Ledger) -> Fraction:
    """Nats beyond the bound, or of one step beyond what k, K and the debt left it; exact.

    By the definitions, in fractions, and by nothing that decoding uses.
    """
    header = ledger.header
    if not math.isfinite(header.debt):
        return sum((Fraction(step.spend) for step in ledger.steps), Fraction(0))
    k, total, debt = Fraction(header.k), Fraction(header.K), Fraction(header.debt)
    spent, most = Fraction(0), Fraction(-1)
    for step in ledger.steps:
        spent += Fraction(step.spend)
        left = max(Fraction(0), min(k * (step.step + 1), total) - debt)
        most = max(most, spent - left)
    return most


def _spends(ledgers: list[Ledger]) -> str:
    bounds = [own.header.bound for own in ledgers]
    spent = [math.fsum(step.spend for step in own.steps) for own in ledgers]
    num_bound = sum(bound > 0.0 for bound in bounds)
    num_whole = sum(s > 0.999 * b > 0.0 for s, b in zip(spent, bounds, strict=True))
    return (
        f"{sum(spent):.1f} of {sum(bounds):.1f} nats spent, {num_bound} bounds above 0, "
        f"{num_whole} of them spent to 99.9 %"
    )


def grown_mib(waves: list[Wave]) -> float:
    """Resident memory of all processes at the end beyond that after the warm-up."""
    warm, last = _warm(waves), waves[-1]
    return last.front_mib + last.engine_mib - warm.front_mib - warm.engine_mib


def _warm(waves: list[Wave]) -> Wave:
    return waves[math.ceil(WARM_UP * len(waves)) - 1]
