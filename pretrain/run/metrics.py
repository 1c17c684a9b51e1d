"""Metrics of a run: one JSON line a logged step in the dump folder, and a progress bar."""

import errno
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tqdm import tqdm

from ...durable_files import sync, write_durably
from ..job_config import JobConfig
from ..plan.data_plan import epochs_read, tokens_read
from ..titan import BaseLogger, MetricsProcessor, ParallelDims, WandBLogger, get_peak_flops
from .record import RunRecord

logger = logging.getLogger(__name__)
_LOG_SECONDS = 30.0  # between lines of the progress bar in a file
# torchtitan takes any other name for an A100.
_KNOWN_GPUS = ("A100", "H100", "H200", "H20", "B200", "MI355X", "MI300X", "MI325X", "l40s")


class StepLog:
    """Lines with a "step" in ascending order; each step once, however often a run was resumed.

    A disk that is full or a file that cannot be written ends nothing: lines wait for the next one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def keep_until(self, step: int) -> None:
        """Drop what is said of later steps, which are about to be trained again."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_until(step, line)]
        if kept != lines:
            write_durably(self.path, b"".join(kept).decode())

    def append(self, line: dict[str, Any]) -> None:
        """Write one line, which holds a "step", and those that could not be written before."""
        self._waiting.append(json.dumps(line) + "\n")
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait, if the disk takes them by now."""
        if not self._waiting:
            return
        data = "".join(self._waiting).encode()
        try:
            with self.path.open("ab", buffering=0) as file:
                size = file.tell()
                try:
                    if file.write(data) < len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    sync(file)
                except OSError:
                    with suppress(OSError):
                        file.truncate(size)  # no half of a line stays
                    raise
            self._waiting.clear()
        except OSError as error:
            if len(self._waiting) == 1:
                logger.warning("%s cannot be written (%s): its lines wait", self.path, error)


def _is_until(step: int, line: bytes) -> bool:
    """True for a whole line about `step` or one before; a kill may leave a part of one."""
    try:
        return line.endswith(b"\n") and bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False


class _Curves(BaseLogger):
    """TensorBoard, until it cannot be written, and Weights & Biases.

    The latter takes the step as a figure among others: its steps must rise, and it would drop what
    a run says that goes on from an earlier checkpoint.
    """

    def __init__(self, tensorboard: BaseLogger, wandb: WandBLogger | None) -> None:
        self._tensorboard, self._wandb = tensorboard, wandb
        if wandb:
            for name in ("step", "*"):
                wandb.wandb.define_metric(name, step_metric="step")

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._guarded(lambda: self._tensorboard.log(metrics, step))
        if self._wandb:
            self._wandb.wandb.log({**metrics, "step": step})

    def close(self) -> None:
        self._guarded(self._tensorboard.close)
        if self._wandb:
            self._wandb.close()

    def _guarded(self, use: Callable[[], object]) -> None:
        try:
            use()
        except OSError as error:
            logger.warning("TensorBoard cannot be written (%s): it ends here", error)
            self._tensorboard = BaseLogger()


class RunMetrics(MetricsProcessor):
    """Adds to torchtitan's log, TensorBoard and Weights & Biases what the data plan knows.

    metrics.jsonl holds each logged step once, in order, and heldout.jsonl each measured one: a
    resumed run continues both after the step it resumes from. Only the first process writes.
    """

    logger: BaseLogger

    def __init__(self, job_config: JobConfig, parallel_dims: ParallelDims) -> None:
        folder = Path(job_config.job.dump_folder)
        self._is_writer = dist.get_rank() == 0
        self._job = job_config
        # torchtitan would go on where Weights & Biases does not start, so it starts none.
        without_wandb = copy(job_config.metrics)
        without_wandb.enable_wandb = False
        super().__init__(without_wandb, parallel_dims=parallel_dims, dump_folder=str(folder))
        wandb = None
        if self._is_writer and job_config.metrics.enable_wandb:
            # Every start of a run writes into the same curves.
            os.environ["WANDB_RUN_ID"] = RunRecord.read(folder).wandb_id
            os.environ.setdefault("WANDB_RESUME", "allow")
            wandb = WandBLogger(str(folder), asdict(job_config))
        self._log = StepLog(folder / "metrics.jsonl")
        self._heldout_log = StepLog(folder / "heldout.jsonl")
        self._bar: tqdm | None = None
        self._peak_flops = peak_flops_per_s(self.device_memory_monitor.device_name)
        self.logger = _Curves(self.logger, wandb)

    def start(self, step: int, data: dict[str, Any]) -> None:
        """Begin after `step`; data: what `data_record` says of the run."""
        self._data = data
        self._tokens_per_step = data["batch_size"] * data["seq_len"]
        self._start_time = self._last_time = time.perf_counter()
        self._last_step = step
        if self._is_writer:
            self._log.keep_until(step)
            self._heldout_log.keep_until(step)
            # The default lock is for several processes, and warns where one of them is interrupted.
            tqdm.set_lock(threading.RLock())
            total = self._job.training.steps
            title = Path(self._job.job.dump_folder).name
            interval = 0.1 if sys.stderr.isatty() else _LOG_SECONDS
            shown = {"desc": title, "unit": "step", "file": sys.stderr, "mininterval": interval}
            self._bar = tqdm(total=total, initial=step, **shown)

    def count(self, num_tokens: int, *, seconds: float) -> None:
        """Count a batch of this process, and the time that it was waited for."""
        self.ntokens_since_last_log += num_tokens
        self.data_loading_times.append(seconds)

    def should_log(self, step: int) -> bool:
        """Also the last step, so that every curve ends where training does."""
        return super().should_log(step) or step == self._job.training.steps

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        read: dict[str, Mapping[str, float]] = {"source_tokens": tokens_read(self._data, step)}
        read["source_epochs"] = epochs_read(self._data, step)
        # Tokens of the step, not of this start alone, which may have begun on other processes.
        extra = {**(extra_metrics or {}), "n_tokens_seen": step * self._tokens_per_step}
        extra |= {f"{kind}/{name}": one for kind in read for name, one in read[kind].items()}
        peak_memory_gib = self.device_memory_monitor.get_peak_stats().max_reserved_gib
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra)
        if self._bar is None:
            return
        line = {"step": step, "loss": global_avg_loss, "grad_norm": grad_norm, "lr": extra["lr"]}
        line |= self._speed(step)
        if peak_memory_gib > 0:  # since the last logged step; less where no device counts it
            line["peak_memory_gib"] = peak_memory_gib
        self._log.append(line | read)
        self._bar.set_postfix_str(
            f"loss {line['loss']:.4f}, {line['tokens_per_s']:,.0f} tokens/s", refresh=False
        )
        self._bar.update(step - self._last_step)
        self._last_step, self._last_time = step, time.perf_counter()

    def log_heldout(self, step: int, losses: dict[str, float], *, seconds: float) -> None:
        """Record what was measured in `seconds` between two steps: nats per token, by source."""
        curves = {f"heldout_loss/{name}": loss for name, loss in losses.items()}
        self.logger.log(curves, step)
        if self._is_writer:
            logger.info("step: %d  %s", step, curves)
            self._heldout_log.append({"step": step, "losses": losses})
        # Not part of the time that the next steps take: speeds are of training.
        self._last_time += seconds
        self.time_last_log += seconds

    def _speed(self, step: int) -> dict[str, float]:
        """Tokens so far and, since the last logged step, tokens/s over all processes and MFU."""
        now = time.perf_counter()
        seconds = now - self._last_time
        tokens_per_s = (step - self._last_step) * self._tokens_per_step / seconds
        speed = {"tokens": step * self._tokens_per_step, "tokens_per_s": tokens_per_s}
        if self._peak_flops is not None:
            # A fraction of a GPU's peak in bfloat16, also where float8 is used.
            flops_per_s = tokens_per_s / dist.get_world_size() * self.num_flops_per_token
            speed["mfu"] = flops_per_s / self._peak_flops
        return speed | {"seconds": now - self._start_time}

    def flush(self) -> None:
        """Write the lines that wait for a disk that was full."""
        self._log.flush()
        self._heldout_log.flush()

    def close(self) -> None:
        self.flush()
        if self._bar is not None:
            self._bar.close()
        super().close()


def peak_flops_per_s(device_name: str) -> float | None:
    """Dense bfloat16 operations a second of a GPU by its name; None if it is not known."""
    if not any(name in device_name for name in _KNOWN_GPUS):
        return None
    return float(get_peak_flops(device_name))
