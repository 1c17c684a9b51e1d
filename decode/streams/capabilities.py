"""Capabilities of a model: rows that agree with its plain forward, and drafts."""

import logging
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from .configs import rotary_kinds
from .kv_cache import RowAttention
from .lean import LeanBackbone, is_hooked
from .row_stream import ModelRunner, RowStream
from .stream import BatchStream, LoneStream, Stream

logger = logging.getLogger(__name__)

# R rows of a stream, V tokens that are predicted.

LENGTHS = ((7, 3), (4, 2))
"""Tokens of the two texts: (of the prompt, fed after it). Lengths differ, so that one text is
padded; 10 tokens exceed the sliding windows of test models."""

PREFIX = 5
"""Tokens of the first text that are run again without those after them."""

FULL_PRECISION_NATS = 1e-4
"""The nats that rounding explains in float32, five times the most that 60 tiny families showed; in
float64 too, as many families compute norms, rotations or routing in float32."""

NUM_ROUNDINGS = 128
"""Roundings of the largest logit that may add up in float32, where that is more (from 6.6 on). They
grow with a model's depth: in one of 30 layers, logits of float32 were 52 off those of float64, and
those of rows 81 off the plain forward's. At a largest logit of 30 these are 0.0005 nats."""

SINGLE_MASK = ("llama", "mistral", "olmo2", "gpt2")
"""Families whose layers all take one mask."""

