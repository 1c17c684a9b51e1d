"""Checks of decoding: attention, whole batches with their ledgers, the byte level, and waits."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from anchored import Anchored, Decoder, Generation, ModelPair, verify
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.device_stream import DeviceByteStream
from anchored.decode.decoder import choose_level
from anchored.decode.engine.device_batch import DeviceBatch
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.levels.level import TokenLevel
from anchored.decode.models.attention import row_attention
from anchored.decode.models.backbone import (
    Backbone,
    LeanBackbone,
    ModuleBackbone,
    lean_refusal,
    read_prompts,
)
from anchored.decode.models.kv_cache import RowCache
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import EngineName, SamplingConfig, Speculate
from anchored.decode.warpers import Warpers
from anchored.kernels import reference
from anchored.kernels.decode_attention import decode_attention
from anchored.kernels.projection import project_kl
from anchored.tools.bench.byte.pair import ByteModel, trained_pair
from anchored.tools.bench.random_inputs import random_llama, random_pair

from .check import Check, RunCheck, Sizes

ATTENTION_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BYTE_PROMPT = b"It's the keeper's"
NUM_BEFORE = 12
"""Bytes of the text that are read as a prompt, or drawn before anything is counted."""
BYTE_VOCAB_SIZES = (400, 600)
BYTE_LAW_ERROR = 1e-9
"""Nats between float64 laws of two devices."""
BUDGET_NATS = 0.3
NUM_LAWS = 8
"""Laws of bytes that are projected."""
LEAN_FACTOR = 1.5
"""How much further from float32 than the modules of transformers the lean layers may be."""
Laws = dict[str, list[Tensor]]
KL, MAX = Anchored(k=0.5), Anchored(k=0.5, divergence="max")


def attention(device: torch.device, sizes: Sizes) -> Check:
    """Rows of unlike lengths, grouped heads, one and several new columns, rows by their number."""
    worst, passed = 0.0, True
    for dtype, tolerance in ATTENTION_ERROR.items():
        for num_columns in (1, 5):
            inputs = _attention_inputs(device, sizes, dtype, num_columns)
            rows = torch.arange(3, device=device).repeat_interleave(num_columns)[::num_columns]
            attended = decode_attention(*inputs, rows=rows, backend="triton")
            error = (attended.double() - _exact_attention(*inputs)).abs()
            worst = max(worst, error.max().item())
            passed &= error.max().item() <= tolerance
    return Check(
        passed=passed,
        detail=f"largest difference {worst:.1e}",
    )


def _attention_inputs(
    device: torch.device, sizes: Sizes, dtype: torch.dtype, num_columns: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and positions."""
    num_heads, num_key_heads, capacity, head_size = sizes.attention_shape
    generator = torch.Generator().manual_seed(num_columns)
    shapes = [(3, num_heads, num_columns, head_size)] + 2 * [
        (3, num_key_heads, capacity, head_size)
    ]
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


def lean_layers(device: torch.device, sizes: Sizes) -> Check:
    """bfloat16 hidden states of columns at positions on the device: the lean layers' are as near to
    the float32 modules' as those of the bfloat16 modules."""
    torch.manual_seed(5)
    shape, vocab_size = sizes.pair_shapes[1], sizes.vocab_size
    model = random_llama(shape, vocab_size, 64, dtype=torch.bfloat16, device=str(device))
    if refusal := lean_refusal(model, row_attention(model)):
        return Check(passed=False, detail=refusal)
    exact = copy.deepcopy(model).float()
    backbones = (ModuleBackbone(exact), ModuleBackbone(model), LeanBackbone(model))
    with torch.inference_mode():
        expected, plain, lean = (_hidden(each, exact, vocab_size) for each in backbones)
    plain_error, lean_error = (
        (each - expected).square().mean().sqrt().item() for each in (plain, lean)
    )
    return Check(
        passed=lean_error <= LEAN_FACTOR * plain_error,
        detail=f"off by {lean_error:.1e}, the modules by {plain_error:.1e}",
    )


