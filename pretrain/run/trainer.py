"""One run of TinyComma on torchtitan's parts, to its last step or to a signal."""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from ...durable_files import json_value
from ...errors import AnchoredError
from ..job_config import JobConfig
from ..model.attention import document_mask
from ..model.float8 import use_float8
from ..model.tinycomma import (
    TinyComma,
    fsdp_modules,
    model_args,
    parallel_dims,
    parallelized,
    parameter_count,
    schedule_reduction,
)
from ..plan.data_plan import DataPlan, skipped_steps
from ..titan import (
    GarbageCollection,
    OptimizersContainer,
    ParamGroupConfig,
    Profiler,
    clip_grad_norm_,
    device_module,
    device_type,
    set_determinism,
    set_pg_timeouts,
)
from .batches import Batch, HeldoutLoss, read_batches
from .checkpoints import BYTES_PER_PARAMETER, OPTIMIZER, SLOW_DISK_BYTES_PER_S, Checkpointer
from .metrics import RunMetrics, StepLog
from .record import RunRecord
from .spikes import SpikeGuard
from .stop_signals import StopRequest

logger = logging.getLogger(__name__)


class Trainer:
    """Trains from the last checkpoint (or the initial weights) to the last step, or to a signal.

    A stop signal to any process ends training on all of them after the same step, with a whole
    checkpoint of that step. Before training begins, and where it is repeated, it ends them at once.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._run = Path(config.job.dump_folder)
        # 1. The processes meet.
        self.device = torch.device(f"{device_type}:{int(os.environ['LOCAL_RANK'])}")
        device_module.set_device(self.device)
        join_processes(config)
        self._dims = parallel_dims(config, dist.get_world_size())
        self._gc = GarbageCollection(config.training.gc_freq, config.training.gc_debug)
        set_determinism(self._dims, self.device, config.debug, distinct_seed_mesh_dims=[])
        # 2. The model, and what is watched of it.
        self._build_model()
        # 3. What is read and saved.
        self.step = 0
        self._stop_request = StopRequest()
        local_batch_size, seq_len = config.training.local_batch_size, config.training.seq_len
        self._plan = DataPlan.open(config.data, seq_len=seq_len)
        self._batch_size = global_batch_size(config, dist.get_world_size())
        self._num_rounds = self._batch_size // (local_batch_size * dist.get_world_size())
        self._heldout = HeldoutLoss(
            config.heldout, seq_len=seq_len, batch_size=local_batch_size, device=self.device
        )
        self._guard = SpikeGuard(config.spike_guard)
        self._spike_log = StepLog(self._run / "spikes.jsonl")
        self.checkpointer = Checkpointer(
            config.checkpoint,
            self._run,
            model=self.model,
            states={OPTIMIZER: self.optimizers, "train_state": self},
            before_save=self._before_save,
        )

    def _build_model(self) -> None:
        """The sharded model with its metrics, optimizer and schedule."""
        config = self._config
        # 1. It is built without memory, sharded, and only then filled.
        with torch.device("meta"):
            model = TinyComma(model_args(config)).to(getattr(torch, config.training.dtype))
        if config.model.converters:
            use_float8(model, config)
        self.metrics = RunMetrics(config, self._dims)
        self.metrics.num_flops_per_token = model.flops_per_token()
        num_bytes = BYTES_PER_PARAMETER * parameter_count(model)
        self._longest_save_s = num_bytes / SLOW_DISK_BYTES_PER_S
        self.model = parallelized(model, self._dims, config)
        self.model.to_empty(device=device_type)
        with torch.no_grad():
            self.model.init_weights()
        self.model.train()
        # 2. One optimizer group for all parameters, as in lingua: norms and embeddings decay too.
        # Its settings, but for the rate of the schedule's height, are set where training begins.
        adam = config.optimizer
        group = ParamGroupConfig(
            pattern="", optimizer_name=adam.name, optimizer_kwargs={"lr": adam.lr}
        )
        groups = OptimizersContainer.Config(
            param_groups=[group], implementation=adam.implementation
        )
        self.optimizers = groups.build(model_parts=[self.model])
        # 3. Of the schedule only the factor of each step is used: it has no state to be resumed.
        (schedule,) = config.lr_scheduler.build(
            optimizers=self.optimizers, training_steps=config.training.steps
        )
        (self._lr_factor,) = schedule.lr_lambdas

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "spike_guard": self._guard.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]
        self._guard.load_state_dict(state_dict["spike_guard"])

    @property
    def is_done(self) -> bool:
        """True if the last step has been trained."""
        return self.step >= self._config.training.steps

    def train(self) -> None:
        """Run the remaining steps."""
        config = self._config
        # Signals are remembered until the step is done. Not before: a process that remembers them
        # could not be ended where it waits for one that was refused or has crashed.
        self._stop_request.watch()
        self.checkpointer.load()
        # A checkpoint, of before a fork perhaps, has brought other settings than this run's.
        adam = config.optimizer
        betas = {"betas": (adam.beta1, adam.beta2)}
        self._set_optimizer(**betas, eps=adam.eps, weight_decay=adam.weight_decay)
        self._data = RunRecord.read(self._run).data
        self.metrics.start(self.step, self._data)
        if dist.get_rank() == 0:
            self._spike_log.keep_until(self.step)
        folder = {"global_step": self.step, "base_folder": str(self._run)}
        with Profiler(config.profiling, **folder) as profiler:
            batches, first_step, is_stopping = self._batches(), self.step + 1, False
            while not self.is_done and not is_stopping:
                self.step += 1
                self._gc.run(self.step)
                self._train_step(batches)
                if self.step == first_step:  # the preflight and compilation are over
                    seconds = config.comm.train_timeout_seconds + self._longest_save_s
                    set_pg_timeouts(timedelta(seconds=seconds), self._dims)
                self._measure_heldout_if_due()
                is_stopping = self._save_if_due()
                profiler.step()
        dist.barrier()  # no process leaves while another still needs it

    def close(self) -> None:
        """Wait for what is being saved, and end the logs."""
        self.checkpointer.close()
        self.metrics.close()

    def _set_optimizer(self, **settings: Any) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group.update(settings)

    def _batches(self) -> Iterator[Batch]:
        """The batches of this process from the next step on, whatever has been left out before."""
        first_step = self.step + skipped_steps(self._data, self.step)
        return read_batches(
            self._plan,
            first_sequence=first_step * self._batch_size,
            local_batch_size=self._config.training.local_batch_size,
            # A whole step, 4 at least: a disk that is silent for as long as that costs nothing.
            num_prefetched=max(4, self._num_rounds),
        )

    def _save_if_due(self) -> bool:
        """Save what the step, the clock or a signal asks for; returns whether to stop now.

        Raises: AnchoredError, on all processes, if the last step could not be saved.
        """
        is_stopping, is_time_up = any_rank(
            self._stop_request.is_made, self.checkpointer.is_time_up, device=self.device
        )
        is_last = is_stopping or self.is_done
        self.checkpointer.save(self.step, is_last=is_last, is_due=is_time_up)
        if is_last and any_rank(self.checkpointer.failure is not None, device=self.device)[0]:
            raise AnchoredError(
                f"step {self.step} could not be saved ({self.checkpointer.failure}): the same "
                "command goes on from the last checkpoint"
            )
        return is_stopping

    def _train_step(self, batches: Iterator[Batch]) -> None:
        """One step, in which the weights move only where loss and gradients permit it."""
        lr = self._config.optimizer.lr * self._lr_factor(self.step - 1)
        self._set_optimizer(lr=lr)
        self.optimizers.zero_grad()
        loss = self._accumulate_gradients(batches)
        grad_norm = clip_grad_norm_(
            list(self.model.parameters()), self._config.training.max_norm, foreach=True
        )
        highest = loss * dist.get_world_size()
        dist.all_reduce(loss)
        if self._permits_step(loss.item(), grad_norm.item()):
            self.optimizers.step()
        if self.metrics.should_log(self.step):
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
            self.metrics.log(self.step, loss.item(), highest.item(), grad_norm.item(), {"lr": lr})

    def _accumulate_gradients(self, batches: Iterator[Batch]) -> Tensor:
        """Gradients of a step; returns this process's part of its mean loss per token."""
        num_tokens = torch.tensor(float(self._batch_size * self._plan.seq_len)).to(self.device)
        keeps_weights = self._config.parallelism.fsdp_reshard_after_forward == "never"
        losses = []
        for rounds_left in reversed(range(self._num_rounds)):
            schedule_reduction(self.model, is_due=not rounds_left, keeps_weights=keeps_weights)
            start = time.perf_counter()
            batch = next(batches)
            self.metrics.count(batch[1].numel(), seconds=time.perf_counter() - start)
            # The loader pins what it reads, so that the copies need no waiting for.
            inputs, labels = (one.to(self.device, non_blocking=True) for one in batch)
            losses.append(self.backward(inputs, labels, num_tokens))
        return torch.stack(losses).sum()

    def backward(self, inputs: Tensor, labels: Tensor, num_tokens: Tensor) -> Tensor:
        loss = self._loss(inputs, labels) / num_tokens
        loss.backward()
        return loss.detach()

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Summed cross entropy of a batch."""
        masks = None
        if self._config.data.mask_documents:
            masks = document_mask(inputs, eos_id=self._plan.eos_id)
        loss: Tensor = self.model(inputs, masks, labels)
        return loss

    def _permits_step(self, loss: float, grad_norm: float) -> bool:
        """True if the gradients may move the weights; all processes have the same figures."""
        spike = self._guard.check(loss, grad_norm)
        if spike is None:
            return True
        if dist.get_rank() == 0:
            documents = f"`anchored plan --config FILE --step {self.step}` lists its documents"
            logger.warning("step %d: %s; %s", self.step, spike, documents)
            self._spike_log.append({"step": self.step, **json_value(asdict(spike))})
        self._guard.end_if_lost(self.step)
        return spike.action == "logged"

    def _before_save(self) -> None:
        """Write what logs say of the steps until here: a run that goes on will not repeat them."""
        self._check_finite()
        self.metrics.flush()
        self._spike_log.flush()

    def _check_finite(self) -> None:
        """Raises AnchoredError, on all processes, if a weight or a moment of one is not finite."""
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        moments = [value for state in states for value in state.values()]
        tensors = [one for one in (*self.model.parameters(), *moments) if torch.is_tensor(one)]
        parts = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
        finite = torch.stack([part.isfinite().all().to(self.device) for part in parts]).all()
        (is_lost,) = any_rank(not finite.item(), device=self.device)
        if is_lost:
            raise AnchoredError(
                f"after step {self.step} weights or moments are not finite and are not saved: the "
                "same command goes on from the last checkpoint, checkpoint.fork_from from any"
            )

    def _measure_heldout_if_due(self) -> None:
        if not self._heldout.is_due(self.step, is_last=self.is_done):
            return
        start = time.perf_counter()
        with torch.no_grad():
            losses = self._heldout.measure(self._loss)
        for module in fsdp_modules(self.model):
            module.reshard()  # the output layer stays gathered where no backward follows
        self.metrics.log_heldout(self.step, losses, seconds=time.perf_counter() - start)


def join_processes(config: JobConfig) -> None:
    """Make the process group, as torchtitan does, but for restarts by torchrun.

    torchrun keeps one store over all of them, in which processes would look for each other at the
    addresses that they had before a crash.
    """
    comm = config.comm
    if comm.trace_buf_size > 0:  # what the collectives did, written down where one takes too long
        folder = Path(config.job.dump_folder) / comm.save_traces_folder
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TORCH_FR_BUFFER_SIZE"] = str(comm.trace_buf_size)
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / comm.save_traces_file_prefix)
        os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    store, rank, world_size = next(rendezvous("env://"))
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        dist.get_default_backend_for_device(device_type),
        store=PrefixStore(f"restart-{restart}", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=comm.init_timeout_seconds),
    )


def global_batch_size(config: JobConfig, num_processes: int) -> int:
    """Sequences in a step: as configured, or one local batch on every data-parallel process."""
    if config.training.global_batch_size > 0:
        return config.training.global_batch_size
    return config.training.local_batch_size * num_processes


def any_rank(*flags: bool, device: torch.device) -> list[bool]:
    """Whether each flag is set on at least one process; the same answer on every process.

    device: where the process group communicates. One small reduction, so call it once a step.
    """
    raised = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in raised.tolist()]