MASK_BY_TYPE = ("llama4_text", "qwen2", "qwen3")
"""Families that take a dict of masks by layer type."""

ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of a position that do not depend on how long the other rows are."""

Distances = Iterator[float]
"""Largest differences from the plain forward, one a comparison, in nats."""


def row_attention(model: PreTrainedModel) -> RowAttention:
    """The masks of this model; ValueError says why rows cannot differ in length in it."""
    config = model.config
    if is_hooked(model):
        raise ValueError("it has a hook or a replaced forward, which rows would pass by")
    if config.model_type not in SINGLE_MASK + MASK_BY_TYPE:
        raise ValueError(f"the family {config.model_type} has not been tested with rows")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(f"its attention is {config._attn_implementation}, not sdpa or eager")
    for rotary in rotary_kinds(config):
        if (kind := rotary.get("rope_type", "default")) not in ROTARY:
            raise ValueError(f"its rotary embedding, {kind}, depends on the longest row")
    if config.model_type in SINGLE_MASK:
        span = getattr(config, "sliding_window", None)
        layer_types = ("full_attention",) if span is None else ("sliding_attention",)
    else:
        layer_types = tuple(sorted(set(config.layer_types)))
        chunk = getattr(config, "attention_chunk_size", None)
        span = chunk if config.model_type == "llama4_text" else config.sliding_window
    # Llama 4 scales queries by the length of the whole cache; the scale is 1 below floor_scale.
    is_tuned = getattr(config, "attn_temperature_tuning", False)
    return RowAttention(
        layer_types=layer_types,
        span=span,
        takes_mapping=config.model_type in MASK_BY_TYPE,
        reach=int(config.floor_scale) - 1 if is_tuned else None,
    )


RowSupport = tuple[RowAttention | None, bool]
"""The way that rows of one model are run: attention of those that join and leave, or None; and
whether others are run one by one, not in left-padded batches."""


def row_support(runner: ModelRunner, name: str) -> RowSupport:
    """The best way to run rows of a model that agrees with the plain forward of each text alone.

    Compared are log-probabilities over prompts of different lengths, after them and after a few
    tokens more, by the streams, backbone and output layer that decoding uses. A way that is slower
    than rows that join is logged in one line. Raises ValueError, in one line, for a model that no
    way agrees with, or whose log-probabilities of a text depend on what follows.
    """
    title = f"the {name} model ({runner.model.config.model_type})"
    try:
        support, slower = RowCheck(runner).support()
    except ValueError as refusal:
        raise ValueError(f"{title} cannot be decoded: {refusal}") from refusal.__cause__
    if slower:
        logger.warning("%s decodes %s", title, slower)
    return support


@dataclass(frozen=True, slots=True)
class _Text:
    prompt: list[int]
    fed: list[int]
    log_probs: Tensor
    """(prompt and fed, V) float64 nats on the CPU, after each token, by the plain forward."""


class RowCheck:
    """A model, the texts that it is run on, and how far a way to run it may be from the plain one.

    A comparison that fails raises ValueError, of the distance or caused by the model's error.
    """

    @torch.inference_mode()
    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.model = runner, runner.model
        texts = [
            [(7 * index + 3 * row + 2) % runner.vocab_size for index in range(sum(lengths))]
            for row, lengths in enumerate(LENGTHS)
        ]
        with _refused_crashes("in a plain forward"):
            logits = [self._plain_logits(tokens) for tokens in texts]
            prefix = self._plain_logits(texts[0][:PREFIX])
        self.allowed = allowed_nats(self.model.dtype, torch.cat(logits))
        self.texts = [
            _Text(tokens[:num_read], tokens[num_read:], plain.log_softmax(-1))
            for tokens, plain, (num_read, _) in zip(texts, logits, LENGTHS, strict=True)
        ]
        changes = _gap(prefix, self.texts[0].log_probs[:PREFIX])
        self._compare("it is not causal: without what follows", iter([changes]))

    def support(self) -> tuple[RowSupport, str]:
        """(the best way, how and why it is slower than rows that join, "" if it is not)."""
        # 1. Rows that join and leave: by lean layers, or where these differ, by the modules.
        slower = ""
        try:
            attention = row_attention(self.model)
            try:
                self.compare_rows(attention)
            except ValueError as difference:
                if not isinstance(self.runner.backbone(attention), LeanBackbone):
                    raise
                attention = replace(attention, keeps_modules=True)
                self.compare_rows(attention)
                slower = f"by the modules of transformers: {difference}"
        except ValueError as refusal:
            reason = str(refusal)
        else:
            if attention.reach is not None:
                self.compare_alone()
            return (attention, attention.reach is not None), slower
        # 2. Left-padded batches.
        try:
            self.compare_batches()
        except ValueError as refusal:
            # 3. One text at a time, as `generate` of transformers reads it.
            rereads = ", read anew for every token" if self.compare_alone() else ""
            slower = f"one text at a time{rereads}: {reason}; {refusal}"
            return (None, True), slower
        return (None, False), f"in whole batches: {reason}"

    def compare_rows(self, attention: RowAttention) -> None:
        """Rows that join, are fed unequally and go back."""
        self._compare("in rows", self._row_distances(attention))

    def compare_batches(self) -> None:
        """Left-padded batches, two in turns: a model could keep one state for all of them."""
        size, vocab_size = len(LENGTHS), self.runner.vocab_size
        orders = (self.texts, self.texts[::-1])
        runs = [(BatchStream(self.model, size, vocab_size), order) for order in orders]
        self._compare("in batches", _distances(runs))

    def compare_alone(self) -> bool:
        """Each text alone, in turns; returns whether every new token rereads the whole text."""
        stream = LoneStream(self.model, len(LENGTHS), self.runner.vocab_size)
        self._compare("alone", _distances([(stream, self.texts)]))
        return stream.rereads

    def _row_distances(self, attention: RowAttention) -> Distances:
        longest = max(map(sum, LENGTHS))
        stream = RowStream(self.runner, attention, num_rows=len(LENGTHS), max_length=longest)
        yield from _distances([(stream, self.texts)])
        stream.cache.roll_back(0, sum(LENGTHS[0]) - 1)
        again = stream.feed([0], [self.texts[0].fed[-1:]])
        yield _gap(again[0], self.texts[0].log_probs[-1:])

    def _plain_logits(self, tokens: list[int]) -> Tensor:
        """(tokens, V) float64 on the CPU."""
        token_ids = torch.tensor([tokens], device=self.model.device)
        logits: Tensor = self.model(input_ids=token_ids, use_cache=False).logits[0]
        if len(logits) != len(tokens):  # a tuned prompt adds positions
            raise ValueError(f"{len(tokens)} tokens have logits of {len(logits)} positions")
        return logits[:, : self.runner.vocab_size].cpu().double()

    def _compare(self, way: str, distances: Distances) -> None:
        with _refused_crashes(way):
            error = max(distances)
        if error > self.allowed:
            raise ValueError(
                f"{way} its log-probabilities are off by {error:.2g} nats "
                f"({self.allowed:.2g} allowed)"
            )


def allowed_nats(dtype: torch.dtype, logits: Tensor) -> float:
    """Difference of log-probabilities that rounding explains.

    In half precision sqrt(eps) of the largest logit, as every layer rounds what it hands on; the
    wrong masks that transformers accepts silently are off by more. Others: FULL_PRECISION_NATS.
    """
    largest = logits.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    if dtype in (torch.float16, torch.bfloat16):
        return max(1.0, largest) * math.sqrt(torch.finfo(dtype).eps)
    return max(FULL_PRECISION_NATS, NUM_ROUNDINGS * torch.finfo(torch.float32).eps * largest)


def _distances(runs: Sequence[tuple[Stream, list[_Text]]]) -> Distances:
    """Distances of streams that read their rows' texts, are fed one token, then the others."""
    for stream, texts in runs:
        read = stream.read([text.prompt for text in texts], list(range(len(texts))))
        for text, logits, scored in zip(texts, read.logits, read.token_log_probs, strict=True):
            last = len(text.prompt) - 1
            yield _gap(logits, text.log_probs[last])
            yield _difference(scored, text.log_probs[range(last), text.prompt[1:]])
    for fed in (slice(1), slice(1, None)):
        for stream, texts in runs:
            new = [text.fed[fed] for text in texts]
            longest = max(map(len, new))
            logits = stream.feed(list(range(len(texts))), new, longest)
            for of_row, text, tokens in zip(logits, texts, new, strict=True):
                end = len(text.prompt) + len(text.fed[: fed.stop])
                expected = text.log_probs[end - len(tokens) : end]
                yield _gap(of_row[longest - len(tokens) :], expected)


