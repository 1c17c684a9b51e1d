"""What the benchmark of byte level measures: one walk, prefill, tree or context at a time."""

import ctypes
import gc
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import DynamicCache

from anchored.decode.byte.byte_row import MAX_DEAD_SLOTS
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.debt_search import settled_prompts
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.settings import ByteCounts, ByteEvaluation, PromptScores
from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.byte.tree_cache import TreeCache
from anchored.decode.byte.tree_marginals import TreeMarginals
from anchored.decode.models.attention import row_attention
from anchored.decode.models.stream import PromptLogits
from anchored.decode.rules.prefix_debt import log_likelihood_ratios, prefix_debt
from anchored.decode.rules.rule import BOTH
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from anchored.decode.warpers import Warpers
from anchored.kernels.projection import project_kl
from anchored.kernels.uniforms import uniforms

from ..timing import THREAD, Stopwatch
from .pair import ByteModel, BytePair

BUDGET = 0.5
"""Nats a byte."""
SAMPLING = SamplingConfig()
MIB = 1 << 20
_HARD = (
    *"    \t\n\r\u00a0\u3000''sStTrReElLdaAbX09.!/-\u4e2d\u65e5\u00e9\u0301\u02b0\u01c5\u0663",
    *("'re", "'LL", "  ", "\n\n", "\u017f", "\U0001f600", "\U0001f44d\U0001f3fd", "\u200d"),
)
"""White space, line ends, apostrophes, combining marks, CJK, digits, emoji."""


class Texts(NamedTuple):
    """Bytes that both models read and then walk."""

    prompt: list[int]
    rest: list[int]


@torch.inference_mode()
def drawn_texts(pair: BytePair, texts: Texts, *, new_bytes: int, prefetch: int, seed: int) -> Texts:
    """The same prompt and what the pair makes of it, without an end."""
    evaluation = ByteEvaluation(prefetch=prefetch)
    streams = byte_streams(pair, [evaluation, evaluation])
    safe, risky = (stream.read([texts.prompt], [0]).logits for stream in streams)
    positions = torch.arange(new_bytes)[None]
    drawn: list[int] = []
    for uniform in uniforms(torch.tensor([seed]), positions)[0]:
        safe[:, END_SYMBOL] = risky[:, END_SYMBOL] = -torch.inf
        projection = project_kl(risky, safe, torch.tensor([BUDGET]), uniform[None])
        assert projection.token_ids is not None
        drawn.append(int(projection.token_ids[0]))
        safe, risky = (stream.feed_rows([0], [drawn[-1:]]) for stream in streams)
    return Texts(texts.prompt, drawn)


class Walk:
    """Both streams over the texts."""

    def __init__(
        self, pair: BytePair, evaluations: tuple[ByteEvaluation, ByteEvaluation], texts: Texts
    ) -> None:
        self.pair, self.texts = pair, texts
        self.evaluations = [replace(each, prompt_scores="none") for each in evaluations]
        self._before: list[ByteCounts] = []
        self._after: list[ByteCounts] = []

    def seconds(self) -> float:
        streams = byte_streams(self.pair, self.evaluations)
        _read_s(streams, self.texts.prompt)
        self._before = [replace(stream.counts(0)) for stream in streams]
        with Stopwatch(THREAD) as watch:
            for byte in self.texts.rest:
                for stream in streams:
                    stream.feed_rows([0], [[byte]])
        self._after = [stream.counts(0) for stream in streams]
        return watch.seconds

    def cells(self, tokens: dict[str, int]) -> tuple[str, ...]:
        """Work behind the prompt, by tokens of each model."""
        pairs = list(zip(self._before, self._after, strict=True))
        safe, risky = (after.num_forwards - before.num_forwards for before, after in pairs)
        before, after = pairs[1]
        return (
            f"{safe / tokens['safe']:.2f}",
            f"{risky / tokens['risky']:.2f}",
            f"{(after.num_nodes - before.num_nodes) / max(1, risky):.1f}",
            f"{after.max_total_variation:.1e}",
        )


def byte_streams(
    pair: BytePair, evaluations: Sequence[ByteEvaluation], *, num_ratios: int | None = None
) -> list[ByteStream]:
    return [
        ByteStream(
            each.model,
            row_attention(each.model),
            each.vocabulary,
            num_rows=1,
            warp=Warpers(SAMPLING, each.vocabulary.stop_token_ids.tolist()),
            evaluation=evaluation,
            num_ratios=num_ratios,
        )
        for each, evaluation in zip(pair.models.values(), evaluations, strict=True)
    ]


