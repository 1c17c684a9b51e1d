"""All checks and timings of one machine's GPU, saved as they come."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from anchored.durable_files import write_durably
from anchored.eval.environment import environment_record
from anchored.tools.bench.decode import decode_rows
from anchored.tools.bench.options import BenchDecodeConfig
from anchored.tools.bench.random_inputs import random_pair

from .decoding_checks import attention_checks, byte_checks, engine_checks
from .projection_checks import projection_checks
from .speed import byte_timings, kernel_timings, round_timings

SCHEMA = "anchored-gpu-check/1"
NUM_REPLAYS = 100_000
PAIRS = (("tinycomma-1.8b", "llama-8b"), ("tinycomma-1.8b", "tinycomma-1.8b"))


class Record:
    """The results file: written anew, atomically, after every result."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._content: dict[str, Any] = {
            "schema": SCHEMA,
            "environment": environment_record(),
            "device": str(device),
        }
        self._content |= {"correctness": [], "speed": []}

    @property
    def num_failed(self) -> int:
        return sum(row["status"] == "failed" for row in self._content["correctness"])

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Print one result and save all."""
        self._content[part].append(row)
        print("  ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._path, json.dumps(self._content, indent=1) + "\n")


def check_gpu(parts: Sequence[str], output: Path) -> int:
    """Run "correctness", "speed" or both, with all results in `output`; 1 if a check failed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record = Record(output, device)
    start = time.perf_counter()
    if "correctness" in parts:
        _correctness(device, record)
    if "speed" in parts:
        for row in _speed(device):
            record.add("speed", row)
    seconds = time.perf_counter() - start
    print(f"{record.num_failed} failed; {seconds:.0f} s on {device}; results in {output}")
    return 1 if record.num_failed else 0


def _correctness(device: torch.device, record: Record) -> None:
    checks = chain(
        projection_checks(device, NUM_REPLAYS),
        attention_checks(device),
        engine_checks(device),
        byte_checks(device),
    )
    statuses = {True: "passed", False: "failed", None: "skipped"}
    start = time.perf_counter()
    for check in checks:
        seconds, start = time.perf_counter() - start, time.perf_counter()
        row = {"status": statuses[check.passed], "name": check.name, "detail": check.detail}
        record.add("correctness", {**row, "seconds": round(seconds, 2)})


def _speed(device: torch.device) -> Iterator[dict[str, Any]]:
    if device.type != "cuda":
        yield {"bench": "kernel", "status": "skipped: not measured on a GPU"}
        yield {"bench": "decode", "status": "skipped: not measured on a GPU"}
        yield {"bench": "byte", "status": "skipped: not measured on a GPU"}
        yield {"bench": "speculate", "status": "skipped: not measured on a GPU"}
        return
    for timing in kernel_timings(device):
        yield {"bench": "kernel", **asdict(timing)}
    for byte_timing in byte_timings(device):
        yield {"bench": "byte", **asdict(byte_timing)}
    for safe, risky in PAIRS:
        config = BenchDecodeConfig(
            safe=safe,  # type: ignore[arg-type]
            risky=risky,  # type: ignore[arg-type]
            new_tokens=128,
            device=str(device),
            dtype="bfloat16",
        )
        for row in decode_rows(config):
            yield {"bench": "decode", "pair": f"{safe} + {risky}", **asdict(row)}
        torch.cuda.empty_cache()
        pair = random_pair(config.safe, config.risky, dtype=torch.bfloat16, device=str(device))
        for step in round_timings(pair, config.batch_sizes):
            yield {"bench": "speculate", "pair": f"{safe} + {risky}", **asdict(step)}
        del pair
        torch.cuda.empty_cache()


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
