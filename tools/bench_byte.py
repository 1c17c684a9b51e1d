"""Byte level beside plain token forwards, on a small trained pair: anchored bench byte"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import DynamicCache

from anchored.decode.byte.byte_evaluation import ByteCounts, ByteEvaluation
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.row_attention import row_attention
from anchored.kernels.projection import project_kl
from anchored.tools.byte_pair import ByteModel, BytePair, trained_pair
from anchored.tools.tree_work import tree_work_s

BUDGET = 0.5
DECODE_TITLES = (
    "decoding", "ms/byte", "error", "x plain", "safe fwd/token", "risky fwd/token",
    "nodes/fwd", "max TV",
)  # fmt: skip
PROMPT_TITLES = ("prompt", "debt ms", "error", "x prefill", "first byte ms", "error", "x no debt")
CONTEXT_TITLES = ("context", "tree us/byte", "error", "x first")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchByteConfig:
    """What `anchored bench byte` measures; times are those of one thread's own work."""

    vocab_sizes: tuple[int, int] = (4096, 8192)
    """Tokens of the safe model (GPT-2's pre-tokenizer) and of the risky one (Llama 3's)."""
    train_steps: int = 250
    """Steps of 512 tokens that each model is trained for before anything is measured."""
    prompt_bytes: int = 200
    new_bytes: int = 200
    contexts: tuple[int, ...] = (1000, 4000, 8000)
    """Tokens in front of the bytes for which the work outside the models is measured."""
    prefetch: int = 4
    tau: float = 1e-3
    runs: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_bytes", "new_bytes", "prefetch", "runs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.tau < 1:
            raise ValueError(f"tau must be in (0, 1), got {self.tau}")


@dataclass(frozen=True, slots=True)
class Texts:
    """Bytes that both models read and then walk."""

    prompt: list[int]
    rest: list[int]


def run(config: BenchByteConfig) -> int:
    """Print three tables and return 0."""
    torch.set_num_threads(1)
    pair = trained_pair(
        vocab_sizes=config.vocab_sizes,
        train_steps=config.train_steps,
        context_length=16 * (config.prompt_bytes + config.new_bytes),
        seed=config.seed,
    )
    print(
        f"two Llamas of hidden size 256, 4 layers, V = {config.vocab_sizes[0]} and "
        f"{config.vocab_sizes[1]}, {config.train_steps} steps, CPU, torch {torch.__version__}, "
        f"one thread's time; {config.prompt_bytes} + {config.new_bytes} bytes of unseen text, "
        f"median of {config.runs} runs, error: their standard deviation"
    )
    for table in (decode_table, prompt_table, context_table):
        for line in table(pair, config):
            print("".join(f"{cell:>17}" for cell in line), flush=True)
        print()
    return 0


def decode_table(pair: BytePair, config: BenchByteConfig) -> Iterator[tuple[str, ...]]:
    """A byte of both models and the projection, against the plain forwards of the same text."""
    texts = _texts(pair, config)
    engines = {
        "exact": (ByteEvaluation(), ByteEvaluation()),
        "prefetch": 2 * (ByteEvaluation(prefetch=config.prefetch),),
        "tau": (ByteEvaluation(), ByteEvaluation(tau=config.tau)),
        "tau, prefetch": (
            ByteEvaluation(prefetch=config.prefetch),
            ByteEvaluation(prefetch=config.prefetch, tau=config.tau),
        ),
    }
    works: dict[str, Callable[[], float]] = {"plain": partial(_plain_s, pair, texts)}
    walks = {name: _Walk(pair, evaluations, texts) for name, evaluations in engines.items()}
    works.update({name: walk.seconds for name, walk in walks.items()})
    seconds = _interleaved(works, config.runs)
    tokens = {name: _num_tokens(model, texts) for name, model in pair.models.items()}
    yield DECODE_TITLES
    for name, times in seconds.items():
        figures = _time_cells(times, seconds["plain"], len(texts.rest))
        if name == "plain":
            yield (name, *figures, "1.00", "1.00", "1.0", "-")
        else:
            yield (name, *figures, *walks[name].cells(tokens))


def prompt_table(pair: BytePair, config: BenchByteConfig) -> Iterator[tuple[str, ...]]:
    """The debt of a prompt against two plain prefills; the first byte with debt and without."""
    texts = _texts(pair, config)
    ends = {"no debt": ("none", "none"), "exact": ("exact", "exact"), "bounded": ("lower", "upper")}
    works: dict[str, Callable[[], float]] = {"prefill": partial(_prefill_s, pair, texts)}
    for name, (safe, risky) in ends.items():
        evaluations = (ByteEvaluation(prompt_scores=safe), ByteEvaluation(prompt_scores=risky))
        works[name] = partial(_first_byte_s, pair, evaluations, texts)
    seconds = _interleaved(works, config.runs)
    yield PROMPT_TITLES
    yield ("prefill", *_time_cells(seconds["prefill"], seconds["prefill"], 1), "-", "-", "-")
    for name in ends:
        debt = ("-", "-", "-")
        if name != "no debt":
            debt = _time_cells(seconds[name], seconds["prefill"], 1)
        yield (name, *debt, *_time_cells(seconds[name], seconds["no debt"], 1))


