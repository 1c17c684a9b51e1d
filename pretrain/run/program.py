"""One pretraining run, as seen by one of its processes."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtitan.components.loss import LossFunction, build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers
from torchtitan.distributed import ParallelDims
from torchtitan.models.llama3 import parallelize_llama
from torchtitan.protocols.train_spec import TrainSpec, register_train_spec

from ..job_config import JobConfig
from ..model.loss import logit_loss_and_gradient
from ..model.tinycomma import TinyComma, flavors
from ..plan.data_plan import DataPlan
from ..plan.loader import SequenceLoader
from .metrics import RunMetrics
from .preflight import check_run
from .spikes import GuardedOptimizers
from .trainer import PretrainTrainer, StopSignal

NAME = "tinycomma"


def register() -> None:
    """Make torchtitan know the model; once in a process."""
    register_train_spec(NAME, train_spec())


def train_spec() -> TrainSpec:
    """torchtitan's Llama 3 recipe with our model, loader and metrics.

    One optimizer group for all parameters, as in lingua: norms and embeddings decay too.
    No tokenizer: the data is token ids. No pipeline stages, no validator.
    """
    return TrainSpec(
        model_cls=TinyComma,
        model_args=flavors(),
        parallelize_fn=_parallelize,
        pipelining_fn=None,
        build_optimizers_fn=_build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_dataloader_fn=_build_loader,
        build_tokenizer_fn=None,
        build_loss_fn=_build_loss,
        build_metrics_processor_fn=RunMetrics,
    )


def open_plan(job_config: JobConfig) -> DataPlan:
    """The plan of a run that has passed its preflight, which has compared the checksums."""
    return DataPlan.open(job_config.data, seq_len=job_config.training.seq_len, verify=False)


def _build_optimizers(*arguments: Any) -> GuardedOptimizers:
    return GuardedOptimizers(build_optimizers(*arguments))


def _parallelize(
    model: TinyComma, parallel_dims: ParallelDims, job_config: JobConfig
) -> torch.nn.Module:
    settings = job_config.compile
    if job_config.loss.chunk_tokens and settings.enable and "loss" in settings.components:
        # One pass over a chunk's logits in place of six: they are its only memory traffic.
        model.output.logit_loss = torch.compile(logit_loss_and_gradient, backend=settings.backend)
    parallel: torch.nn.Module = parallelize_llama(model, parallel_dims, job_config)
    return parallel


def _build_loss(job_config: JobConfig, **options: Any) -> LossFunction:
    if job_config.loss.chunk_tokens:
        return _loss_of_forward
    return build_cross_entropy_loss(job_config, **options)


def _loss_of_forward(loss: Tensor, labels: Tensor) -> Tensor:
    # The model was given the labels and has computed its loss.
    return loss


def _build_loader(
    *, dp_world_size: int, dp_rank: int, tokenizer: None, job_config: JobConfig
) -> SequenceLoader:
    return SequenceLoader(
        open_plan(job_config),
        dp_rank=dp_rank,
        dp_world_size=dp_world_size,
        local_batch_size=job_config.training.local_batch_size,
        with_document_ids=job_config.data.mask_documents,
    )


LOG_NAME = "train.log"


def prepare(config: JobConfig) -> None:
    """Check the run and make its folder ready; in the first process, before `run` in any.

    Raises: ValueError with one line that says why the run cannot start.
    """
    for remark in check_run(config, num_processes=int(os.environ["WORLD_SIZE"])):
        print(f"anchored.pretrain: {remark}", file=sys.stderr)


def run(config: JobConfig) -> int:
    """Train to the last step, or to SIGTERM; returns the exit status, 0 in both cases.

    Needs torchrun's environment variables, and `prepare` to have run in the first process.
    """
    stop_signal = StopSignal()
    stop_signal.install()
    _start_log(config)
    register()
    trainer = PretrainTrainer(config, stop_signal)
    try:
        trainer.train()
    finally:
        trainer.close()
    dist.destroy_process_group()
    if trainer.step < config.training.steps and os.environ["RANK"] == "0":
        print(
            f"anchored.pretrain: stopped by a signal after step {trainer.step} of "
            f"{config.training.steps}; the same command goes on from its checkpoint",
            file=sys.stderr,
        )
    return 0


def _start_log(config: JobConfig) -> None:
    # torchtitan logs through the root logger; its lines would break the progress bar.
    rank = os.environ["RANK"]
    name = LOG_NAME if rank == "0" else f"train-rank{rank}.log"
    folder = Path(config.job.dump_folder)
    folder.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(folder / name)]
    if config.job.verbose and rank == "0":
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers
    )
    logging.captureWarnings(True)
