"""What `bench_byte` measures: one walk, prefill or projection at a time, in seconds."""

import time
from dataclasses import dataclass, replace

import torch
from transformers import DynamicCache

from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.settings import ByteCounts, ByteEvaluation
from anchored.decode.models.attention import row_attention
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS
from anchored.decode.warpers import Warpers
from anchored.kernels.projection import project_kl
from anchored.kernels.uniforms import uniforms
from anchored.tools.byte_pair import ByteModel, BytePair

BUDGET = 0.5
"""Nats a byte."""
SAMPLING = SamplingConfig()


@dataclass(frozen=True, slots=True)
class Texts:
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
        self.work: list[ByteCounts] = []

    def seconds(self) -> float:
        streams = byte_streams(self.pair, self.evaluations)
        for stream in streams:
            stream.read([self.texts.prompt], [0])
        before = [replace(stream.counts(0)) for stream in streams]
        start = time.thread_time()
        for byte in self.texts.rest:
            for stream in streams:
                stream.feed_rows([0], [[byte]])
        seconds = time.thread_time() - start
        self.work = [_difference(s.counts(0), b) for s, b in zip(streams, before, strict=True)]
        return seconds

    def cells(self, tokens: dict[str, int]) -> tuple[str, ...]:
        safe, risky = self.work
        return (
            f"{safe.num_forwards / tokens['safe']:.2f}",
            f"{risky.num_forwards / tokens['risky']:.2f}",
            f"{risky.num_nodes / max(1, risky.num_forwards):.1f}",
            f"{risky.max_total_variation:.1e}",
        )


def _difference(after: ByteCounts, before: ByteCounts) -> ByteCounts:
    return replace(
        after,
        num_forwards=after.num_forwards - before.num_forwards,
        num_nodes=after.num_nodes - before.num_nodes,
    )


def byte_streams(pair: BytePair, evaluations: list[ByteEvaluation]) -> list[ByteStream]:
    return [
        ByteStream(
            each.model,
            row_attention(each.model),
            each.vocabulary,
            num_rows=1,
            warp=Warpers(SAMPLING, each.vocabulary.stop_token_ids.tolist()),
            evaluation=evaluation,
        )
        for each, evaluation in zip(pair.models.values(), evaluations, strict=True)
    ]


def _token_ids(model: ByteModel, data: list[int]) -> list[int]:
    start = model.vocabulary.start_token_ids
    return [*start, *model.tokenizer.encode(bytes(data).decode(errors="ignore")).ids]


def num_tokens(model: ByteModel, texts: Texts) -> int:
    whole = _token_ids(model, texts.prompt + texts.rest)
    return len(whole) - len(_token_ids(model, texts.prompt))


@torch.inference_mode()
def plain_s(pair: BytePair, texts: Texts) -> float:
    """One cached forward a token of the rest, the models in turns, as a pair is decoded."""
    caches, turns = {}, []
    for name, each in pair.models.items():
        prompt = _token_ids(each, texts.prompt)
        rest = _token_ids(each, texts.prompt + texts.rest)[len(prompt) :]
        caches[name] = DynamicCache(config=each.model.config)
        each.model(input_ids=torch.tensor([prompt]), past_key_values=caches[name])
        turns += [(place / len(rest), name, token) for place, token in enumerate(rest)]
    start = time.thread_time()
    for _, name, token in sorted(turns):
        model = pair.models[name].model
        model(input_ids=torch.tensor([[token]]), past_key_values=caches[name])
    return time.thread_time() - start


@torch.inference_mode()
def prefill_s(pair: BytePair, texts: Texts) -> float:
    """One plain prefill of the prompt, both models, logits of its last token only."""
    prompts = [torch.tensor([_token_ids(each, texts.prompt)]) for each in pair.models.values()]
    start = time.thread_time()
    for each, prompt in zip(pair.models.values(), prompts, strict=True):
        cache = DynamicCache(config=each.model.config)
        each.model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
    return time.thread_time() - start


def projection_s(num_bytes: int) -> float:
    """The projection of random laws, once a byte."""
    generator = torch.Generator().manual_seed(0)
    laws = torch.randn(2, num_bytes, 1, NUM_SYMBOLS, generator=generator, dtype=torch.float64)
    start = time.thread_time()
    for risky, safe in zip(*laws, strict=True):
        project_kl(risky, safe, torch.tensor([BUDGET]))
    return time.thread_time() - start


def first_byte_s(
    pair: BytePair, evaluations: tuple[ByteEvaluation, ByteEvaluation], texts: Texts
) -> float:
    streams = byte_streams(pair, list(evaluations))
    start = time.thread_time()
    for stream in streams:
        stream.read([texts.prompt], [0])
    return time.thread_time() - start
