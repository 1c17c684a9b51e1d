"""torchtitan's trainer for one run of TinyComma."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.train import Trainer

from .job_config import JobConfig


class PretrainTrainer(Trainer):
    """Trains from the last checkpoint (or the initial weights) to the last step."""

    def __init__(self, job_config: JobConfig) -> None:
        super().__init__(job_config)
        if self.device.type == "cpu":
            reduce_gradients_by_sum(self.model_parts)

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
            while self.should_continue_training():
                self.step += 1
                self.gc_handler.run(self.step)
                self.train_step(data_iterator)
                self.checkpointer.save(self.step, last_step=self.step == config.training.steps)
                for observer in (profiler, snapshot):
                    if observer:
                        observer.step()
        dist.barrier()  # no process leaves while another still needs it

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