def _gap(logits: Tensor, log_probs: Tensor) -> float:
    """(..., V) logits of any dtype against (..., V) float64 nats."""
    return _difference(logits.cpu().double().log_softmax(-1), log_probs)


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; NaN, or a banned token, in both is none."""
    return (actual.nan_to_num() - expected.nan_to_num()).abs().max().item()


@contextmanager
def _refused_crashes(way: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as crash:  # of any kind, for an argument or a cache that a model does not take
        what = f"{type(crash).__name__}: {textwrap.shorten(str(crash), 200)}"
        raise ValueError(f"{way} it fails with {what}") from crash


PROBED_TOKENS = (1, 7, 3, 5, 2, 6)
"""A short text; two versions of its second half must leave the first half's logits alone."""


def shared_scale(config: PretrainedConfig) -> str:
    """The thing that tokens of one forward share, "" for none: scales of quantization, routing."""
    settings: Any = getattr(config, "quantization_config", None)
    plain: dict[str, Any] = {}
    if settings is not None:
        plain = settings if isinstance(settings, dict) else settings.to_dict()
    if plain.get("load_in_8bit") and plain.get("llm_int8_threshold", 6.0) > 0:
        return "the risky model's int8 outliers are sought over all tokens of a forward"
    if _scales_by_tensor(plain):
        return "the risky model's activations share one dynamic scale over all tokens of a forward"
    text = config.get_text_config().to_dict()
    capacity = [key for key, value in text.items() if "capacity" in key and value]
    if capacity:
        return f"the risky model's experts drop tokens beyond their capacity ({capacity[0]})"
    return ""


def _scales_by_tensor(settings: object) -> bool:
    """True if any part of the settings asks for per-tensor dynamic scales of activations."""
    if isinstance(settings, dict):
        scales = settings.get("input_activations") or settings.get("activation")
        if isinstance(scales, dict) and scales.get("dynamic"):
            return bool(scales.get("strategy") == "tensor")
        return any(_scales_by_tensor(value) for value in settings.values())
    return "PerTensor" in type(settings).__name__ or "PerTensor" in str(settings)


@torch.inference_mode()
def largest_leak(runner: ModelRunner, attention: RowAttention) -> float:
    """Largest change of a logit through later tokens of its forward, 0 for causal models."""
    tokens = [token % runner.vocab_size for token in PROBED_TOKENS]
    half = len(tokens) // 2
    logits = []
    for rest in (tokens[half:], tokens[: half - 1 : -1]):
        stream = RowStream(runner, attention, num_rows=1, max_length=len(tokens) + 1)
        stream.read([[0]], [0])
        logits.append(stream.feed([0], [tokens[:half] + rest], len(tokens))[0, :half])
    return (logits[0] - logits[1]).nan_to_num().abs().max().item()