def encoded(model: ByteModel, data: list[int]) -> list[int]:
    """Tokens of a text behind the start tokens."""
    start = model.vocabulary.start_token_ids
    return [*start, *model.tokenizer.encode(bytes(data).decode(errors="ignore")).ids]


def num_tokens(model: ByteModel, texts: Texts) -> int:
    whole = encoded(model, texts.prompt + texts.rest)
    return len(whole) - len(encoded(model, texts.prompt))


@torch.inference_mode()
def plain_s(pair: BytePair, texts: Texts) -> float:
    """One cached forward a token of the rest, the models in turns, as a pair is decoded."""
    caches, turns = {}, []
    for name, each in pair.models.items():
        prompt = encoded(each, texts.prompt)
        rest = encoded(each, texts.prompt + texts.rest)[len(prompt) :]
        caches[name] = DynamicCache(config=each.model.config)
        each.model(input_ids=torch.tensor([prompt]), past_key_values=caches[name])
        turns += [(place / len(rest), name, token) for place, token in enumerate(rest)]
    with Stopwatch(THREAD) as watch:
        for _, name, token in sorted(turns):
            model = pair.models[name].model
            model(input_ids=torch.tensor([[token]]), past_key_values=caches[name])
    return watch.seconds


@torch.inference_mode()
def prefill_s(pair: BytePair, texts: Texts) -> float:
    """One plain prefill of the prompt, both models, logits of its last token only."""
    prompts = [torch.tensor([encoded(each, texts.prompt)]) for each in pair.models.values()]
    with Stopwatch(THREAD) as watch:
        for each, prompt in zip(pair.models.values(), prompts, strict=True):
            cache = DynamicCache(config=each.model.config)
            each.model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
    return watch.seconds


def projection_s(num_bytes: int) -> float:
    """The projection of random laws, once a byte."""
    generator = torch.Generator().manual_seed(0)
    laws = torch.randn(2, num_bytes, 1, NUM_SYMBOLS, generator=generator, dtype=torch.float64)
    with Stopwatch(THREAD) as watch:
        for risky, safe in zip(*laws, strict=True):
            project_kl(risky, safe, torch.tensor([BUDGET]))
    return watch.seconds


class Scoring(NamedTuple):
    """What is wanted to be known of a prompt's bytes."""

    ends: tuple[PromptScores, PromptScores]
    """Of the safe and the risky model's log-probabilities."""
    num_ratios: int | None
    """How many of their largest differences count, None for all."""

    def streams(self, pair: BytePair) -> list[ByteStream]:
        """Of both models, which read prompts so."""
        evaluations = [ByteEvaluation(prompt_scores=end) for end in self.ends]
        return byte_streams(pair, evaluations, num_ratios=self.num_ratios)


def first_byte_s(pair: BytePair, scoring: Scoring, texts: Texts) -> float:
    streams = scoring.streams(pair)
    with Stopwatch(THREAD) as watch:
        _settled(streams, texts.prompt)
    return watch.seconds


def _settled(streams: list[ByteStream], prompt: list[int]) -> Mapping[str, PromptLogits]:
    """What the safe and the risky model say of a prompt that they read into row 0."""
    named = dict(zip(BOTH, streams, strict=True))
    read = {name: stream.read([prompt], [0]) for name, stream in named.items()}
    return settled_prompts(named, read, [0])


def _read_s(streams: list[ByteStream], prompt: list[int]) -> float:
    with Stopwatch(THREAD) as watch:
        for stream in streams:
            stream.read([prompt], [0])
    return watch.seconds


class PromptDebt(NamedTuple):
    """Of one prompt."""

    nats: float
    """Of a byte."""
    num_nodes: list[int]
    """By model."""


def prompt_debt(pair: BytePair, scoring: Scoring, prompt: list[int]) -> PromptDebt:
    """The prefix debt by what both models say about the prompt's bytes."""
    streams = scoring.streams(pair)
    safe, risky = (own.token_log_probs[0] for own in _settled(streams, prompt).values())
    nats = prefix_debt(log_likelihood_ratios(risky, safe))
    return PromptDebt(float(nats), [stream.counts(0).num_nodes for stream in streams])


