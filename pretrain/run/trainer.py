"""torchtitan's trainer for one run of TinyComma, to its last step or to a signal."""

import logging
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torchtitan.distributed.utils import clip_grad_norm_, set_pg_timeouts
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.train import Trainer

from ... import AnchoredError
from ..job_config import JobConfig
from ..model.attention import document_mask
from ..plan.data_plan import skipped_steps
from ..plan.loader import Batch, document_ids
from .checkpointer import RunCheckpointer
from .heldout import HeldoutLoss
from .metrics import StepLog
from .questions import question_suites
from .record import RunRecord
from .spikes import SpikeGuard, spike_line
from .train_spec import open_plan

logger = logging.getLogger(__name__)
# A last save that fails is tried again after these pauses: they fit into Slurm's notice of ten
# minutes, and somebody may make room meanwhile.
LAST_SAVE_PAUSES_S = (5.0, 30.0, 120.0)


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
            before_save=self._check_finite,
        )
        self._plan = open_plan(job_config)
        self._batch_size = global_batch_size(job_config, dist.get_world_size())
        self._heldout = HeldoutLoss(
            job_config.heldout,
            seq_len=job_config.training.seq_len,
            batch_size=job_config.training.local_batch_size,
            device=self.device,
        )
        self._suites = question_suites(job_config)
        self._guard = SpikeGuard(job_config.spike_guard)
        self._spike_log = StepLog(Path(job_config.job.dump_folder) / "spikes.jsonl")
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
        self.checkpointer.load()
        self._data = RunRecord.read(Path(config.job.dump_folder)).data
        self._follow_config()
        self.metrics_processor.start(self.step, self._data)
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

    def _follow_config(self) -> None:
        """Go on by this run's settings and record, where the checkpoint is from before a fork."""
        first_step = self.step + skipped_steps(self._data, self.step)
        self.dataloader.next_sequence = first_step * self._batch_size
        settings = self.job_config.optimizer
        adam = {
            "initial_lr": settings.lr,
            "betas": (settings.beta1, settings.beta2),
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
        }
        for optimizer, scheduler in zip(self.optimizers, self.lr_schedulers, strict=True):
            scheduler.base_lrs = [settings.lr for _ in optimizer.param_groups]
            for group, of_step in zip(optimizer.param_groups, scheduler.lr_lambdas, strict=True):
                group.update(adam, lr=settings.lr * of_step(scheduler.last_epoch))
            scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _save_if_due(self) -> bool:
        """Save what the step, the clock or a signal asks for; returns whether to stop now."""
        is_stopping, is_time_up = any_rank(
            self._stop_signal.arrived, self.checkpointer.is_time_up, device=self.device
        )
        is_last = is_stopping or not self.should_continue_training()
        self.checkpointer.save(self.step, last_step=is_last, is_due=is_time_up)
        if is_last:
            self._insist_on_last_save()
        return is_stopping

    def _insist_on_last_save(self) -> None:
        for pause in (*LAST_SAVE_PAUSES_S, None):
            (has_failed,) = any_rank(self.checkpointer.failure is not None, device=self.device)
            if not has_failed:
                return
            if pause is None:
                raise AnchoredError(
                    f"step {self.step} could not be saved ({self.checkpointer.failure}): the same "
                    "command goes on from the last checkpoint"
                )
            time.sleep(pause)
            self.checkpointer.save(self.step, last_step=True)

    def train_step(self, data_iterator: Iterator[Batch]) -> None:
        """torchtitan's step, but that the weights move only where loss and gradients permit it."""
        self.optimizers.zero_grad()
        lr = self.lr_schedulers.schedulers[0].get_last_lr()[0]
        loss = self._backward(data_iterator)
        grad_norm = clip_grad_norm_(
            [parameter for model in self.model_parts for parameter in model.parameters()],
            self.job_config.training.max_norm,
            foreach=True,
        )
        self.checkpointer.maybe_wait_for_staging()
        highest = loss * dist.get_world_size()
        dist.all_reduce(loss)
        if self._permits_step(loss.item(), grad_norm.item()):
            self.optimizers.step()
        self.lr_schedulers.step()
        if self.metrics_processor.should_log(self.step):
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
            extra = {"n_tokens_seen": self.ntokens_seen * dist.get_world_size(), "lr": lr}
            self.metrics_processor.log(
                self.step, loss.item(), highest.item(), grad_norm.item(), extra
            )

    def _backward(self, data_iterator: Iterator[Batch]) -> Tensor:
        """Gradients of a step; returns this process's part of its mean loss a token."""
        num_tokens = torch.tensor(float(self._batch_size * self._plan.seq_len)).to(self.device)
        losses = []
        for rounds_left in reversed(range(self.gradient_accumulation_steps)):
            keeps_weights = self.job_config.parallelism.fsdp_reshard_after_forward == "never"
            schedule_reduction(
                self.model_parts, is_due=not rounds_left, keeps_weights=keeps_weights
            )
            inputs, labels = next(data_iterator)
            loss = self.forward_backward_step(
                input_dict={name: self._on_device(tensor) for name, tensor in inputs.items()},
                labels=self._on_device(labels),
                global_valid_tokens=num_tokens,
            )
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)  # the loader pins what it reads

    def _permits_step(self, loss: float, grad_norm: float) -> bool:
        """Whether the gradients may move the weights; all processes have the same figures."""
        spike = self._guard.check(loss, grad_norm)
        if spike is None:
            return True
        if dist.get_rank() == 0:
            logger.warning("step %d: %s, see %s", self.step, spike, self._spike_log.path)
            self._spike_log.append(spike_line(spike, self._plan, self._data, step=self.step))
        self._guard.end_if_lost(self.step)
        return not spike.is_skipped

    def _check_finite(self) -> None:
        """Raises AnchoredError, on all processes, if a weight or a moment of one is not finite."""
        states = [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
        ]
        tensors = [*(one for model in self.model_parts for one in model.parameters()), *states]
        parts = [getattr(one, "_local_tensor", one) for one in tensors if torch.is_tensor(one)]
        finite = torch.stack([part.isfinite().all().to(self.device) for part in parts]).all()
        (is_lost,) = any_rank(not finite.item(), device=self.device)
        if is_lost:
            raise AnchoredError(
                f"after step {self.step} weights or moments are not finite and are not saved: "
                "the same command goes on from the last checkpoint, `anchored rollback` from "
                "an earlier one"
            )

    def _measure_heldout_if_due(self) -> None:
        if not self._heldout.is_due(self.step, is_last=not self.should_continue_training()):
            return
        start = time.perf_counter()
        losses = self._heldout.measure(self._batch_loss)
        answers = {one.name: one.measure(self._batch_loss, self.device) for one in self._suites}
        for module in fsdp_modules(self.model_parts):
            module.reshard()  # the output layer stays gathered where no backward follows
        seconds = time.perf_counter() - start
        self.metrics_processor.log_heldout(self.step, losses, answers, seconds=seconds)

    @torch.no_grad()
    def _batch_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        (model,) = self.model_parts
        is_masked = self.job_config.data.mask_documents
        documents = document_ids(inputs, bos_id=self._plan.bos_id) if is_masked else None
        options = self._forward_options(labels, documents)
        with self.train_context(), self.maybe_enable_amp:
            loss: Tensor = self.loss_fn(model(inputs, **options), labels)
        return loss


def global_batch_size(config: JobConfig, num_processes: int) -> int:
    """Sequences in a step: as configured, or one local batch on every data-parallel process."""
    if config.training.global_batch_size > 0:
        return config.training.global_batch_size
    return config.training.local_batch_size * num_processes


def fsdp_modules(model_parts: list[torch.nn.Module]) -> list[FSDPModule]:
    """All modules whose weights FSDP2 has divided among the processes."""
    modules = [module for model in model_parts for module in model.modules()]
    return [module for module in modules if isinstance(module, FSDPModule)]


def schedule_reduction(
    model_parts: list[torch.nn.Module], *, is_due: bool, keeps_weights: bool
) -> None:
    """Say whether the processes add their gradients up in the next backward.

    Until that is due, each adds up its own rounds, in the dtype of the reduction: a step of any
    number of rounds reduces once. keeps_weights: they stay gathered until then, too.
    """
    for model in model_parts:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(is_due)
            model.set_reshard_after_backward(is_due or not keeps_weights)


def any_rank(*claims: bool, device: torch.device) -> list[bool]:
    """For each claim, whether at least one process makes it; the same answer on every process.

    device: where the process group communicates. One small reduction, so call it once a step.
    """
    flags = torch.tensor(claims, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags.tolist()]