def _hidden(backbone: Backbone, model: PreTrainedModel, vocab_size: int) -> Tensor:
    """(3, 4, D) float32, behind a prompt of 7 tokens: of one column, then of three."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(2, vocab_size, (3, 11), generator=generator).to(model.device)
    places = torch.arange(11, device=model.device).expand(3, 11)
    cache = RowCache(model.config.num_hidden_layers, 3, 64)
    cache.reserve()
    read_prompts(backbone, cache, [0, 1, 2], tokens[:, :7], [7, 7, 7])
    steps = (slice(7, 8), slice(8, 11))
    return torch.cat([backbone.at(tokens[:, s], places[:, s], cache) for s in steps], 1).float()


def same_in_any_batch(rule: Rule, device: torch.device, sizes: Sizes) -> Check:
    """Tokens of a request are the same alone and beside others (float64 models)."""
    pair = _pair(torch.float64, device, sizes)
    alone, together = (_generated(pair, rule, sizes, batch_size) for batch_size in (1, 4))
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True))
    return Check(
        passed=num_equal == sizes.num_requests,
        detail=f"{num_equal} of {sizes.num_requests} requests equal at batch 1 and 4",
    )


def ledgers_verify(rule: Rule, device: torch.device, sizes: Sizes) -> Check:
    """Every ledger stays within its bound, and a replay agrees with the first of them."""
    pair = _pair(torch.float64, device, sizes)
    results = _generated(pair, rule, sizes, batch_size=4)
    num_within = sum(result.ledger.is_within_bound for result in results)
    report = verify(results[0].ledger, pair)
    return Check(
        passed=num_within == sizes.num_requests and report.is_ok,
        detail=f"{num_within} of {sizes.num_requests} within; {report}",
    )


def same_in_any_engine(rule: Rule, drafts: bool, device: torch.device, sizes: Sizes) -> Check:
    """Steps captured in a CUDA graph draw the tokens of eager ones, and their ledgers verify.

    The eager ones are plain, whatever those in the graph draft.
    Float32 models, so one request of all may meet a boundary of the sampler that rounding decides.
    """
    num_drafts = sizes.num_drafts if drafts else 0
    pair = _pair(torch.float32, device, sizes)
    eager = _generated(pair, rule, sizes, 4)
    captured = _generated(pair, rule, sizes, 4, "device", num_drafts or "off")
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(eager, captured, strict=True))
    reports = [verify(result.ledger, pair) for result in captured]
    num_verified = sum(report.is_ok for report in reports)
    return Check(
        passed=num_equal >= len(eager) - 1 and num_verified == len(eager),
        detail=f"{num_equal} of {len(eager)} equal, {num_verified} verify; {reports[0]}",
    )


def _pair(dtype: torch.dtype, device: torch.device, sizes: Sizes) -> ModelPair:
    return random_pair(
        *sizes.pair_shapes,
        vocab_size=sizes.vocab_size,
        context_length=128,
        dtype=dtype,
        device=str(device),
    )


def _generated(
    pair: ModelPair,
    rule: Rule,
    sizes: Sizes,
    batch_size: int,
    engine: EngineName = "eager",
    speculate: Speculate = "off",
) -> list[Generation]:
    decoder = Decoder(pair, rule, batch_size=batch_size, engine=engine, speculate=speculate)
    return decoder.generate(
        _prompts(sizes), max_new_tokens=sizes.num_new_tokens, seed=list(range(sizes.num_requests))
    )


def _prompts(sizes: Sizes) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(2, sizes.vocab_size, (length,), generator=generator).tolist()
        for length in islice(cycle(sizes.prompt_lengths), sizes.num_requests)
    ]


def laws_are_the_hosts(device: torch.device, sizes: Sizes) -> Check:
    """Marginals computed on the device against those of the CPU, float64 models on both."""
    error, num_laws = 0.0, 0
    for model in _byte_models(torch.float64).values():
        ours = _byte_laws(DeviceByteStream, model, device, sizes.byte_text)
        expected = _byte_laws(ByteStream, model, torch.device("cpu"), sizes.byte_text)
        for law, theirs in zip(ours, expected, strict=True):
            known = theirs > -torch.inf
            if not torch.equal(known, law.cpu() > -torch.inf):
                error = torch.inf
            error = max(error, (law.cpu() - theirs)[known].abs().max().item())
            num_laws += 1
    return Check(
        passed=error <= BYTE_LAW_ERROR,
        detail=f"{num_laws} laws of 257 symbols, largest difference {error:.1e} nats",
    )


def byte_projections(device: torch.device, sizes: Sizes) -> Check:
    """The Triton projection of these laws: true divergence <= spend <= budget."""
    risky, safe = (
        torch.cat(_byte_laws(DeviceByteStream, model, device, sizes.byte_text)[:NUM_LAWS])
        for model in _byte_models(torch.float64).values()
    )
    budget = torch.full((len(safe),), BUDGET_NATS, dtype=torch.float64, device=device)
    projection = project_kl(risky, safe, budget, backend="triton")
    divergence = reference.kl_divergence(projection.log_probs().double(), safe)
    over = torch.maximum(divergence - projection.spend, projection.spend - budget).max().item()
    return Check(
        passed=over <= 1e-12,
        detail=f"{len(safe)} rows of 257, overspend {over:.1e}",
    )


def byte_waits(device: torch.device, sizes: Sizes) -> Check:
    """The host waits for the device once a byte: for what was drawn."""
    total = NUM_BEFORE + sizes.num_counted
    batch = opened_batch(device, batch_size=1, dtype=torch.float32, num_bytes=total + 1)
    for _ in range(NUM_BEFORE if sizes.is_timed else 1):
        batch.step()
    return _waits_at_most(1.0, batch.step, sizes.num_counted)


def token_waits(device: torch.device, sizes: Sizes) -> Check:
    """The host waits once for an eager token; twice is what is allowed."""
    pair = _pair(torch.float32, device, sizes)
    batch = PairedBatch(TokenLevel(pair), KL, SamplingConfig(), num_rows=2, max_length=100)
    batch.admit(_requests(sizes)[:2])
    batch.step()
    return _waits_at_most(2.0, batch.step, sizes.num_counted)


def step_waits(device: torch.device, sizes: Sizes) -> Check:
    """Replays wait for nothing; the host looks at what they drew."""
    pair = _pair(torch.float32, device, sizes)
    batch = DeviceBatch(TokenLevel(pair), KL, SamplingConfig(), num_rows=2, max_length=100)
    batch.admit(_requests(sizes)[:2])
    return _waits_at_most(0.0, batch._runs[0], 1)


def _requests(sizes: Sizes) -> list[Request]:
    return [
        Request(prompt_token_ids=prompt, max_new_tokens=40, seed=index, index=index)
        for index, prompt in enumerate(_prompts(sizes))
    ]


def _waits_at_most(allowed: float, work: Callable[[], object], num_counted: int) -> Check:
    waits = num_waits(work, num_counted)
    return Check(
        passed=waits <= allowed * num_counted,
        detail=f"{waits / num_counted:.2f} waits each over {num_counted}",
    )


def num_waits(work: Callable[[], object], num_times: int) -> int:
    """How often the host waited for the device in so many calls, as torch counts it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(num_times):
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in caught)


