"""Checks of the byte level: laws that stay on the device, their projection, and what waits."""

import copy
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from anchored import Anchored
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.device_stream import DeviceByteStream
from anchored.decode.decoder import choose_level
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.models.attention import row_attention
from anchored.decode.models.model_pair import ModelPair
from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers
from anchored.kernels import reference
from anchored.kernels.projection import project_kl
from anchored.tools.byte_pair import ByteModel, trained_pair

from .check import Check, can_run, skipped

TEXT = b"It's the keeper's  lamp, 1234\n\nof caf\xc3\xa9s"
NUM_BEFORE = 12
VOCAB_SIZES = (400, 600)
LAW_ERROR = 1e-9
"""Nats between float64 laws of two devices."""
BUDGET_NATS = 0.3
NUM_COUNTED = 16
"""Bytes over which waits are counted, behind NUM_BEFORE of them."""

Laws = dict[str, list[Tensor]]


def byte_checks(device: torch.device) -> Iterator[Check]:
    """Laws of every byte of a text, their projection, and the waits of a byte."""
    models = _models(torch.float64)
    laws = {name: _laws(DeviceByteStream, model, device) for name, model in models.items()}
    yield laws_are_the_hosts(laws, models)
    yield projection_keeps_its_bound(laws, device)
    yield one_wait_a_byte(device)


def laws_are_the_hosts(laws: Laws, models: dict[str, ByteModel]) -> Check:
    """Marginals computed on the device against those of the CPU, float64 models on both."""
    error, num_laws = 0.0, 0
    for name, model in models.items():
        expected = _laws(ByteStream, model, torch.device("cpu"))
        for ours, theirs in zip(laws[name], expected, strict=True):
            known = theirs > -torch.inf
            if not torch.equal(known, ours.cpu() > -torch.inf):
                error = torch.inf
            error = max(error, (ours.cpu() - theirs)[known].abs().max().item())
            num_laws += 1
    return Check(
        name="byte laws on the device are those of the host",
        passed=error <= LAW_ERROR,
        detail=f"{num_laws} laws of 257 symbols, largest difference {error:.1e} nats",
    )


def projection_keeps_its_bound(laws: Laws, device: torch.device) -> Check:
    """The Triton projection of these laws: true divergence <= spend <= budget."""
    name = "projections of byte laws keep their bound"
    if not can_run(device):
        return skipped(name, f"Triton cannot run on {device}")
    risky, safe = (torch.cat(laws[model]) for model in ("risky", "safe"))
    if device.type != "cuda":
        risky, safe = risky[:4], safe[:4]  # the interpreter takes its time
    budget = torch.full((len(safe),), BUDGET_NATS, dtype=torch.float64, device=device)
    projection = project_kl(risky, safe, budget, backend="triton")
    divergence = reference.kl_divergence(projection.log_probs().double(), safe)
    over = torch.maximum(divergence - projection.spend, projection.spend - budget).max().item()
    return Check(
        name=name, passed=over <= 1e-12, detail=f"{len(safe)} rows of 257, overspend {over:.1e}"
    )


def one_wait_a_byte(device: torch.device) -> Check:
    """The host waits for the device once a byte: for what was drawn."""
    name = "a byte waits for the device once"
    if device.type != "cuda":
        return skipped(name, "needs CUDA")
    batch = opened_batch(device, batch_size=1, dtype=torch.float32, num_bytes=2 * NUM_COUNTED)
    for _ in range(NUM_BEFORE):
        batch.step()
    torch.cuda.synchronize(device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(NUM_COUNTED):
            batch.step()
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(warning.message) for warning in caught if "synchron" in str(warning.message)]
    return Check(
        name=name,
        passed=len(waits) <= NUM_COUNTED,
        detail=f"{len(waits) / NUM_COUNTED:.2f} waits a byte over {NUM_COUNTED} bytes",
    )


def opened_batch(
    device: torch.device, *, batch_size: int, dtype: torch.dtype, num_bytes: int
) -> PairedBatch:
    """A batch of a random pair with two tokenizers that has read its prompts."""
    models = _models(dtype)
    safe, risky = (model.model.to(device) for model in models.values())
    tokenizers = [model.pretrained_tokenizer() for model in models.values()]
    pair = ModelPair(safe, risky, tokenizers[0], risky_tokenizer=tokenizers[1])
    level, sampling = choose_level(pair, "byte"), SamplingConfig()
    requests = [
        Request(prompt_token_ids=list(TEXT), max_new_tokens=num_bytes, seed=seed, index=seed)
        for seed in range(batch_size)
    ]
    batch = PairedBatch(
        level,
        Anchored(k=BUDGET_NATS, debt="none"),
        sampling,
        num_rows=batch_size,
        max_length=requests[0].max_length,
    )
    batch.admit(requests)
    return batch


def _models(dtype: torch.dtype) -> dict[str, ByteModel]:
    """By "safe" and "risky": random weights, tokenizers that differ."""
    pair = trained_pair(vocab_sizes=VOCAB_SIZES, train_steps=0, context_length=1024)
    for each in pair.models.values():
        each.model.to(dtype)
    return pair.models


def _laws(kind: type[ByteStream], each: ByteModel, device: torch.device) -> list[Tensor]:
    model = copy.deepcopy(each.model).to(device)
    stream = kind(
        model,
        row_attention(model),
        each.vocabulary,
        num_rows=1,
        warp=Warpers(SamplingConfig(), each.vocabulary.stop_token_ids.tolist()),
    )
    laws = [stream.read([list(TEXT[:NUM_BEFORE])], [0]).logits]
    return laws + [stream.feed_rows([0], [[byte]]) for byte in TEXT[NUM_BEFORE:]]