def context_table(pair: BytePair, config: BenchByteConfig) -> Iterator[tuple[str, ...]]:
    """Work outside the risky model, a byte, behind contexts of some lengths."""
    vocabulary = pair.models["risky"].vocabulary
    works = {
        str(length): partial(
            tree_work_s, vocabulary, pair.held_out, num_tokens=length, num_bytes=config.new_bytes
        )
        for length in config.contexts
    }
    seconds = _interleaved(works, config.runs)
    yield CONTEXT_TITLES
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        cells = _time_cells(times, first, config.new_bytes / 1e3)
        yield (f"{name} tokens", *cells)


class _Walk:
    """Both streams over the texts, with the projection of every byte."""

    def __init__(
        self, pair: BytePair, evaluations: tuple[ByteEvaluation, ByteEvaluation], texts: Texts
    ) -> None:
        self.pair, self.texts = pair, texts
        self.evaluations = [replace(each, prompt_scores="none") for each in evaluations]
        self.work: list[ByteCounts] = []

    def seconds(self) -> float:
        streams = _streams(self.pair, self.evaluations)
        for stream in streams:
            stream.read([self.texts.prompt], [0])
        before = [replace(stream.counts(0)) for stream in streams]
        start = time.thread_time()
        for byte in self.texts.rest:
            safe, risky = (stream.feed(*_column(byte))[:, 0] for stream in streams)
            project_kl(risky, safe, torch.tensor([BUDGET]))
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


def _texts(pair: BytePair, config: BenchByteConfig) -> Texts:
    text = list(pair.held_out[: config.prompt_bytes + config.new_bytes])
    return Texts(text[: config.prompt_bytes], text[config.prompt_bytes :])


def _streams(pair: BytePair, evaluations: list[ByteEvaluation]) -> list[ByteStream]:
    return [
        ByteStream(
            each.model,
            row_attention(each.model),
            each.vocabulary,
            num_rows=1,
            evaluation=evaluation,
        )
        for each, evaluation in zip(pair.models.values(), evaluations, strict=True)
    ]


def _column(byte: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[byte]]), torch.ones(1, 1, dtype=torch.long)


def _token_ids(model: ByteModel, data: list[int]) -> list[int]:
    start = model.vocabulary.start_token_ids
    return [*start, *model.tokenizer.encode(bytes(data).decode(errors="ignore")).ids]


def _num_tokens(model: ByteModel, texts: Texts) -> int:
    whole = _token_ids(model, texts.prompt + texts.rest)
    return len(whole) - len(_token_ids(model, texts.prompt))


@torch.inference_mode()
def _plain_s(pair: BytePair, texts: Texts) -> float:
    """One cached forward a token of the rest, both models."""
    seconds = 0.0
    for each in pair.models.values():
        prompt = _token_ids(each, texts.prompt)
        rest = _token_ids(each, texts.prompt + texts.rest)[len(prompt) :]
        cache = DynamicCache(config=each.model.config)
        each.model(input_ids=torch.tensor([prompt]), past_key_values=cache)
        start = time.thread_time()
        for token in rest:
            each.model(input_ids=torch.tensor([[token]]), past_key_values=cache)
        seconds += time.thread_time() - start
    return seconds


@torch.inference_mode()
def _prefill_s(pair: BytePair, texts: Texts) -> float:
    """One plain prefill of the prompt, both models, logits of its last token only."""
    prompts = [torch.tensor([_token_ids(each, texts.prompt)]) for each in pair.models.values()]
    start = time.thread_time()
    for each, prompt in zip(pair.models.values(), prompts, strict=True):
        cache = DynamicCache(config=each.model.config)
        each.model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
    return time.thread_time() - start


def _first_byte_s(
    pair: BytePair, evaluations: tuple[ByteEvaluation, ByteEvaluation], texts: Texts
) -> float:
    streams = _streams(pair, list(evaluations))
    start = time.thread_time()
    safe, risky = (stream.read([texts.prompt], [0]).logits for stream in streams)
    project_kl(risky, safe, torch.tensor([BUDGET]))
    return time.thread_time() - start


def _interleaved(works: dict[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Seconds of every work in every run, one after another in each, behind a warm-up."""
    for work in works.values():
        work()
    measured = [{name: work() for name, work in works.items()} for _ in range(runs)]
    return {name: [seconds[name] for seconds in measured] for name in works}


def _time_cells(seconds: list[float], baseline: list[float], num: float) -> tuple[str, str, str]:
    """(milliseconds a unit, their standard deviation, times the baseline of the same run)."""
    ms = [1e3 * value / num for value in seconds]
    error = statistics.stdev(ms) if len(ms) > 1 else math.nan
    ratios = [value / base for value, base in zip(seconds, baseline, strict=True)]
    return f"{statistics.median(ms):.2f}", f"{error:.2f}", f"{statistics.median(ratios):.2f}"
