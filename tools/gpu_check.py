"""Correctness and speed on this machine's GPU: anchored gpu-check --part correctness

Needs torch, triton, transformers and numpy only, so it runs from a bare checkout too:
`mkdir -p P && ln -s "$PWD" P/anchored && PYTHONPATH=P python -m anchored.tools.gpu_check`
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from anchored.eval.environment import environment_record
from anchored.tools.bench_decode import BenchDecodeConfig, decode_rows
from anchored.tools.gpu_checks.attention_checks import attention_checks
from anchored.tools.gpu_checks.byte_checks import byte_checks
from anchored.tools.gpu_checks.byte_speed import byte_timings
from anchored.tools.gpu_checks.engine_checks import engine_checks
from anchored.tools.gpu_checks.kernel_speed import kernel_timings
from anchored.tools.gpu_checks.projection_checks import projection_checks

SCHEMA = "anchored-gpu-check/1"
PARTS = ("correctness", "speed")
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
        for part in PARTS:
            self._content[part] = []

    @property
    def num_failed(self) -> int:
        return sum(row["status"] == "failed" for row in self._content["correctness"])

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Print one result and save all."""
        self._content[part].append(row)
        print("  ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text(json.dumps(self._content, indent=1) + "\n")
        partial.replace(self._path)


def run(arguments: list[str]) -> int:
    """Run the parts that were asked for; 1 if a check failed."""
    options = _options(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record = Record(options.output, device)
    start = time.perf_counter()
    if options.part in ("correctness", "all"):
        _correctness(device, record)
    if options.part in ("speed", "all"):
        for row in _speed(device):
            record.add("speed", row)
    seconds = time.perf_counter() - start
    print(f"{record.num_failed} failed; {seconds:.0f} s on {device}; results in {options.output}")
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


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="anchored gpu-check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="what to run")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/gpu-check.json"), help="results, as they come"
    )
    return parser.parse_args(arguments)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    import sys

    sys.exit(run(sys.argv[1:]))
