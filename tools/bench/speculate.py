"""Speculative against plain decoding: speeds, forwards, acceptance, changed tokens."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import takewhile
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from anchored import Anchored, Decoder, Generation, ModelPair, RiskyOnly, text_tables
from anchored.decode.levels.level import open_streams
from anchored.decode.models.row_stream import RowStream
from anchored.decode.rules.rule import NextToken, Rule, StepInputs
from anchored.decode.settings import Speculate
from anchored.tools.commands.options import ModelOptions, check_presence
from anchored.tools.quickstart.preset import load_preset

from .baselines import ModelAlone
from .options import BenchSpeculateConfig
from .random_inputs import random_pair, random_prompts
from .timing import PROCESS, WALL, deviation, timed

RANDOM_VOCAB = 2048
PROMPT_TOKENS = 32
WIDTH = 10
TITLES = (
    *("k", "draft", "risky fwd", "fwd/tok", "kept", "1 - TV", "+-", "bound"),
    *("ms/token", "error", "x plain", "x risky", "predicted", "flips"),
)

T = TypeVar("T")
Prompts = list[str | list[int]]
Cells = tuple[str, ...]


@torch.inference_mode()
def run(config: BenchSpeculateConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    bench = SpeculationBench(config, _pair(config))
    print(bench.headline())
    text_tables.print_lines(bench.rows(), WIDTH)
    return 0


class Costs(NamedTuple):
    """Seconds of forwards over a batch."""

    safe_s: float
    risky_s: dict[int, float]
    """By columns."""


def predicted_ratio(costs: Costs, length: int, kept: float) -> float:
    """Speed of drafts of this length as a multiple of plain paired decoding.

    Source: Leviathan et al. 2023, theorem 3.8, with the last draft's safe forward only due where
    all drafts are kept, and the risky forward's own cost of more columns.
    """
    num_expected = sum(kept**place for place in range(length + 1))
    round_s = costs.risky_s[length + 1] + costs.safe_s * (length + kept**length)
    return num_expected * (costs.safe_s + costs.risky_s[1]) / round_s


class Acceptance(NamedTuple):
    """Over the steps that could spend something."""

    num_steps: int
    observed: float
    """Share of tokens that are the safe model's own draw."""
    expected: float
    """Mean of 1 - TV(p*, p_s)."""
    error: float
    """Standard error of the observed share about the expected one."""


@dataclass(frozen=True, slots=True)
class _Watched(Anchored):
    """Anchored, which keeps 1 - TV of every step that has a budget."""

    kept: list[Tensor] = field(default_factory=list)

    def next_token(self, inputs: StepInputs) -> NextToken:
        drawn = Anchored.next_token(self, inputs)
        star = drawn.log_probs().double().exp()
        safe = inputs.warped("safe").double().softmax(-1)
        chances = star.minimum(safe).sum(-1)[inputs.budget > 0.0]
        self.kept.append(chances.cpu())
        return drawn


def measured_acceptance(
    pair: ModelPair, rule: Anchored, prompts: Prompts, num_tokens: int
) -> Acceptance:
    """Acceptance of plain decoding from these prompts, `num_tokens` each, at temperature 0.7."""
    watched = _Watched(**{f.name: getattr(rule, f.name) for f in fields(Anchored)})
    results = Decoder(pair, watched).generate(prompts, max_new_tokens=num_tokens)
    steps = [s for result in results for s in result.ledger.steps if s.budget > 0.0]
    chances = [chance for kept in watched.kept for chance in kept.tolist()]
    variance = sum(chance * (1.0 - chance) for chance in chances)
    count = max(len(steps), 1)
    return Acceptance(
        num_steps=len(steps),
        observed=sum(step.accepted for step in steps) / count,
        expected=math.fsum(chances) / count,
        error=math.sqrt(variance) / count,
    )


def flips_per_1000(plain: list[list[int]], drafted: list[list[int]]) -> float:
    """Tokens that differ from plain decoding's, for each 1,000 drawn after the same text.

    Behind its first difference a request has another text, so it counts up to there.
    """
    num_flips = num_alike = 0
    for one, other in zip(plain, drafted, strict=True):
        alike = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        num_alike += len(alike)
        num_flips += one != other
    return 1000.0 * num_flips / (num_alike + num_flips)


class Speed(NamedTuple):
    """Seconds a token of several runs, and what the last one gave."""

    token_s: float
    error_s: float
    """Sample standard deviation over the runs; nan for one run."""
    num_tokens: int
    risky_forwards: int
    """Prompts' own forwards left out."""
    texts: list[list[int]]
    """Tokens by request; empty where nothing is compared with them."""