def opened_batch(
    device: torch.device, *, batch_size: int, dtype: torch.dtype, num_bytes: int
) -> PairedBatch:
    """A batch of a random pair with two tokenizers that has read its prompts."""
    pair = model_pair(_byte_models(dtype), device)
    level, sampling = choose_level(pair, "byte"), SamplingConfig()
    requests = [
        Request(prompt_token_ids=list(BYTE_PROMPT), max_new_tokens=num_bytes, seed=seed, index=seed)
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


def model_pair(models: Mapping[str, ByteModel], device: torch.device) -> ModelPair:
    """Of "safe" and "risky", on the device."""
    safe, risky = (torch.nn.Module.to(each.model, device) for each in models.values())
    tokenizer, risky_tokenizer = (each.pretrained_tokenizer() for each in models.values())
    return ModelPair(safe, risky, tokenizer, risky_tokenizer=risky_tokenizer)


def _byte_models(dtype: torch.dtype) -> dict[str, ByteModel]:
    """By "safe" and "risky": random weights, tokenizers that differ."""
    pair = trained_pair(vocab_sizes=BYTE_VOCAB_SIZES, train_steps=0, context_length=1024)
    for each in pair.models.values():
        torch.nn.Module.to(each.model, dtype)
    return pair.models


def _byte_laws(
    kind: type[ByteStream], each: ByteModel, device: torch.device, text: bytes
) -> list[Tensor]:
    """Of the bytes behind the first two."""
    model = torch.nn.Module.to(copy.deepcopy(each.model), device)
    stream = kind(
        model,
        row_attention(model),
        each.vocabulary,
        num_rows=1,
        warp=Warpers(SamplingConfig(), each.vocabulary.stop_token_ids.tolist()),
    )
    laws = [stream.read([list(text[:2])], [0]).logits]
    return laws + [stream.feed_rows([0], [[byte]]) for byte in text[2:]]


CHECKS: dict[str, RunCheck] = {
    "attention of rows": attention,
    "lean layers in bfloat16": lean_layers,
    **{
        f"{rule.name}: {name}": run
        for rule in (KL, MAX)
        for name, run in {
            "tokens in any batch": partial(same_in_any_batch, rule),
            "ledgers": partial(ledgers_verify, rule),
            "captured steps": partial(same_in_any_engine, rule, False),
            "captured steps that draft": partial(same_in_any_engine, rule, True),
        }.items()
    },
    "byte laws": laws_are_the_hosts,
    "projections of byte laws": byte_projections,
    "waits of a byte": byte_waits,
    "waits of an eager token": token_waits,
    "waits of a captured step": step_waits,
}
"""By name, each for a process of its own."""
