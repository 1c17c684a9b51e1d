"""Metrics of a run: one JSON line a logged step in the dump folder, and a progress bar."""

import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchtitan.components.metrics import (
    BaseLogger,
    LoggerContainer,
    MetricsProcessor,
    WandBLogger,
)
from torchtitan.distributed import ParallelDims
from tqdm import tqdm

from .data_plan import DataPlan
from .flops_utilization import flops_utilization, peak_flops_per_s
from .job_config import JobConfig
from .source_usage import SourceUsage, source_usage
from .step_log import StepLog

METRICS_NAME = "metrics.jsonl"
HELDOUT_NAME = "heldout.jsonl"


class RunMetrics(MetricsProcessor):
    """Adds to torchtitan's log, TensorBoard and Weights & Biases what the data plan knows.

    metrics.jsonl holds each logged step once, in order, and heldout.jsonl each measured one: a
    resumed run continues both after the step it resumes from. Only the first process writes.
    """

    def __init__(
        self, job_config: JobConfig, parallel_dims: ParallelDims, model_args: Any = None
    ) -> None:
        super().__init__(job_config, parallel_dims)
        folder = Path(job_config.job.dump_folder)
        self._log, self._heldout_log = (
            StepLog(folder / METRICS_NAME),
            StepLog(folder / HELDOUT_NAME),
        )
        self._is_writer = dist.get_rank() == 0
        self._bar: tqdm | None = None
        self._peak_flops = peak_flops_per_s(self.device_memory_monitor.device_name)
        if self._is_writer and job_config.metrics.enable_wandb:
            require_wandb(self.logger)

    def start(self, step: int, *, plan: DataPlan, batch_size: int) -> None:
        """Begin after `step`, with `batch_size` sequences of the plan in every step."""
        self._plan, self._batch_size = plan, batch_size
        self._start_time = self._last_time = time.perf_counter()
        self._last_step = step
        if self._is_writer:
            self._log.keep_until(step)
            self._heldout_log.keep_until(step)
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
        usage = source_usage(self._plan, step * self._batch_size)
        extra = (extra_metrics or {}) | _usage_scalars(usage)
        peak_memory_gib = self.device_memory_monitor.get_peak_stats().max_reserved_gib
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra)
        if self._bar is None:
            return
        line = {"step": step, "loss": global_avg_loss, "grad_norm": grad_norm, "lr": extra["lr"]}
        line |= self._speed(step)
        if peak_memory_gib > 0:  # since the last logged step; less where no device counts it
            line["peak_memory_gib"] = peak_memory_gib
        line["source_tokens"] = {source.name: source.num_tokens for source in usage}
        line["source_epochs"] = {source.name: source.num_epochs for source in usage}
        self._log.append(line)
        self._bar.set_postfix_str(
            f"loss {line['loss']:.4f}, {line['tokens_per_s']:,.0f} tokens/s", refresh=False
        )
        self._bar.update(step - self._last_step)
        self._last_step, self._last_time = step, time.perf_counter()

    def log_heldout(self, step: int, losses: dict[str, float], *, seconds: float) -> None:
        """Record held-out losses in nats a token, measured in `seconds` between two steps."""
        self.logger.log({f"heldout_loss/{name}": loss for name, loss in losses.items()}, step)
        if self._is_writer:
            self._heldout_log.append({"step": step, "losses": losses})
        # Not part of the time that the next steps take: speeds are of training.
        self._last_time += seconds
        self.time_last_log += seconds

    def _speed(self, step: int) -> dict[str, float]:
        """Tokens so far and, since the last logged step, tokens/s over all processes and MFU."""
        now = time.perf_counter()
        tokens_per_step = self._batch_size * self._plan.seq_len
        tokens_per_s = (step - self._last_step) * tokens_per_step / (now - self._last_time)
        speed = {"tokens": step * tokens_per_step, "tokens_per_s": tokens_per_s}
        if self._peak_flops is not None:
            speed["mfu"] = flops_utilization(
                tokens_per_s,
                flops_per_token=self.num_flops_per_token,
                num_gpus=dist.get_world_size(),
                peak=self._peak_flops,
            )
        return speed | {"seconds": now - self._start_time}

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        super().close()


def require_wandb(logger: BaseLogger) -> None:
    """Raises RuntimeError if Weights & Biases is not among the loggers; torchtitan goes on."""
    loggers = logger._loggers if isinstance(logger, LoggerContainer) else [logger]
    if not any(isinstance(one, WandBLogger) for one in loggers):
        raise RuntimeError(
            "metrics.enable_wandb is true and Weights & Biases did not start: see train.log"
        )


def _usage_scalars(usage: list[SourceUsage]) -> dict[str, float]:
    tokens = {f"source_tokens/{source.name}": source.num_tokens for source in usage}
    return tokens | {f"source_epochs/{source.name}": source.num_epochs for source in usage}