class SpeculationBench:
    """How speeds of a pair are measured, and the rows of the table."""

    def __init__(self, config: BenchSpeculateConfig, pair: ModelPair) -> None:
        self.config, self.pair = config, pair
        self._prompts = _prompts(config, config.num_prompts)
        self._columns = [1, *(int(draft) + 1 for draft in config.drafts if draft != "auto")]
        self._costs = Costs(
            safe_s=self._forward_s("safe", 1),
            risky_s={count: self._forward_s("risky", count) for count in self._columns},
        )
        self._risky_alone = self._speed(self._generate_alone)

    def headline(self) -> str:
        """What is measured, and what holds for all rows."""
        config, costs, alone = self.config, self._costs, self._risky_alone
        names = f"{config.safe} + {config.risky}"
        if config.safe is None:
            names = f"tiny + {config.random_risky} of random weights"
        forwards = ", ".join(f"{n}: {1e3 * s:.2f} ms" for n, s in costs.risky_s.items())
        most = max(self._columns)
        return (
            f"{names}, V = {self.pair.vocab_size}, {self.pair.dtype} on {_machine(config.device)}, "
            f"torch {torch.__version__}, batch {config.batch_size}, {config.num_prompts} x "
            f"{config.new_tokens} tokens, {config.runs} runs, {config.clock} seconds\n"
            f"safe forward {1e3 * costs.safe_s:.2f} ms, risky forward by columns {forwards}; "
            f"c = {costs.safe_s / costs.risky_s[1]:.2f}\n"
            f"risky model alone: {1e3 * alone.token_s:.2f} ms/token "
            f"(error {1e3 * alone.error_s:.2f})\n"
            f"risky log-probabilities by {most} columns at once and by one: "
            f"up to {self._rounding_nats(most):.1e} nats apart"
        )

    def rows(self) -> Iterator[Cells]:
        """The titles; each budget, beside its acceptance and Pinsker's bound on that; p_r."""
        yield TITLES
        prompts = _prompts(self.config, self.config.acceptance_prompts)
        for k in self.config.ks:
            rule = Anchored(k=k)
            found = measured_acceptance(self.pair, rule, prompts, self.config.new_tokens)
            bound = max(0.0, 1.0 - math.sqrt(k / 2))
            shown = [f"{x:.3f}" for x in (found.observed, found.expected, found.error, bound)]
            for cells in self._rule_rows(rule, found.expected):
                yield (f"{k:g}", *cells[:3], *shown, *cells[3:])
        if self.config.ordinary:
            for cells in self._rule_rows(RiskyOnly(), math.nan):
                yield ("p_r", *cells[:3], *["-"] * 4, *cells[3:])

    def _rule_rows(self, rule: Rule, kept: float) -> Iterator[Cells]:
        """Decoding without drafts, the cold start resting the risky model, and with them."""
        plain: Speed | None = None
        for draft in ("off", *self.config.drafts):
            speculate: Speculate = draft if draft in ("off", "auto") else int(draft)  # type: ignore[assignment]
            decoder = Decoder(
                self.pair, rule, batch_size=self.config.batch_size, speculate=speculate
            )
            speed = self._speed(partial(self._generate, decoder))
            if plain is None:
                plain = speed
                # A decoder that never lets the risky model rest: the first token is the prompt's.
                forwards = speed.num_tokens - len(speed.texts)
                yield ("no rest", *_forward_cells(forwards, speed.num_tokens), *["-"] * 6)
            is_fixed = draft not in ("off", "auto") and not math.isnan(kept)
            yield (
                draft,
                *_forward_cells(speed.risky_forwards, speed.num_tokens),
                f"{1e3 * speed.token_s:.2f}",
                f"{1e3 * speed.error_s:.2f}",
                f"{plain.token_s / speed.token_s:.2f}",
                f"{self._risky_alone.token_s / speed.token_s:.2f}",
                f"{predicted_ratio(self._costs, int(draft), kept):.2f}" if is_fixed else "-",
                f"{flips_per_1000(plain.texts, speed.texts):.1f}",
            )

    def _rounding_nats(self, columns: int) -> float:
        """Largest difference of a risky log-probability by a forward of columns and by one each."""
        stream, rows = self._stream("risky", columns), list(range(self.config.batch_size))
        tokens = [[2 + row + place for place in range(columns)] for row in rows]
        together = stream.feed_ends(rows, tokens, columns)
        for row in rows:
            stream.roll_back(row, PROMPT_TOKENS)
        alone = [
            stream.feed_rows(rows, [[read[place]] for read in tokens]) for place in range(columns)
        ]
        laws = (logits.double().log_softmax(-1) for logits in (together, torch.stack(alone, 1)))
        return next(laws).sub(next(laws)).abs().max().item()

    def _timed(self, work: Callable[[], T]) -> tuple[float, T]:
        clock = WALL if self.config.clock == "wall" else PROCESS
        return timed(work, clock, device=self.config.device)

    def _speed(self, generate: Callable[[Prompts], tuple[int, int, list[list[int]]]]) -> Speed:
        """generate: returns numbers of tokens and risky forwards, and texts. A warm-up is first."""
        generate(self._prompts[:1])
        times = []
        for _ in range(self.config.runs):
            seconds, drawn = self._timed(partial(generate, self._prompts))
            times.append(seconds / drawn[0])
        return Speed(statistics.mean(times), deviation(times), *drawn)

    def _generate(self, decoder: Decoder, prompts: Prompts) -> tuple[int, int, list[list[int]]]:
        """Requests with seeds 0, 1, ..."""
        seeds = list(range(len(prompts)))
        results: list[Generation] = decoder.generate(
            prompts, max_new_tokens=self.config.new_tokens, seed=seeds
        )
        texts = [result.token_ids for result in results]
        forwards = sum(result.ledger.risky_forwards - 1 for result in results)
        return sum(map(len, texts)), forwards, texts

    def _generate_alone(self, prompts: Prompts) -> tuple[int, int, list[list[int]]]:
        """The risky model by itself, seen by the host token by token as by an eager decoder."""
        encoded = [self.pair.encode(prompt) for prompt in prompts]
        new_tokens = self.config.new_tokens
        for start in range(0, len(encoded), self.config.batch_size):
            batch = encoded[start : start + self.config.batch_size]
            longest = max(map(len, batch)) + new_tokens
            alone = ModelAlone(
                self.pair, "risky", num_rows=len(batch), max_length=longest, on_device=False
            )
            alone.generate(batch, new_tokens)
        return len(prompts) * new_tokens, len(prompts) * (new_tokens - 1), []

    def _forward_s(self, name: str, columns: int) -> float:
        """Median seconds of a forward of so many columns."""
        stream, rows = self._stream(name, columns), list(range(self.config.batch_size))
        tokens = [[2] * columns] * len(rows)
        seconds = []
        for _ in range(20 * self.config.runs):
            seconds.append(self._timed(lambda: stream.feed_ends(rows, tokens, columns))[0])
            for row in rows:
                stream.roll_back(row, PROMPT_TOKENS)
        return statistics.median(seconds)

    def _stream(self, name: str, columns: int) -> RowStream:
        """Rows that have read a prompt."""
        batch_size, max_length = self.config.batch_size, PROMPT_TOKENS + columns
        stream = open_streams(self.pair, batch_size, max_length, scores_prompts=False)[name]
        if not isinstance(stream, RowStream):
            raise ValueError(f"the {name} model decodes in whole batches: it cannot speculate")
        stream.read([[0] * PROMPT_TOKENS] * batch_size, list(range(batch_size)))
        return stream


def _forward_cells(forwards: int, num_tokens: int) -> Cells:
    return str(forwards), f"{forwards / num_tokens:.2f}"


def _pair(config: BenchSpeculateConfig) -> ModelPair:
    if config.safe is not None and config.risky is not None:
        options = ModelOptions(
            safe=config.safe, risky=config.risky, dtype=config.dtype, device=config.device
        )
        return options.pair()
    dtype = torch.float32 if config.dtype == "auto" else getattr(torch, config.dtype)
    return random_pair(
        "tiny", config.random_risky, vocab_size=RANDOM_VOCAB, dtype=dtype, device=config.device
    )


def _prompts(config: BenchSpeculateConfig, count: int) -> Prompts:
    """The quickstart's prompts for a pair in folders, which may have been trained on them."""
    if config.safe is None:
        return list(random_prompts(count, PROMPT_TOKENS, RANDOM_VOCAB))
    texts = [prompt.prompt for prompt in load_preset("default").prompts()]
    return [texts[place % len(texts)] for place in range(count)]


def _machine(device: str) -> str:
    """What the speeds are of."""
    if torch.device(device).type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} (not measured on a GPU)"
