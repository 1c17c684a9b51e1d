"""TinyComma: torchtitan's Llama 3 with plain rotary embeddings and lingua's initial weights.

It is divided among the processes of a run by torchtitan's recipe for Llama 3.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.attention.flex_attention import BlockMask

from ..job_config import JobConfig
from ..titan import (
    ParallelDims,
    RoPEScalingArgs,
    Transformer,
    TransformerModelArgs,
    device_type,
    parallelize_llama,
    precompute_freqs_cis,
)
from ..tokens.shards import MANIFEST_NAME, Manifest
from .attention import RotaryAttention, rotary_table
from .loss import LossHead, logit_loss_and_gradient

# Truncated at three standard deviations, as lingua does for every matrix.
_CUTOFF = 3.0
_WRAPPER_PREFIXES = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass
class TinyCommaArgs(TransformerModelArgs):
    """Shape of a model. Heads of 64, untied embeddings, no grouped queries, no biases."""

    # torchtitan's default factor of 8 changes the angles; 1 leaves them as plain Llama has them.
    rope_scaling_args: RoPEScalingArgs = field(
        default_factory=partial(RoPEScalingArgs, scaling_factor=1.0)
    )
    needs_shards: bool = False
    """True if vocab_size is known from the token shards alone; else only if these are there."""
    init_seed: int = 0
    loss_chunk_tokens: int = 0
    """Logits of this many tokens at a time make the loss, which a forward with labels returns."""

    @property
    def hidden_dim(self) -> int:
        """Width of the feed-forward: two thirds of 4 * dim, rounded up to multiple_of."""
        return -(-int(8 * self.dim / 3) // self.multiple_of) * self.multiple_of

    def update_from_config(self, job_config: JobConfig, **kwargs: Any) -> None:
        super().update_from_config(job_config, **kwargs)
        self.init_seed = job_config.debug.seed
        self.loss_chunk_tokens = job_config.loss.chunk_tokens
        self.attn_type = "flex" if job_config.data.mask_documents else "sdpa"
        for source in job_config.data.sources[:1]:
            folder = Path(source.path)
            if self.needs_shards or (folder / MANIFEST_NAME).is_file():
                self.vocab_size = Manifest.read(folder).vocab_size


class TinyComma(Transformer):
    """The model that is trained; export makes a Hugging Face LlamaForCausalLM of its weights."""

    freqs_cis: Tensor

    def __init__(self, model_args: TinyCommaArgs) -> None:
        super().__init__(model_args)
        for layer in self.layers.values():
            layer.attention = RotaryAttention(model_args)
        self.share_rotary_table()
        if model_args.loss_chunk_tokens:
            self.output = LossHead(
                model_args.dim, model_args.vocab_size, chunk_tokens=model_args.loss_chunk_tokens
            )

    def forward(
        self, tokens: Tensor, attention_masks: BlockMask | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) -> logits (B, T, V), or the loss with labels (B, T).

        The loss is the summed cross entropy in nats, and needs loss_chunk_tokens. Without
        attention_masks attention is causal, and attn_type must be "sdpa"; with them "flex".
        """
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden, None, attention_masks)
        hidden = self.norm(hidden)
        return self.output(hidden) if labels is None else self.output(hidden, labels)

    def init_weights(self, buffer_device: torch.device | None = None) -> None:
        with torch.device(buffer_device or self.freqs_cis.device):
            self.share_rotary_table()
        args = self.model_args
        initialize_weights(self, dim=args.dim, hidden_dim=args.hidden_dim, seed=args.init_seed)

    def share_rotary_table(self) -> None:
        """Compute the table of all layers on torch's present device."""
        args = self.model_args
        angles = precompute_freqs_cis(
            args.dim // args.n_heads, args.max_seq_len, args.rope_theta, args.rope_scaling_args
        )
        self.freqs_cis = rotary_table(angles)
        for module in self.modules():
            if isinstance(module, RotaryAttention):
                module.rotary_table = self.freqs_cis


def flavors() -> dict[str, TinyCommaArgs]:
    """The models that `model.flavor` can name."""
    small = partial(TinyCommaArgs, multiple_of=32, needs_shards=True)
    comma = partial(
        TinyCommaArgs, vocab_size=128256, multiple_of=256, norm_eps=1e-5, rope_theta=10000.0
    )
    return {
        "smoke": small(dim=32, n_layers=2, n_heads=2),
        # For trials: 4.9 million parameters with 8,192 tokens; and for a CPU and many tokens.
        "trial": small(dim=192, n_layers=4, n_heads=3, multiple_of=64),
        "narrow": small(dim=64, n_layers=2, n_heads=1),
        "quickstart": small(dim=128, n_layers=3, n_heads=4),
        # Widths: paper. Vocabulary without shards: Llama 3 tokenizer. Feed-forward 5632 and untied
        # embeddings follow from the paper's parameter count; theta, eps: lingua defaults.
        "tinycomma-1.8b": comma(dim=2048, n_layers=24, n_heads=32),
    }


