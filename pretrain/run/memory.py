"""GPU memory of a training step, estimated from shapes alone.

d hidden_size, f width of the feed-forward, T tokens of a process in a round, P parameters.
"""

from dataclasses import asdict, dataclass

import torch

from ..job_config import JobConfig
from ..model.tinycomma import TinyComma, TinyCommaArgs, parameter_count

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
    """One chunk, or all tokens, with their gradients and, uncompiled, float32 forms."""

    @property
    def total(self) -> int:
        """Sum of all parts; what the allocator and the libraries add is not in it."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in asdict(self).items())
        return f"{self.total / GIB:.1f} GiB ({parts})"


def estimate_memory(config: JobConfig, model: TinyComma, *, num_shards: int) -> MemoryEstimate:
    """Estimate the memory of one GPU in a run whose weights are divided among `num_shards` of them.

    model: on the meta device, for example. Checkpointing of activations other than "full" counts as
    none.
    """
    training, compiled = config.training, config.compile.components if config.compile.enable else ()
    args, num_parameters = model.model_args, parameter_count(model)
    embedding = args.vocab_size * args.dim
    width = getattr(torch, training.mixed_precision_param).itemsize
    shard_bytes = _FLOAT32_BYTES * -(-num_parameters // num_shards)

    # 1. Gradients: of the local shard; of all weights, where rounds add up before they are reduced.
    gradients = shard_bytes
    num_replicas = config.parallelism.data_parallel_replicate_degree
    if training.global_batch_size > training.local_batch_size * num_shards * num_replicas:
        gradients = getattr(torch, training.mixed_precision_reduce).itemsize * num_parameters

    # 2. Gathered weights: the layer at work and the next one, embedding and output; or all, where
    # they stay gathered. With them the largest gradient, and its float32 form while it is reduced.
    num_gathered = 2 * (embedding + parameter_count(model.layers["0"]))
    if config.parallelism.fsdp_reshard_after_forward == "never":
        num_gathered = num_parameters
    gathered = width * num_gathered + (width + _FLOAT32_BYTES) * embedding

    # 3. Activations: of every layer, or its input alone and all those of the one at work.
    layer = width * layer_activation_values(args, is_compiled="model" in compiled)
    activations = args.n_layers * layer
    if config.activation_checkpoint.mode == "full":
        activations = args.n_layers * width * args.dim + layer

    # 4. Logits and gradient in the training dtype, and in float32 a copy and its softmax, which a
    # compiled chunk has in registers; chunks add up the gradient of the weight in float32.
    num_tokens, chunk_tokens = training.local_batch_size * training.seq_len, args.loss_chunk_tokens
    per_logit = 2 * width + (0 if chunk_tokens and "loss" in compiled else 2 * _FLOAT32_BYTES)
    logits = args.vocab_size * min(chunk_tokens or num_tokens, num_tokens) * per_logit
    if chunk_tokens:
        logits += (width + _FLOAT32_BYTES) * embedding
    return MemoryEstimate(
        weights=shard_bytes,
        gradients=gradients,
        optimizer=_ADAM_MOMENTS * shard_bytes,
        gathered=gathered,
        activations=num_tokens * activations,
        logits=logits,
    )


def layer_activation_values(args: TinyCommaArgs, *, is_compiled: bool) -> int:
    """Numbers that one layer saves for backward, per token.

    Of width d: its input, both norms' outputs, q, k, v, attention's output and the sum before the
    feed-forward. Of width f: w1's and w3's outputs, w2's input; silu's output too, which a
    compiled layer computes again. Attention's log-normalizer is one number a head.
    """
    num_wide = 3 if is_compiled else 4
    return 8 * args.dim + num_wide * args.hidden_dim + args.n_heads
