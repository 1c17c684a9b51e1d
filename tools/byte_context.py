"""What a byte costs behind a long context, both models included: time and peak memory."""

import ctypes
import gc
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from anchored.decode.byte.settings import ByteEvaluation
from anchored.tools.byte_pair import BytePair
from anchored.tools.byte_work import byte_streams

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ContextWork:
    """Of one text that both models have read and then gone on with."""

    num_tokens: dict[str, int]
    """Of the context, by model."""
    read_s: float
    """Reading it, log-probabilities of its bytes included."""
    byte_s: list[float]
    """Each byte behind it."""
    peak_mib: float
    """Most memory above that before."""
    stored_mib: float
    """What log-probabilities of all its tokens would take in float32, (L, V) of both models."""


def context_work(
    pair: BytePair, evaluations: Sequence[ByteEvaluation], *, num_tokens: int, num_bytes: int
) -> ContextWork:
    """Read at least `num_tokens` tokens of both tokenizers, then walk `num_bytes` bytes.

    The unseen text is repeated as often as needed. Times are one thread's own.
    """
    context = long_text(pair, num_tokens)
    rest = list(islice(cycle(pair.held_out), len(context), len(context) + num_bytes))
    lengths = {name: len(m.tokenizer.encode(_text(context)).ids) for name, m in pair.models.items()}
    before = _forget_peak()
    streams = byte_streams(pair, list(evaluations))
    start = time.thread_time()
    for stream in streams:
        stream.read([list(context)], [0])
    read_s = time.thread_time() - start
    byte_s = []
    for byte in rest:
        start = time.thread_time()
        for stream in streams:
            stream.feed_rows([0], [[byte]])
        byte_s.append(time.thread_time() - start)
    numbers = sum(length * pair.models[name].model.vocab_size for name, length in lengths.items())
    return ContextWork(lengths, read_s, byte_s, _status_mib("VmHWM") - before, 4 * numbers / MIB)


def long_text(pair: BytePair, num_tokens: int) -> bytes:
    """The least beginning, in steps, of the unseen text that has so many tokens in both models."""
    length = 0
    while True:
        length += max(50, num_tokens // 8)
        text = bytes(islice(cycle(pair.held_out), length))
        tokenizers = (model.tokenizer for model in pair.models.values())
        if all(len(each.encode(_text(text)).ids) >= num_tokens for each in tokenizers):
            return text


def _text(data: bytes) -> str:
    return data.decode(errors="ignore")


def _forget_peak() -> float:
    """MiB in use; the peak starts anew from there (proc(5))."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
