"""Metrics of a run: one JSON line a logged step in the dump folder, and a progress bar."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.distributed import ParallelDims
from tqdm import tqdm

from .job_config import JobConfig

METRICS_NAME = "metrics.jsonl"


class RunMetrics(MetricsProcessor):
    """Adds to torchtitan's log: metrics.jsonl holds each logged step once, in order.

    A resumed run continues the file after the step it resumes from, so that the file is one
    curve however often the run was interrupted. Only the first process writes.
    """

    def __init__(
        self, job_config: JobConfig, parallel_dims: ParallelDims, model_args: Any = None
    ) -> None:
        super().__init__(job_config, parallel_dims)
        self._path = Path(job_config.job.dump_folder) / METRICS_NAME
        self._is_writer = dist.get_rank() == 0
        self._bar: tqdm | None = None

    def start(self, step: int, *, tokens_per_step: int) -> None:
        """Begin after `step`, with `tokens_per_step` tokens over all processes."""
        self._tokens_per_step = tokens_per_step
        self._start_time = self._last_time = time.perf_counter()
        self._last_step = step
        if self._is_writer:
            keep_metrics_until(self._path, step)
            self._bar = tqdm(
                total=self.job_config.training.steps,
                initial=step,
                desc=Path(self.job_config.job.dump_folder).name,
                unit="step",
                file=sys.stderr,
            )

    def should_log(self, step: int) -> bool:
        """Also the last step, so that every curve ends where training does."""
        return super().should_log(step) or step == self.job_config.training.steps

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        if self._bar is None:
            return
        now = time.perf_counter()
        num_tokens = (step - self._last_step) * self._tokens_per_step
        line = {
            "step": step,
            "loss": global_avg_loss,
            "grad_norm": grad_norm,
            "lr": (extra_metrics or {})["lr"],
            "tokens": step * self._tokens_per_step,
            "tokens_per_s": num_tokens / (now - self._last_time),
            "seconds": now - self._start_time,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._bar.set_postfix_str(
            f"loss {line['loss']:.4f}, {line['tokens_per_s']:,.0f} tokens/s", refresh=False
        )
        self._bar.update(step - self._last_step)
        self._last_step, self._last_time = step, now

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        super().close()


def keep_metrics_until(path: Path, step: int) -> None:
    """Drop what a metrics file says of later steps: they are about to be trained again."""
    if not path.exists():
        return
    kept = [line for line in _complete_lines(path.read_text()) if json.loads(line)["step"] <= step]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(kept))
    partial.replace(path)


def _complete_lines(text: str) -> list[str]:
    # A process killed while writing leaves a last line without its end.
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