def tree_work_s(
    vocabulary: ByteVocabulary, text: bytes, *, num_tokens: int, num_bytes: int
) -> float:
    """Seconds of one thread for `num_bytes` bytes behind a context of `num_tokens` tokens.

    text: repeated as often as needed. The model's logits are random ones, drawn before.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_bytes, vocabulary.vocab_size, generator=generator)
    tree, endless_text = TokenTree(vocabulary), cycle(text)
    while len(tree.trunk()) < num_tokens:
        tree.append(next(endless_text))
    cache, marginals = TreeCache(tree), TreeMarginals(tree, tree.trunk()[-1])
    cache.add_trunk()
    with Stopwatch(THREAD) as watch:
        for row in logits:
            _step(cache, marginals, row[None])
            marginals.append(next(endless_text))
    return watch.seconds


def string_work_s(vocabulary: ByteVocabulary, text: bytes) -> float:
    """Seconds of one thread for the tree of a text and the rows of what may follow its nodes."""
    tree = TokenTree(vocabulary)
    with Stopwatch(THREAD) as watch:
        for byte in text:
            for node in tree.append(byte):
                vocabulary.viability.allowed(tree.standing[node])
    return watch.seconds


def _step(cache: TreeCache, marginals: TreeMarginals, logits: torch.Tensor) -> None:
    wanted, tree = marginals.missing(), cache.tree
    if missing := cache.missing(wanted):
        cache.add(missing)
    if wanted:
        standings = [tree.standing[node] for node in wanted]
        laws = node_laws(tree.vocabulary, standings, logits.expand(len(wanted), -1))
        for node, law in zip(wanted, laws, strict=True):
            marginals.add_law(node, law)
    marginals.log_probs()
    if cache.num_dead > MAX_DEAD_SLOTS:
        cache.compact()


class ContextWork(NamedTuple):
    """Of one text that both models have read and then gone on with."""

    num_tokens: dict[str, int]
    """Of the context, by model."""
    read_s: float
    """Reading it, log-probabilities of its bytes included."""
    byte_s: list[float]
    """Each byte behind it."""
    peak_mib: float
    """Most memory above that before."""
    stored_mib: float
    """What log-probabilities of all its tokens would take in float32, (L, V) of both models."""


def context_work(
    pair: BytePair, evaluations: Sequence[ByteEvaluation], *, num_tokens: int, num_bytes: int
) -> ContextWork:
    """Read at least `num_tokens` tokens of both tokenizers, then walk `num_bytes` bytes.

    The unseen text is repeated as often as needed. Times are one thread's own.
    """
    context = long_text(pair, num_tokens)
    rest = list(islice(cycle(pair.held_out), len(context), len(context) + num_bytes))
    lengths = {name: len(m.tokenizer.encode(_text(context)).ids) for name, m in pair.models.items()}
    before = _forget_peak()
    streams = byte_streams(pair, evaluations)
    read_s = _read_s(streams, list(context))
    byte_s = []
    for byte in rest:
        with Stopwatch(THREAD) as watch:
            for stream in streams:
                stream.feed_rows([0], [[byte]])
        byte_s.append(watch.seconds)
    numbers = sum(length * pair.models[name].model.vocab_size for name, length in lengths.items())
    return ContextWork(lengths, read_s, byte_s, _status_mib("VmHWM") - before, 4 * numbers / MIB)


def long_text(pair: BytePair, num_tokens: int) -> bytes:
    """The least beginning, in steps, of the unseen text that has so many tokens in both models."""
    step = max(50, num_tokens // 8)
    texts = (bytes(islice(cycle(pair.held_out), length)) for length in count(step, step))
    tokenizers = [model.tokenizer for model in pair.models.values()]
    return next(
        text
        for text in texts
        if all(len(each.encode(_text(text)).ids) >= num_tokens for each in tokenizers)
    )


def _text(data: bytes) -> str:
    return data.decode(errors="ignore")


def _forget_peak() -> float:
    """MiB in use; the peak starts anew from there (proc(5))."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def draw_hard_strings(number: int, *, seed: int, longest: int = 12) -> list[str]:
    """`number` strings of one to `longest` of these, the same ones for a seed."""
    source = random.Random(seed)
    return ["".join(source.choices(_HARD, k=source.randint(1, longest))) for _ in range(number)]
