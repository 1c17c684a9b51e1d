"""torchtitan's trainer for one run of TinyComma, to its last step or to a signal, and its saves."""

import logging
import signal
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.distributed.utils import set_pg_timeouts
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.train import Trainer

from ..job_config import Checkpoint, JobConfig
from ..model.tinycomma import document_mask
from ..plan.data_plan import data_record
from ..plan.loader import document_ids
from .heldout import HeldoutLoss
from .metrics import StepLog
from .record import checkpoint_steps
from .spikes import SpikeGuard, guard_steps, spike_line
from .train_spec import open_plan

logger = logging.getLogger(__name__)


class StopSignal:
    """Remembers that SIGTERM has come to this process, from now on; main thread only.

    Slurm sends it before it preempts a job or its time is up, torchrun passes it to its workers.
    It kills nothing then, so whoever makes one of these must look at `arrived`.
    """

    def __init__(self) -> None:
        self.arrived = False
        signal.signal(signal.SIGTERM, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True


class RunCheckpointer(CheckpointManager):
    """torchtitan's checkpoints, with saves by wall-clock minutes and milestones that stay.

    A save is due every `interval` steps, and after `interval_minutes` without one. Of the saved
    steps the last `keep_latest_k` are kept, and all multiples of `milestone_interval`. Whether
    time is up is a claim of one process: `save` must be told what all of them agreed on.
    """

    def __init__(self, checkpoint_config: Checkpoint, **components: Any) -> None:
        super().__init__(checkpoint_config=checkpoint_config, **components)
        self._milestone_interval = checkpoint_config.milestone_interval
        self._interval_seconds = checkpoint_config.interval_minutes * 60
        self._last_save_time = time.monotonic()
        self._is_due = False

    @property
    def is_time_up(self) -> bool:
        """Whether this process has gone `interval_minutes` without a save."""
        elapsed = time.monotonic() - self._last_save_time
        return 0 < self._interval_seconds <= elapsed

    def save(self, curr_step: int, last_step: bool = False, *, is_due: bool = False) -> None:
        """Save where the step, `is_due` or `last_step` asks for it.

        last_step: nothing follows, so wait until the checkpoint is whole; an asynchronous save
        is left to write itself while training goes on.
        """
        self._is_due = is_due
        super().save(curr_step, last_step)

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        should_save = super()._should_save(curr_step, last_step) or self._is_due
        if should_save:
            self._last_save_time = time.monotonic()
        return should_save

    def _purge_stale_checkpoints(self) -> None:
        if self.keep_latest_k == 0 or dist.get_rank() != 0:
            return
        folders = checkpoint_steps(self.folder)
        for step in stale_steps(
            folders, keep_latest=self.keep_latest_k, milestone_interval=self._milestone_interval
        ):
            self.purge_queue.put(str(folders[step]))


class PretrainTrainer(Trainer):
    """Trains from the last checkpoint (or the initial weights) to the last step, or to a signal.

    A stop signal to any process ends training on all of them after the same step, with a whole
    checkpoint of that step.
    """

    checkpointer: RunCheckpointer

    def __init__(self, job_config: JobConfig, stop_signal: StopSignal) -> None:
        super().__init__(job_config)
        self._stop_signal = stop_signal
        self.checkpointer.close()
        self.checkpointer = RunCheckpointer(
            checkpoint_config=job_config.checkpoint,
            dataloader=self.dataloader,
            model_parts=self.model_parts,
            optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=job_config.job.dump_folder,
        )
        self._plan = open_plan(job_config)
        self._batch_size = global_batch_size(job_config, dist.get_world_size())
        self._heldout = HeldoutLoss(
            job_config.heldout,
            seq_len=job_config.training.seq_len,
            batch_size=job_config.training.local_batch_size,
            device=self.device,
        )
        self._guard = SpikeGuard(job_config.spike_guard)
        self._spike_log = StepLog(Path(job_config.job.dump_folder) / "spikes.jsonl")
        self._round_losses: list[Tensor] = []
        if job_config.spike_guard.action != "off":
            guard_steps(self.optimizers, self._permits_step)
        if self.device.type == "cpu":
            # The loss is a mean already: torchtitan asks for a division of the gradients by 1, for
            # which FSDP2 uses a reduction that gloo does not have.
            for module in fsdp_modules(self.model_parts):
                module.set_force_sum_reduction_for_comms(True)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"spike_guard": self._guard.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._guard.load_state_dict(state_dict["spike_guard"])

    def post_dataloading_process(self, input_dict: dict[str, Tensor], labels: Tensor) -> Any:
        """What the forward is given; torchtitan would ask a tokenizer where documents end."""
        options = self._forward_options(labels, input_dict.get("document_ids"))
        return input_dict["input"], labels, {}, options

    def _forward_options(self, labels: Tensor, documents: Tensor | None) -> dict[str, Any]:
        """The labels where the forward computes the loss, and the mask where there is one."""
        options: dict[str, Any] = {}
        if self.job_config.loss.chunk_tokens:
            options["labels"] = labels
        if documents is not None:
            options["attention_masks"] = document_mask(documents)
        return options

    def train(self) -> None:
        """Run the remaining steps; torchtitan's own loop adds a fixed pause of 2 s at the end."""
        config = self.job_config
        self.checkpointer.load(step=config.checkpoint.load_step)
        data = data_record(self._plan, batch_size=self._batch_size)
        self.metrics_processor.start(self.step, data)
        if dist.get_rank() == 0:
            self._spike_log.keep_until(self.step)
        folder = {"global_step": self.step, "base_folder": config.job.dump_folder}
        with (
            maybe_enable_profiling(config.profiling, **folder) as profiler,
            maybe_enable_memory_snapshot(config.profiling, **folder) as snapshot,
        ):
            data_iterator = self.batch_generator(self.dataloader)
            first_step = self.step + 1
            is_stopping = False
            while self.should_continue_training() and not is_stopping:
                self.step += 1
                self.gc_handler.run(self.step)
                self.train_step(data_iterator)
                if self.step == first_step:  # the preflight and compilation lie behind it
                    limit = timedelta(seconds=config.comm.train_timeout_seconds)
                    set_pg_timeouts(limit, self.parallel_dims)
                self._measure_heldout_if_due()
                is_stopping = self._save_if_due()
                for observer in (profiler, snapshot):
                    if observer:
                        observer.step()
        dist.barrier()  # no process leaves while another still needs it

    def _save_if_due(self) -> bool:
        """Save what the step, the clock or a signal asks for; returns whether to stop now."""
        is_stopping, is_time_up = any_rank(
            self._stop_signal.arrived, self.checkpointer.is_time_up, device=self.device
        )
        is_last = is_stopping or not self.should_continue_training()
        self.checkpointer.save(self.step, last_step=is_last, is_due=is_time_up)
        return is_stopping

    def forward_backward_step(self, **batch: Any) -> Tensor:
        """Also keep the loss of the round for the spike guard."""
        loss: Tensor = super().forward_backward_step(**batch)
        if self.job_config.spike_guard.action != "off":
            self._round_losses.append(loss.detach())
        return loss

    def _permits_step(self) -> bool:
        """Whether the gradients may move the weights; called once a step, on all processes."""
        loss = torch.stack(self._round_losses).sum()
        self._round_losses.clear()
        dist.all_reduce(loss)
        spike = self._guard.check(loss.item())
        if spike is None:
            return True
        if dist.get_rank() == 0:
            logger.warning("step %d: %s, see %s", self.step, spike, self._spike_log.path)
            self._spike_log.append(
                spike_line(spike, self._plan, step=self.step, batch_size=self._batch_size)
            )
        return not spike.is_skipped

    def _measure_heldout_if_due(self) -> None:
        if not self._heldout.is_due(self.step, is_last=not self.should_continue_training()):
            return
        start = time.perf_counter()
        losses = self._heldout.measure(self._batch_loss)
        for module in fsdp_modules(self.model_parts):
            module.reshard()  # the output layer stays gathered where no backward follows
        self.metrics_processor.log_heldout(self.step, losses, seconds=time.perf_counter() - start)

    @torch.no_grad()
    def _batch_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        (model,) = self.model_parts
        is_masked = self.job_config.data.mask_documents
        documents = document_ids(inputs, bos_id=self._plan.bos_id) if is_masked else None
        options = self._forward_options(labels, documents)
        with self.train_context(), self.maybe_enable_amp:
            loss: Tensor = self.loss_fn(model(inputs, **options), labels)
        return loss


def stale_steps(steps: Iterable[int], *, keep_latest: int, milestone_interval: int) -> list[int]:
    """The steps whose checkpoints can go: neither among the last ones nor milestones.

    keep_latest: at least 1. milestone_interval: in steps; 0 makes no step a milestone.
    """
    return [
        step
        for step in sorted(steps)[:-keep_latest]
        if not milestone_interval or step % milestone_interval
    ]


def global_batch_size(config: JobConfig, num_processes: int) -> int:
    """Sequences in a step: as configured, or one local batch on every data-parallel process."""
    if config.training.global_batch_size > 0:
        return config.training.global_batch_size
    return config.training.local_batch_size * num_processes


def fsdp_modules(model_parts: list[torch.nn.Module]) -> list[FSDPModule]:
    """All modules whose weights FSDP2 has divided among the processes."""
    modules = [module for model in model_parts for module in model.modules()]
    return [module for module in modules if isinstance(module, FSDPModule)]


def any_rank(*claims: bool, device: torch.device) -> list[bool]:
    """For each claim, whether at least one process makes it; the same answer on every process.

    device: where the process group communicates. One small reduction, so call it once a step.
    """
    flags = torch.tensor(claims, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags.tolist()]
