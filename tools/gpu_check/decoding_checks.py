"""Checks of decoding: attention, whole batches with their ledgers, and the byte level."""

import copy
import math
import warnings
from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch import Tensor

from anchored import Anchored, Decoder, Generation, ModelPair, verify
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.device_stream import DeviceByteStream
from anchored.decode.decoder import choose_level
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.models.attention import row_attention
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import EngineName, SamplingConfig, Speculate
from anchored.decode.warpers import Warpers
from anchored.kernels import reference
from anchored.kernels.decode_attention import decode_attention
from anchored.kernels.projection import project_kl
from anchored.tools.bench.byte_pair import ByteModel, trained_pair
from anchored.tools.bench.random_inputs import random_pair

from .check import Check, can_run, skipped

ATTENTION_NAME = "decode attention reads each row's own length"
ATTENTION_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
VOCAB_SIZE = 2048
NUM_REQUESTS = 9
NUM_NEW_TOKENS = 12
LENGTHS = (3, 17, 40)
"""Prompt tokens, in turn, so that rows differ and join and leave."""
TEXT = b"It's the keeper's  lamp, 1234\n\nof caf\xc3\xa9s"
NUM_BEFORE = 12
BYTE_VOCAB_SIZES = (400, 600)
BYTE_LAW_ERROR = 1e-9
"""Nats between float64 laws of two devices."""
BUDGET_NATS = 0.3
NUM_COUNTED = 16
"""Bytes over which waits are counted, behind NUM_BEFORE of them."""
Laws = dict[str, list[Tensor]]


def attention_checks(device: torch.device) -> Iterator[Check]:
    """One check: rows of unlike lengths, grouped heads, one and several new columns."""
    if not can_run(device):
        yield skipped(ATTENTION_NAME, f"Triton cannot run on {device}")
        return
    worst, passed = 0.0, True
    for dtype, tolerance in ATTENTION_ERROR.items():
        for num_columns in (1, 5):
            inputs = _attention_inputs(device, dtype, num_columns)
            attended = decode_attention(*inputs, backend="triton")
            error = (attended.double() - _exact_attention(*inputs)).abs()
            worst = max(worst, error.max().item())
            passed &= error.max().item() <= tolerance
    yield Check(name=ATTENTION_NAME, passed=passed, detail=f"largest difference {worst:.1e}")


