"""What speculative decoding takes and gives: speeds, forwards, acceptance, changed tokens."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import takewhile
from typing import Literal, TypeVar

import torch
from torch import Tensor

from anchored import Anchored, Decoder, Generation, ModelPair
from anchored.decode.levels.level import open_streams
from anchored.decode.models.row_stream import RowStream
from anchored.decode.rules.rule import NextToken, StepInputs

from .baselines import ModelAlone
from .timing import PROCESS, WALL, deviation, timed

T = TypeVar("T")
Prompts = list[str | list[int]]
PROMPT_TOKENS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
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
    pair: ModelPair, rule: Anchored, prompts: list[str | list[int]], num_tokens: int
) -> Acceptance:
    """Acceptance of plain decoding from these prompts, `num_tokens` each, at temperature 0.7."""
    settings = {f.name: getattr(rule, f.name) for f in fields(Anchored)}
    watched = _Watched(**settings)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What one run gave."""

    num_tokens: int
    risky_forwards: int
    """Prompts' own forwards left out."""
    texts: list[list[int]]
    """Tokens by request; empty where nothing is compared with them."""

    @property
    def forwards_per_token(self) -> float:
        return self.risky_forwards / self.num_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Seconds a token of several runs, and what the last one gave."""

    token_s: float
    error_s: float
    """Sample standard deviation over the runs; nan for one run."""
    drawn: Drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedMeasurement:
    """How speeds of a pair are measured."""

    pair: ModelPair
    prompts: Prompts
    new_tokens: int
    batch_size: int
    runs: int
    clock: Literal["wall", "cpu"]
    device: str

    def timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """(seconds by this clock, result) of `work`."""
        return timed(work, WALL if self.clock == "wall" else PROCESS, device=self.device)

    def of_decoder(self, decoder: Decoder) -> Speed:
        """Of requests with seeds 0, 1, ..."""
        return self._speed(partial(_generated, decoder, self.new_tokens))

    def of_risky_alone(self) -> Speed:
        """The risky model by itself, seen by the host token by token as by an eager decoder."""
        return self._speed(self._risky_alone)

    def costs(self, lengths: list[int]) -> Costs:
        """Median seconds of a safe forward of one column and risky ones of 1 and length + 1."""
        columns = [1, *(length + 1 for length in lengths)]
        return Costs(
            safe_s=self._forward_s("safe", 1),
            risky_s={count: self._forward_s("risky", count) for count in columns},
        )

    def rounding_nats(self, columns: int) -> float:
        """Largest difference of a risky log-probability by a forward of columns and by one each."""
        stream, rows = self._stream("risky", columns), list(range(self.batch_size))
        tokens = [[2 + row + place for place in range(columns)] for row in rows]
        stream.read([[0] * PROMPT_TOKENS] * len(rows), rows)
        together = stream.feed_ends(rows, tokens, columns)
        for row in rows:
            stream.roll_back(row, PROMPT_TOKENS)
        alone = [
            stream.feed_rows(rows, [[read[place]] for read in tokens]) for place in range(columns)
        ]
        laws = (logits.double().log_softmax(-1) for logits in (together, torch.stack(alone, 1)))
        return next(laws).sub(next(laws)).abs().max().item()

    def _speed(self, generate: Callable[[Prompts], Drawn]) -> Speed:
        """The first call is a warm-up."""
        generate(self.prompts[:1])
        times = []
        for _ in range(self.runs):
            seconds, drawn = self.timed(partial(generate, self.prompts))
            times.append(seconds / drawn.num_tokens)
        return Speed(token_s=statistics.mean(times), error_s=deviation(times), drawn=drawn)

    def _risky_alone(self, prompts: Prompts) -> Drawn:
        encoded = [self.pair.encode(prompt) for prompt in prompts]
        for start in range(0, len(encoded), self.batch_size):
            batch = encoded[start : start + self.batch_size]
            longest = max(map(len, batch)) + self.new_tokens
            alone = ModelAlone(
                self.pair, "risky", num_rows=len(batch), max_length=longest, on_device=False
            )
            alone.generate(batch, self.new_tokens)
        num_tokens = len(prompts) * self.new_tokens
        return Drawn(num_tokens=num_tokens, risky_forwards=num_tokens - len(prompts), texts=[])

    def _forward_s(self, name: str, columns: int) -> float:
        stream, rows = self._stream(name, columns), list(range(self.batch_size))
        stream.read([[0] * PROMPT_TOKENS] * len(rows), rows)
        tokens = [[2] * columns] * len(rows)
        seconds = []
        for _ in range(20 * self.runs):
            seconds.append(self.timed(lambda: stream.feed_ends(rows, tokens, columns))[0])
            for row in rows:
                stream.roll_back(row, PROMPT_TOKENS)
        return statistics.median(seconds)

    def _stream(self, name: str, columns: int) -> RowStream:
        max_length = PROMPT_TOKENS + columns
        streams = open_streams(self.pair, self.batch_size, max_length, scores_prompts=False)
        stream = streams[name]
        if not isinstance(stream, RowStream):
            raise ValueError(f"the {name} model decodes in whole batches: it cannot speculate")
        return stream


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


def _generated(decoder: Decoder, new_tokens: int, prompts: Prompts) -> Drawn:
    seeds = list(range(len(prompts)))
    results: list[Generation] = decoder.generate(prompts, max_new_tokens=new_tokens, seed=seeds)
    forwards = sum(result.ledger.risky_forwards - 1 for result in results)
    texts = [result.token_ids for result in results]
    return Drawn(num_tokens=sum(map(len, texts)), risky_forwards=forwards, texts=texts)
