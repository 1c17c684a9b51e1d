"""Registers TinyComma with torchtitan: what to build for a run whose model.name is "tinycomma"."""

from typing import Any

import torch
from torchtitan.components.loss import LossFunction, build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers
from torchtitan.distributed import ParallelDims
from torchtitan.models.llama3 import parallelize_llama
from torchtitan.protocols.train_spec import TrainSpec

from ..job_config import JobConfig
from ..model.loss import logit_loss_and_gradient
from ..model.tinycomma import TinyComma, flavors
from ..plan.data_plan import DataPlan
from ..plan.loader import SequenceLoader
from .metrics import RunMetrics


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
        build_optimizers_fn=build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_dataloader_fn=_build_loader,
        build_tokenizer_fn=None,
        build_loss_fn=_build_loss,
        build_metrics_processor_fn=RunMetrics,
    )


def open_plan(job_config: JobConfig) -> DataPlan:
    """The plan of a run that has passed its preflight, which has compared the checksums."""
    return DataPlan.open(job_config.data, seq_len=job_config.training.seq_len, verify=False)


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
    if job_config.loss.chunk_tokens:  # the model was given the labels and has computed its loss
        return lambda loss, labels: loss
    return build_cross_entropy_loss(job_config, **options)


def _build_loader(
    *, dp_world_size: int, dp_rank: int, tokenizer: None, job_config: JobConfig
) -> SequenceLoader:
    training = job_config.training
    num_rounds = training.global_batch_size // (training.local_batch_size * dp_world_size)
    return SequenceLoader(
        open_plan(job_config),
        dp_rank=dp_rank,
        dp_world_size=dp_world_size,
        local_batch_size=training.local_batch_size,
        with_document_ids=job_config.data.mask_documents,
        # A whole step, 4 at least: a disk that does not answer for as long as that costs nothing.
        num_prefetched=max(4, num_rounds),
        pin_memory=torch.cuda.is_available(),
    )