def _attention_inputs(
    device: torch.device, dtype: torch.dtype, num_columns: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and positions."""
    capacity = 4096 if device.type == "cuda" else 150
    generator = torch.Generator().manual_seed(num_columns)
    shapes = [(3, 32, num_columns, 128), (3, 8, capacity, 128), (3, 8, capacity, 128)]
    if device.type != "cuda":
        shapes = [(3, 4, num_columns, 16), (3, 2, capacity, 16), (3, 2, capacity, 16)]
    query, key, value = (
        torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes
    )
    starts = torch.tensor([0, capacity // 2, capacity - num_columns])
    positions = (starts[:, None] + torch.arange(num_columns)).to(device)
    return query, key, value, positions


def _exact_attention(query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, dim=1) for x in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    columns = torch.arange(key.shape[2], device=key.device)
    is_hidden = columns > positions[:, None, :, None]
    return scores.masked_fill(is_hidden, -math.inf).softmax(-1) @ value


def engine_checks(device: torch.device) -> Iterator[Check]:
    """Both divergences: the same tokens in any batch and engine, within the bound, verified."""
    pair = _pair(torch.float64, device)
    for rule in (Anchored(k=0.5), Anchored(k=0.5, divergence="max")):
        yield same_in_any_batch(pair, rule)
        yield ledgers_verify(pair, rule)
        for num_drafts in (0, 3):
            yield same_in_any_engine(rule, device, num_drafts)


def same_in_any_batch(pair: ModelPair, rule: Rule) -> Check:
    """Tokens of a request are the same alone and beside others (float64 models)."""
    alone, together = (_generated(pair, rule, batch_size) for batch_size in (1, 4))
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True))
    return Check(
        name=f"{rule.name}: tokens do not depend on the batch",
        passed=num_equal == NUM_REQUESTS,
        detail=f"{num_equal} of {NUM_REQUESTS} requests equal at batch 1 and 4",
    )


def ledgers_verify(pair: ModelPair, rule: Rule) -> Check:
    """Every ledger stays within its bound, and a replay agrees with the first of them."""
    results = _generated(pair, rule, batch_size=4)
    num_within = sum(result.ledger.is_within_bound for result in results)
    report = verify(results[0].ledger, pair)
    return Check(
        name=f"{rule.name}: ledgers stay within their bound and verify",
        passed=num_within == NUM_REQUESTS and report.is_ok,
        detail=f"{num_within} of {NUM_REQUESTS} within; {report}",
    )


def same_in_any_engine(rule: Rule, device: torch.device, num_drafts: int) -> Check:
    """Steps captured in a CUDA graph draw the tokens of eager ones, and their ledgers verify.

    The eager ones are plain, whatever those in the graph draft.

    Float32 models, so one request of all may meet a boundary of the sampler that rounding decides.
    """
    name = f"{rule.name}: a captured step with {num_drafts} drafts draws the tokens of an eager one"
    if device.type != "cuda":
        return skipped(name, "needs CUDA")
    pair = _pair(torch.float32, device)
    eager = _generated(pair, rule, 4)
    captured = _generated(pair, rule, 4, "device", num_drafts or "off")
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(eager, captured, strict=True))
    reports = [verify(result.ledger, pair) for result in captured]
    num_verified = sum(report.is_ok for report in reports)
    return Check(
        name=name,
        passed=num_equal >= NUM_REQUESTS - 1 and num_verified == NUM_REQUESTS,
        detail=f"{num_equal} of {NUM_REQUESTS} equal, {num_verified} verify; {reports[0]}",
    )


def _pair(dtype: torch.dtype, device: torch.device) -> ModelPair:
    return random_pair(
        "tiny",
        "small",
        vocab_size=VOCAB_SIZE,
        context_length=128,
        dtype=dtype,
        device=str(device),
    )


def _generated(
    pair: ModelPair,
    rule: Rule,
    batch_size: int,
    engine: EngineName = "eager",
    speculate: Speculate = "off",
) -> list[Generation]:
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
        for length in islice(cycle(LENGTHS), NUM_REQUESTS)
    ]
    decoder = Decoder(pair, rule, batch_size=batch_size, engine=engine, speculate=speculate)
    return decoder.generate(prompts, max_new_tokens=NUM_NEW_TOKENS, seed=list(range(NUM_REQUESTS)))


def byte_checks(device: torch.device) -> Iterator[Check]:
    """Laws of every byte of a text, their projection, and the waits of a byte."""
    models = _byte_models(torch.float64)
    laws = {name: _byte_laws(DeviceByteStream, model, device) for name, model in models.items()}
    yield laws_are_the_hosts(laws, models)
    yield projection_keeps_its_bound(laws, device)
    yield one_wait_a_byte(device)


def laws_are_the_hosts(laws: Laws, models: dict[str, ByteModel]) -> Check:
    """Marginals computed on the device against those of the CPU, float64 models on both."""
    error, num_laws = 0.0, 0
    for name, model in models.items():
        expected = _byte_laws(ByteStream, model, torch.device("cpu"))
        for ours, theirs in zip(laws[name], expected, strict=True):
            known = theirs > -torch.inf
            if not torch.equal(known, ours.cpu() > -torch.inf):
                error = torch.inf
            error = max(error, (ours.cpu() - theirs)[known].abs().max().item())
            num_laws += 1
    return Check(
        name="byte laws on the device are those of the host",
        passed=error <= BYTE_LAW_ERROR,
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
    models = _byte_models(dtype)
    safe, risky = (torch.nn.Module.to(model.model, device) for model in models.values())
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


def _byte_models(dtype: torch.dtype) -> dict[str, ByteModel]:
    """By "safe" and "risky": random weights, tokenizers that differ."""
    pair = trained_pair(vocab_sizes=BYTE_VOCAB_SIZES, train_steps=0, context_length=1024)
    for each in pair.models.values():
        torch.nn.Module.to(each.model, dtype)
    return pair.models


def _byte_laws(kind: type[ByteStream], each: ByteModel, device: torch.device) -> list[Tensor]:
    model = torch.nn.Module.to(copy.deepcopy(each.model), device)
    stream = kind(
        model,
        row_attention(model),
        each.vocabulary,
        num_rows=1,
        warp=Warpers(SamplingConfig(), each.vocabulary.stop_token_ids.tolist()),
    )
    laws = [stream.read([list(TEXT[:NUM_BEFORE])], [0]).logits]
    return laws + [stream.feed_rows([0], [[byte]]) for byte in TEXT[NUM_BEFORE:]]
