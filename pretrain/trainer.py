"""torchtitan's trainer for one run of TinyComma."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.train import Trainer

from .checkpointer import RunCheckpointer
from .job_config import JobConfig
from .rank_agreement import any_rank
from .stop_signal import StopSignal


class PretrainTrainer(Trainer):
    """Trains from the last checkpoint (or the initial weights) to the last step, or to a signal.

    A stop signal to any process ends training on all of them after the same step, with a whole
    checkpoint of that step.
    """

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
        if self.device.type == "cpu":
            reduce_gradients_by_sum(self.model_parts)

    def post_dataloading_process(self, input_dict: dict[str, Tensor], labels: Tensor) -> Any:
        """Also hand the labels to the forward where it computes the loss."""
        inputs, labels, extra_inputs, options = super().post_dataloading_process(input_dict, labels)
        if self.job_config.loss.chunk_tokens:
            options["labels"] = labels
        return inputs, labels, extra_inputs, options

    def train(self) -> None:
        """Run the remaining steps; torchtitan's own loop adds a fixed pause of 2 s at the end."""
        config = self.job_config
        self.checkpointer.load(step=config.checkpoint.load_step)
        self.metrics_processor.start(self.step, tokens_per_step=self._tokens_per_step())
        folder = {"global_step": self.step, "base_folder": config.job.dump_folder}
        with (
            maybe_enable_profiling(config.profiling, **folder) as profiler,
            maybe_enable_memory_snapshot(config.profiling, **folder) as snapshot,
        ):
            data_iterator = self.batch_generator(self.dataloader)
            is_stopping = False
            while self.should_continue_training() and not is_stopping:
                self.step += 1
                self.gc_handler.run(self.step)
                self.train_step(data_iterator)
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

    def _tokens_per_step(self) -> int:
        training = self.job_config.training
        return global_batch_size(self.job_config, dist.get_world_size()) * training.seq_len


def global_batch_size(config: JobConfig, num_processes: int) -> int:
    """Sequences in a step: as configured, or one local batch on every data-parallel process."""
    if config.training.global_batch_size > 0:
        return config.training.global_batch_size
    return config.training.local_batch_size * num_processes


def reduce_gradients_by_sum(model_parts: list[torch.nn.Module]) -> None:
    """Make sharded modules sum their gradients, as the trainer's loss is already a mean.

    torchtitan asks for a division by 1, for which FSDP2 uses a reduction that gloo does not have.
    """
    for model in model_parts:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
