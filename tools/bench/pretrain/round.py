"""A model of a training round's time on GPUs that are not there, from work that is counted.

P parameters, L layers, d hidden_size, T seq_len, V vocab_size, N tokens of a GPU in a round.
"""

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.models.llama3 import Transformer
from torchtitan.models.llama3.model.model import FeedForward
from torchtitan.tools.utils import set_default_dtype

from anchored import text_tables
from anchored.pretrain.job_config import JobConfig, load_job_config
from anchored.pretrain.model.attention import RotaryAttention
from anchored.pretrain.model.loss import IGNORE_INDEX, logit_loss_and_gradient
from anchored.pretrain.model.tinycomma import TinyComma, TinyCommaArgs, flavors

from ..options import BenchPretrainConfig
from .traffic import Traffic, counted

Range = tuple[float, float]
"""The better and the worse end of what is assumed, or of what follows from it."""

PEAK_FLOPS = 989e12
"""Of an H200 or H100 SXM in bfloat16, dense."""
MATMUL_SHARE: Range = (0.70, 0.60)
"""Of the peak, in matrix products of 2,048 to 128,256 columns."""
ATTENTION_SHARE: Range = (0.35, 0.26)
"""Of the peak, in causal attention with heads of 64, its recomputation in backward included."""
MEMORY_BYTES_PER_S = 4.0e12
"""Of the 4.8e12 that an H200 has, in kernels that pass over rows."""
LINK_BYTES_PER_S = 370e9
"""Of the 450e9 that NVLink has in one direction, in collectives of eight."""
EXPOSED_SHARE: Range = (0.5, 0.75)
"""Of the time of collectives, what computing beside them does not hide."""
GOAL_MFU = 0.5

_BF16, _FP32 = 2, 4
_CAUSAL_FLOPS = 7
"""Times L d T: the forward's 2, and 2.5 times as many in backward, which computes scores again."""
_OPTIMIZER_BYTES = 40
"""A weight: AdamW reads and writes it and both moments, and reads the gradient, which is also read
for its norm and scaled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What the levers change."""

    layer_bytes: float
    """Of memory traffic a token and layer, forward and backward, matrix products and attention left
    out."""
    logit_bytes: float
    """Of memory traffic a logit in the pass that makes loss and gradient of it."""
    chunk_tokens: int
    """Whose logits exist at once; each chunk adds to the gradient of the output layer."""
    reductions: int
    """A step, of all gradients; as many times are the weights gathered."""