def model_args(config: JobConfig) -> TinyCommaArgs:
    """The model of a run: its flavor, updated from the other settings."""
    args = flavors()[config.model.flavor]
    args.update_from_config(config)
    return args


def initialize_weights(model: nn.Module, *, dim: int, hidden_dim: int, seed: int) -> None:
    """Fill every parameter of a Llama model in place.

    Norms are 1; w2 of the feed-forward has standard deviation hidden_dim**-0.5, every other matrix
    dim**-0.5, without depth scaling. Each parameter is drawn whole from a generator keyed by the
    seed and its name, then cut to the local shard: so the values do not depend on the sharding.
    Source: lingua (2024), init_std_factor "disabled", init_base_std None.
    """
    for name, parameter in model.named_parameters():
        for prefix in _WRAPPER_PREFIXES:
            name = name.replace(prefix, "")
        if "norm" in name:
            nn.init.ones_(parameter)
        else:
            width = hidden_dim if name.endswith("feed_forward.w2.weight") else dim
            _fill_truncated_normal(parameter, std=width**-0.5, key=f"{seed}/{name}")


@torch.no_grad()
def _fill_truncated_normal(parameter: Tensor, *, std: float, key: str) -> None:
    key_bytes = hashlib.sha256(key.encode()).digest()[:8]
    generator = torch.Generator(parameter.device)
    generator.manual_seed(int.from_bytes(key_bytes, "little") >> 1)
    full = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
    cutoff = _CUTOFF * std
    nn.init.trunc_normal_(full, std=std, a=-cutoff, b=cutoff, generator=generator)
    if isinstance(parameter, DTensor):
        # src_data_rank=None: every rank has drawn the same values, so none needs to be sent.
        full = distribute_tensor(
            full, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    parameter.copy_(full)


class ProcessGrid(ParallelDims):
    """Replicas of a model, and in each the shards of its weights: all of them FSDP2's.

    torchtitan takes DDP for replicas of one shard, which divides the sum of their gradients by
    their number, once a round: the loss is a mean over all tokens already.
    """

    @property
    def fsdp_enabled(self) -> bool:
        return self.world_size > 1

    def _mesh_exist(self, name: str, degree: int) -> bool:
        return self.fsdp_enabled if name == "fsdp" else bool(super()._mesh_exist(name, degree))


def parallel_dims(config: JobConfig, num_processes: int) -> ProcessGrid:
    """The grid of a run's processes; all of its parallelism is in the data."""
    num_replicas = config.parallelism.data_parallel_replicate_degree
    shards = {"dp_replicate": num_replicas, "dp_shard": num_processes // num_replicas}
    ones = dict.fromkeys(("cp", "tp", "pp", "ep", "etp"), 1)
    return ProcessGrid(**shards, **ones, world_size=num_processes)


def parallelized(model: TinyComma, dims: ParallelDims, config: JobConfig) -> TinyComma:
    """Compile the parts that the config names and shard the weights with FSDP2, in place."""
    settings = config.compile
    if config.loss.chunk_tokens and settings.enable and "loss" in settings.components:
        # One pass over a chunk's logits in place of six: they are its only memory traffic.
        model.output.logit_loss = torch.compile(logit_loss_and_gradient, backend=settings.backend)
    sharded: TinyComma = parallelize_llama(model, dims, config)
    if device_type == "cpu":
        # The loss is a mean already: torchtitan asks for a division of the gradients by 1, for
        # which FSDP2 uses a reduction that gloo does not have.
        for module in fsdp_modules(sharded):
            module.set_force_sum_reduction_for_comms(True)
    return sharded


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    """All modules whose weights FSDP2 has divided among the processes."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def schedule_reduction(model: nn.Module, *, is_due: bool, keeps_weights: bool) -> None:
    """Say whether the processes add their gradients up in the next backward.

    Until that is due, each adds up its rounds, in the dtype of the reduction: a step of any number
    of rounds reduces once. keeps_weights: they stay gathered until then, too.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_due)
        model.set_reshard_after_backward(is_due or not keeps_weights)
