"""GPU memory of a training step, estimated from shapes alone.

d hidden_size, f width of the feed-forward, T tokens of a process in a round, P parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import ParallelDims

from ..job_config import JobConfig
from ..model.tinycomma import TinyCommaArgs
from .train_spec import train_spec

_FLOAT32_BYTES = 4
_ADAM_MOMENTS = 2
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes on one GPU at the peak of a step, by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    """Weights and gradients in the training dtype, whole, of the layers at work."""
    activations: int
    """Saved for backward by all layers."""
    logits: int
    """Of one chunk, or of all tokens, with their gradients and, uncompiled, float32 forms."""

    @property
    def total(self) -> int:
        """Sum of all parts; what the allocator and the libraries add is not in it."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in asdict(self).items())
        return f"{self.total / GIB:.1f} GiB ({parts})"


def estimate_memory(config: JobConfig, args: TinyCommaArgs, *, num_shards: int) -> MemoryEstimate:
    """Of one GPU in a run whose weights are divided among `num_shards` of them.

    args: the model, updated from the config. Activation checkpointing other than "full" is
    counted as none.
    """
    num_parameters = parameter_count(args)
    shard_bytes = _FLOAT32_BYTES * -(-num_parameters // num_shards)
    width = TORCH_DTYPE_MAP[config.training.mixed_precision_param].itemsize
    num_tokens = config.training.local_batch_size * config.training.seq_len
    return MemoryEstimate(
        weights=shard_bytes,
        gradients=_gradient_bytes(config, num_parameters, num_shards=num_shards),
        optimizer=_ADAM_MOMENTS * shard_bytes,
        gathered=_gathered_bytes(config, args, width, num_shards=num_shards),
        activations=num_tokens * _activation_bytes_per_token(config, args, width),
        logits=_logits_bytes(config, args, num_tokens, width),
    )


def parameter_count(args: TinyCommaArgs) -> int:
    """Of an untied model without biases."""
    return 2 * args.vocab_size * args.dim + body_parameter_count(args)


def body_parameter_count(args: TinyCommaArgs) -> int:
    """`parameter_count` without embedding and output: what a model's size stands for in laws."""
    return args.n_layers * _layer_parameters(args) + args.dim


def layer_activation_values(args: TinyCommaArgs, *, is_compiled: bool) -> int:
    """Numbers that one layer saves for backward, a token.

    Of width d: its input, both norms' outputs, q, k, v, attention's output and the sum before the
    feed-forward. Of width f: w1's and w3's outputs, w2's input; silu's output too, which a
    compiled layer computes again. Attention's log-normalizer is one number a head.
    """
    num_wide = 3 if is_compiled else 4
    return 8 * args.dim + num_wide * args.hidden_dim + args.n_heads


def _activation_bytes_per_token(config: JobConfig, args: TinyCommaArgs, width: int) -> int:
    is_compiled = config.compile.enable and "model" in config.compile.components
    layer = width * layer_activation_values(args, is_compiled=is_compiled)
    if config.activation_checkpoint.mode == "full":
        return args.n_layers * width * args.dim + layer
    return args.n_layers * layer


def _layer_parameters(args: TinyCommaArgs) -> int:
    kv_width = args.dim * (args.n_kv_heads or args.n_heads) // args.n_heads
    attention = 2 * args.dim * args.dim + 2 * args.dim * kv_width
    return attention + 3 * args.dim * args.hidden_dim + 2 * args.dim


def _gradient_bytes(config: JobConfig, num_parameters: int, *, num_shards: int) -> int:
    """Of weights that stay divided; of all, where rounds add up before they are reduced."""
    training = config.training
    num_replicas = config.parallelism.data_parallel_replicate_degree
    round_size = training.local_batch_size * num_shards * num_replicas
    if training.global_batch_size > round_size:
        return TORCH_DTYPE_MAP[training.mixed_precision_reduce].itemsize * num_parameters
    return _FLOAT32_BYTES * -(-num_parameters // num_shards)


def _gathered_bytes(config: JobConfig, args: TinyCommaArgs, width: int, *, num_shards: int) -> int:
    if num_shards == 1:  # whole already; autocast keeps a copy of each weight in its dtype
        return 0 if width == _FLOAT32_BYTES else width * parameter_count(args)
    embedding = args.vocab_size * args.dim
    # The layer at work and the next one, embedding and output; or all, where they stay gathered.
    weights = 2 * (embedding + _layer_parameters(args))
    if config.parallelism.fsdp_reshard_after_forward == "never":
        weights = parameter_count(args)
    # The largest gradient, and its float32 form while it is reduced.
    return width * weights + (width + _FLOAT32_BYTES) * embedding


def _logits_bytes(config: JobConfig, args: TinyCommaArgs, num_tokens: int, width: int) -> int:
    # Logits and gradient in the training dtype, and in float32 a copy and its softmax, which a
    # compiled chunk has in registers.
    is_compiled = config.compile.enable and "loss" in config.compile.components
    per_logit = 2 * width
    if not (args.loss_chunk_tokens and is_compiled):
        per_logit += 2 * _FLOAT32_BYTES
    rows = min(args.loss_chunk_tokens or num_tokens, num_tokens)
    weight_gradients = (width + _FLOAT32_BYTES) * args.dim if args.loss_chunk_tokens else 0
    return args.vocab_size * (rows * per_logit + weight_gradients)


@contextmanager
def meta_model(
    config: JobConfig, args: TinyCommaArgs, *, num_processes: int
) -> Iterator[torch.nn.Module]:
    """The model on the meta device, its weights divided among fake processes; this is the first.

    args: the model's shape, updated from the config. num_processes: a multiple of the config's
    replicas. Raises: RuntimeError where a process group exists already.
    """
    if dist.is_initialized():
        raise RuntimeError("a process group exists: fake processes need one of their own")
    dist.init_process_group("fake", rank=0, world_size=num_processes, store=FakeStore())
    try:
        num_replicas = config.parallelism.data_parallel_replicate_degree
        dims = ParallelDims(
            dp_replicate=num_replicas,
            dp_shard=num_processes // num_replicas,
            **dict.fromkeys(("cp", "tp", "pp", "ep", "etp"), 1),
            world_size=num_processes,
        )
        spec = train_spec()
        with torch.device("meta"):
            yield spec.parallelize_fn(spec.model_cls(args), dims, config)
    finally:
        dist.destroy_process_group()
