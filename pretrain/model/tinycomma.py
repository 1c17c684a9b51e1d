"""TinyComma: Llama with plain rotary embeddings and lingua's initial weights.

It is divided among the processes of a run by torchtitan's recipe for Llama 3.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.attention.flex_attention import BlockMask

from ..job_config import JobConfig
from ..titan import (
    FullAC,
    MemoryBudgetAC,
    ParallelDims,
    SelectiveAC,
    device_type,
    parallelize_llama,
)
from ..tokens.shards import MANIFEST_NAME, Manifest
from .attention import RotaryAttention, rotary_table
from .loss import LossHead

# Truncated at three standard deviations, as lingua does for every matrix.
_CUTOFF = 3.0
_CHECKPOINTED = "_checkpoint_wrapped_module."  # in names of weights


@dataclass
class TinyCommaArgs:
    """Shape of a model. Heads of 64, untied embeddings, no grouped queries, no biases."""

    dim: int
    n_layers: int
    n_heads: int
    multiple_of: int = 256
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    vocab_size: int = 0
    needs_shards: bool = False
    """True if vocab_size is known from the token shards alone; else only if these are there."""
    max_seq_len: int = 2048
    masks_documents: bool = False
    init_seed: int = 0
    loss_chunk_tokens: int = 0
    """Logits of this many tokens at a time make the loss; 0: those of all."""

    @property
    def hidden_dim(self) -> int:
        """Width of the feed-forward: two thirds of 4 * dim, rounded up to multiple_of."""
        return -(-int(8 * self.dim / 3) // self.multiple_of) * self.multiple_of


class FeedForward(nn.Module):
    """Llama's: w2(silu(w1(x)) * w3(x)). Source: Shazeer 2020, "GLU Variants", SwiGLU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, dim) -> alike."""
        output: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return output


class Layer(nn.Module):
    """Attention and feed-forward, each added to what it read, normalized."""

    def __init__(self, args: TinyCommaArgs) -> None:
        super().__init__()
        self.attention = RotaryAttention(
            args.dim, args.n_heads, masks_documents=args.masks_documents
        )
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)

    def forward(self, x: Tensor, table: Tensor, attention_masks: BlockMask | None) -> Tensor:
        """x (B, T, dim) -> alike."""
        hidden = x + self.attention(self.attention_norm(x), table, attention_masks)
        output: Tensor = hidden + self.feed_forward(self.ffn_norm(hidden))
        return output


class TinyComma(nn.Module):
    """The model that is trained; export makes a Hugging Face LlamaForCausalLM of its weights.

    Its attributes have the names by which torchtitan's recipe looks for them.
    """

    rotary_table: Tensor
    enable_weight_tying = False

    def __init__(self, model_args: TinyCommaArgs) -> None:
        super().__init__()
        self.model_args = args = model_args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(index): Layer(args) for index in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.output = LossHead(args.dim, args.vocab_size, chunk_tokens=args.loss_chunk_tokens)
        self.register_buffer("rotary_table", self._table(), persistent=False)

    @property
    def lm_head(self) -> LossHead:
        """The output layer, which checkpoints have under its other name."""
        return self.output

    def forward(
        self, tokens: Tensor, attention_masks: BlockMask | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) -> logits (B, T, V), or the summed cross entropy in nats of labels (B, T).

        attention_masks: of `document_mask`, where the model masks documents.
        """
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden, self.rotary_table, attention_masks)
        output: Tensor = self.output(self.norm(hidden), labels)
        return output

    def init_weights(self) -> None:
        """Fill weights and table, on the device where they lie."""
        args = self.model_args
        with torch.device(self.rotary_table.device):
            self.rotary_table = self._table()
        initialize_weights(self, dim=args.dim, hidden_dim=args.hidden_dim, seed=args.init_seed)

    def _table(self) -> Tensor:
        args = self.model_args
        return rotary_table(args.max_seq_len, args.dim // args.n_heads, args.rope_theta)

    def flops_per_token(self) -> int:
        """Floating point operations of a training step, per token: 6 (P - E) + 12 L d T.

        P parameters, E of them embeddings, L layers of width d, T tokens in a sequence. Source:
        Chowdhery et al. 2022, "PaLM", appendix B.
        """
        args, embedding = self.model_args, self.tok_embeddings.weight.numel()
        return 6 * (parameter_count(self) - embedding) + (
            12 * args.n_layers * args.dim * args.max_seq_len
        )


def parameter_count(module: nn.Module) -> int:
    """Numbers in all weights of a module."""
    return sum(weight.numel() for weight in module.parameters())


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
    args = replace(
        flavors()[config.model.flavor],
        max_seq_len=config.training.seq_len,
        masks_documents=config.data.mask_documents,
        init_seed=config.debug.seed or 0,
        loss_chunk_tokens=config.loss.chunk_tokens,
    )
    for source in config.data.sources[:1]:
        folder = Path(source.path)
        if args.needs_shards or (folder / MANIFEST_NAME).is_file():
            args.vocab_size = Manifest.read(folder).vocab_size
    return args


def initialize_weights(model: nn.Module, *, dim: int, hidden_dim: int, seed: int) -> None:
    """Fill every parameter of a Llama model in place.

    Norms are 1; w2 of the feed-forward has standard deviation hidden_dim**-0.5, every other matrix
    dim**-0.5, without depth scaling. Each parameter is drawn whole from a generator keyed by the
    seed and its name, then cut to the local shard: so the values do not depend on the sharding.
    Source: lingua (2024), init_std_factor "disabled", init_base_std None.
    """
    for name, parameter in model.named_parameters():
        name = name.replace(_CHECKPOINTED, "")
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


def parallel_dims(config: JobConfig, num_processes: int) -> ParallelDims:
    """The grid of a run's processes: replicas of a model, and in each the shards of its weights."""
    num_replicas = config.parallelism.data_parallel_replicate_degree
    shards = {"dp_replicate": num_replicas, "dp_shard": num_processes // num_replicas}
    ones = dict.fromkeys(("cp", "tp", "pp", "ep"), 1)
    backend = config.parallelism.spmd_backend
    return ParallelDims(**shards, **ones, world_size=num_processes, spmd_backend=backend)


def parallelized(model: TinyComma, dims: ParallelDims, config: JobConfig) -> TinyComma:
    """Compile the parts that the config names and shard the weights with FSDP2, in place."""
    settings, memory_budget = config.compile, config.activation_checkpoint.memory_budget
    if settings.enable and "loss" in settings.components:
        model.output.compile_loss(settings.backend)
    checkpointing = {
        "none": None,
        "full": FullAC.Config(),
        "selective": SelectiveAC.Config(),
        "memory_budget": MemoryBudgetAC.Config(memory_budget=memory_budget),
    }
    sharded: TinyComma = parallelize_llama(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=settings,
        ac_config=checkpointing[config.activation_checkpoint.mode],
        dump_folder=config.job.dump_folder,
    )
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
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(is_due)
    model.set_reshard_after_backward(is_due or not keeps_weights)