LEVERS = {
    "layer_bytes": "rotary embedding in real numbers",
    "reductions": "gradients reduced once a step",
    "logit_bytes": "cross entropy without a scatter",
    "chunk_tokens": "larger chunks of logits",
}
UNITS = {
    "layer_bytes": "bytes a token and layer",
    "reductions": "reductions a step",
    "logit_bytes": "bytes a logit",
    "chunk_tokens": "tokens a chunk",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The shape of a run, and of its work on one GPU."""

    args: TinyCommaArgs
    num_parameters: int
    flops_per_token: float
    """As torchtitan counts them, for MFU."""
    num_tokens: int
    num_rounds: int
    num_gpus: int

    @property
    def peak_ms(self) -> float:
        """Of a round at the peak."""
        return 1e3 * self.num_tokens * self.flops_per_token / PEAK_FLOPS

    def term_ms(self, counts: Counts) -> dict[str, Range]:
        """Milliseconds of a round by what takes them."""
        args, tokens = self.args, self.num_tokens
        attention = args.n_layers * args.dim * args.max_seq_len
        head_weights = args.vocab_size * args.dim
        num_chunks = math.ceil(tokens / counts.chunk_tokens)
        memory = {
            "kernels of the layers": counts.layer_bytes * tokens * args.n_layers,
            "passes over logits": counts.logit_bytes * tokens * args.vocab_size,
            # Of a chunk: written and read in bfloat16, added up in float32; scaled at the end.
            "gradient of the output layer": head_weights
            * (num_chunks * 2 * (_BF16 + _FP32) + _FP32 + 3 * _BF16),
            "copies of weights and gradients": self._copied_bytes(counts),
            "optimizer": _OPTIMIZER_BYTES * self.num_parameters / self.num_gpus / self.num_rounds,
        }
        matmul_flops = self.flops_per_token - 12 * attention
        return {
            "matrix products": _at_peak(matmul_flops * tokens, MATMUL_SHARE),
            "attention": _at_peak(_CAUSAL_FLOPS * attention * tokens, ATTENTION_SHARE),
            **{name: (1e3 * size / MEMORY_BYTES_PER_S,) * 2 for name, size in memory.items()},
            "collectives that are not hidden": self._exposed_ms(counts),
        }

    def total_ms(self, counts: Counts) -> Range:
        """Milliseconds of a round."""
        better, worse = zip(*self.term_ms(counts).values(), strict=True)
        return sum(better), sum(worse)

    def _copied_bytes(self, counts: Counts) -> float:
        """In and out of the buffers of collectives, and gradients that are added up, a round."""
        gather, reduce_bf16, reduce_fp32 = 2 * _BF16, _BF16 + _FP32, 2 * _FP32
        each_round = reduce_bf16  # made float32, in a buffer or by itself
        added = _BF16 + 2 * _FP32
        if counts.reductions == self.num_rounds:
            return self.num_parameters * (gather + each_round)
        step = gather + each_round + (self.num_rounds - 1) * added + reduce_fp32
        return self.num_parameters * step / self.num_rounds

    def _exposed_ms(self, counts: Counts) -> Range:
        sent = self.num_parameters * (_BF16 + _FP32) * (self.num_gpus - 1) / self.num_gpus
        all_ms = 1e3 * sent * counts.reductions / self.num_rounds / LINK_BYTES_PER_S
        better, worse = EXPOSED_SHARE
        return better * all_ms, worse * all_ms


def run(config: BenchPretrainConfig) -> int:
    """Print the counts, the terms and the levers; returns 0."""
    job = load_job_config(["--job.config_file", str(config.config)])
    modelled = modelled_run(job, config)
    width = TORCH_DTYPE_MAP[job.training.mixed_precision_param]
    now, before, fused = count_levers(modelled, job.loss.chunk_tokens, width)
    print(
        f"{config.config.stem} on {config.gpus} GPUs: a round of {modelled.num_tokens:,} tokens a "
        f"GPU, {modelled.num_rounds} a step; {modelled.peak_ms:.0f} ms at {PEAK_FLOPS / 1e12:g} "
        "TFLOP/s; a model, not measured on a GPU\n"
    )
    print(text_tables.aligned(("ms a round", "before", "now"), list(_terms(modelled, before, now))))
    print()
    head = ("lever", "counted", "before", "now", "ms a round")
    print(text_tables.aligned(head, list(_lever_rows(modelled, before, now))))
    print(f"\n{_left_out(modelled, now, *fused)}")
    return 0


def modelled_run(job: JobConfig, config: BenchPretrainConfig) -> Run:
    """Raises ValueError for one GPU, which has no collectives, and for less than a round."""
    if config.gpus < 2:
        raise ValueError(f"gpus must be at least 2 for a modelled round, got {config.gpus}")
    training = job.training
    num_rounds = training.global_batch_size // (training.local_batch_size * config.gpus)
    if num_rounds < 1:
        raise ValueError(
            f"training.global_batch_size must be at least one local batch on every GPU, got "
            f"{training.global_batch_size} for {config.gpus} of {training.local_batch_size}"
        )
    args = flavors()[job.model.flavor]
    if args.use_tokenizer_vocab:
        args.use_tokenizer_vocab, args.vocab_size = False, config.vocab_size
    args.update_from_config(job)
    args.attn_type = "sdpa"  # of a mask, the kernels beside attention are the same
    with torch.device("meta"):
        num_parameters, flops = args.get_nparams_and_flops(TinyComma(args), training.seq_len)
    return Run(
        args=args,
        num_parameters=num_parameters,
        flops_per_token=flops,
        num_tokens=training.local_batch_size * training.seq_len,
        num_rounds=num_rounds,
        num_gpus=config.gpus,
    )


def count_levers(
    run: Run, chunk_tokens: int, width: torch.dtype
) -> tuple[Counts, Counts, tuple[Traffic, Traffic]]:
    """The counts now and before, and the traffic of a layer now and with fused projections."""
    plain, complex_rotary, fused = (
        layer_traffic(run, model, width, is_fused=is_fused)
        for model, is_fused in ((TinyComma, False), (Transformer, False), (TinyComma, True))
    )
    now = Counts(
        layer_bytes=plain.kernels / run.num_tokens,
        logit_bytes=logit_bytes(logit_loss_and_gradient, run.args.vocab_size, width),
        chunk_tokens=chunk_tokens or run.num_tokens,
        reductions=1,
    )
    before = Counts(
        layer_bytes=complex_rotary.kernels / run.num_tokens,
        logit_bytes=logit_bytes(scattered_loss_and_gradient, run.args.vocab_size, width),
        chunk_tokens=min(4096, now.chunk_tokens),
        reductions=run.num_rounds,
    )
    return now, before, (plain, fused)


def layer_traffic(
    run: Run, model_class: type[Transformer], width: torch.dtype, *, is_fused: bool
) -> Traffic:
    """Of one layer, forward and backward, on a round's tokens."""
    args = copy(run.args)
    args.n_layers = 1
    rows = run.num_tokens // args.max_seq_len
    with counted() as (traffic, compiled):
        with set_default_dtype(width):
            model = model_class(args)
        layer = model.layers["0"]
        if is_fused:
            fuse_projections(layer)
        hidden = torch.empty(rows, args.max_seq_len, args.dim, dtype=width, requires_grad=True)
        output = compiled(layer)(hidden, model.freqs_cis, None)
        output.backward(torch.empty_like(output))
    return traffic


def logit_bytes(logit_loss: object, vocab_size: int, width: torch.dtype) -> float:
    """Memory traffic a logit of one compiled pass; of rows so many that sums over them are none."""
    num_rows = 1024
    with counted() as (traffic, compiled):
        logits = torch.empty(num_rows, vocab_size, dtype=width)
        compiled(logit_loss)(logits, torch.empty(num_rows, dtype=torch.int64))
    return traffic.kernels / (num_rows * vocab_size)


def scattered_loss_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`logit_loss_and_gradient` as most write it, to be compared with; to the bit the same."""
    has_label = labels != IGNORE_INDEX
    targets = torch.where(has_label, labels, 0)[:, None]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_normalizer = wide.logsumexp(-1, keepdim=True)
    losses = (log_normalizer - wide.gather(-1, targets))[:, 0]
    probs = (wide - log_normalizer).exp_()
    gradient = probs.scatter_add_(-1, targets, torch.full_like(log_normalizer, -1.0))
    gradient *= has_label[:, None]
    return torch.where(has_label, losses, 0.0).sum(), gradient.to(logits.dtype)


class FusedAttention(RotaryAttention):
    """Queries, keys and values by one product with weights that are put together each time."""

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        weights = [self.wq.weight, self.wk.weight, self.wv.weight]
        joined = F.linear(x, torch.cat(weights)).unflatten(-1, (-1, self.head_dim))
        return joined.split([len(weight) // self.head_dim for weight in weights], dim=-2)


class FusedFeedForward(FeedForward):
    """w1 and w3 by one product, likewise."""

    def forward(self, x: Tensor) -> Tensor:
        gates, values = F.linear(x, torch.cat([self.w1.weight, self.w3.weight])).chunk(2, -1)
        output: Tensor = self.w2(F.silu(gates) * values)
        return output


def fuse_projections(layer: nn.Module) -> None:
    """In place; the weights stay as they are."""
    layer.attention.__class__ = FusedAttention
    layer.feed_forward.__class__ = FusedFeedForward


def _at_peak(flops: float, shares: Range) -> Range:
    better, worse = (1e3 * flops / PEAK_FLOPS / share for share in shares)
    return better, worse


def _terms(run: Run, before: Counts, now: Counts) -> Iterator[tuple[str, ...]]:
    earlier, later = run.term_ms(before), run.term_ms(now)
    for name in later:
        yield (name, _milliseconds(earlier[name]), _milliseconds(later[name]))
    totals = run.total_ms(before), run.total_ms(now)
    yield ("together", *map(_milliseconds, totals))
    mfus = [" - ".join(f"{run.peak_ms / ms:.1%}" for ms in total[::-1]) for total in totals]
    yield (f"MFU, of which {GOAL_MFU:.0%} is the goal", *mfus)


def _lever_rows(run: Run, before: Counts, now: Counts) -> Iterator[tuple[str, ...]]:
    for field, name in LEVERS.items():
        values = [getattr(counts, field) for counts in (before, now)]
        changed = run.total_ms(replace(before, **{field: values[1]}))
        won = [early - late for early, late in zip(run.total_ms(before), changed, strict=True)]
        shown = [f"{value:,.0f}" for value in values]
        yield (name, UNITS[field], *shown, _milliseconds((-won[0], -won[1])))


def _left_out(run: Run, now: Counts, plain: Traffic, fused: Traffic) -> str:
    kernels = (plain.kernels - fused.kernels) / run.num_tokens
    saved = (fused.saved - plain.saved) * run.args.n_layers
    won = kernels * run.num_tokens * run.args.n_layers / MEMORY_BYTES_PER_S
    return (
        f"left out: one product for q, k, v and one for w1, w3, of weights joined in each round "
        f"({fused.num_products} products a layer in place of {plain.num_products}): "
        f"{kernels:,.0f} bytes a token and layer of {now.layer_bytes:,.0f} fewer, "
        f"{1e3 * won:.1f} ms, for {saved / 1e9:.1f} GB of activations more"
    )


def _milliseconds(span: Range) -> str:
    better, worse = (f"{ms:.1f}" for ms in span)
    return better if better == worse else f"{better} - {worse}"
