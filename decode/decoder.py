"""The public face of decoding: generate, stream and score with a pair under a rule."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from tqdm.auto import tqdm

from .generation import Generation
from .model_pair import ModelPair
from .paired_batch import PairedBatch, Piece
from .request import Request
from .rules.rule import Rule
from .sampling_config import SamplingConfig
from .score import Score, score_batch

logger = logging.getLogger(__name__)

Prompt = str | list[int]


class Decoder:
    """Decodes prompts with a model pair under one rule, in batches of up to `batch_size`."""

    def __init__(
        self,
        pair: ModelPair,
        rule: Rule,
        *,
        level: Literal["auto", "token", "byte"] = "auto",
        batch_size: int = 16,
    ) -> None:
        if level not in ("auto", "token"):
            raise ValueError(f'level must be "auto" or "token" in this version, got {level!r}')
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        self.pair, self.rule, self.batch_size = pair, rule, batch_size

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 200,
        seed: int | Sequence[int] = 0,
        stop: Sequence[str] = (),
        k: float | Sequence[float] | None = None,
        progress: bool | str = False,
        **sampling: Any,
    ) -> list[Generation]:
        """Continuations of the prompts, in order.

        prompts: texts or lists of token ids. max_new_tokens: the horizon; K = k * max_new_tokens
        nats. seed, k: one for all or one per prompt; a prompt's tokens depend on its own seed, not
        on its batch. stop: texts at which to cut. progress: show a bar, with this title.
        sampling: fields of SamplingConfig (temperature 0.7, repetition_penalty 1.1, top_k, top_p,
        min_p).
        Raises ValueError for bad values; a request whose logits are NaN fails alone, with `.error`.
        Source: paper, algorithm AnchoredDecode.
        """
        config = self._sampling(SamplingConfig(**sampling))
        requests = self._requests(prompts, max_new_tokens, seed=seed, k=k, stop=tuple(stop))
        generations: dict[int, Generation] = {}
        for batch in _bar(self._batches(requests), "generate", progress):
            decoded = PairedBatch(self.pair, self.rule, config, [requests[i] for i in batch])
            pieces = _all_pieces(decoded)
            for row, index in enumerate(batch):
                generations[index] = _generation(decoded, row, pieces[row], index)
        return [generations[index] for index in range(len(requests))]

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 200,
        seed: int = 0,
        stop: Sequence[str] = (),
        k: float | None = None,
        **sampling: Any,
    ) -> Iterator[Piece]:
        """Pieces of one continuation as they are drawn: `piece.text`, `.spend`, `.accepted`.

        Arguments as in `generate`; the joined texts equal its text for the same seed. Raises
        RuntimeError when a model's logits are NaN.
        """
        config = self._sampling(SamplingConfig(**sampling))
        requests = self._requests([prompt], max_new_tokens, seed=seed, k=k, stop=tuple(stop))
        return self._pieces(PairedBatch(self.pair, self.rule, config, requests))

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt],
        *,
        horizon: int | None = None,
        k: float | Sequence[float] | None = None,
        temperature: float = 1.0,
        repetition_penalty: float = 1.0,
        progress: bool | str = False,
        **sampling: Any,
    ) -> list[Score]:
        """log p*(y_t | y_<t, x) of given continuations, under the rule's budgets.

        prompts, continuations: as many of each; texts or token ids (a text continuation gets no
        special tokens). horizon: steps that K = k * horizon is spread over, by default the longest
        continuation. Warpers are off unless given. Teacher forcing is exact: p* is a function of
        the prefix. Raises ValueError for bad values.
        """
        config = SamplingConfig(
            temperature=temperature, repetition_penalty=repetition_penalty, **sampling
        )
        targets = [self.pair.encode_continuation(text) for text in _as_list(continuations)]
        longest = max((len(target) for target in targets), default=1)
        requests = self._requests(prompts, max(horizon or longest, 1), seed=0, k=k, stop=())
        if len(requests) != len(targets):
            raise ValueError(f"got {len(requests)} prompts and {len(targets)} continuations")
        if horizon is not None and longest > horizon:
            raise ValueError(f"a continuation has {longest} tokens, the horizon is {horizon}")
        scores: dict[int, Score] = {}
        for batch in _bar(self._batches(requests), "score", progress):
            rows = [requests[i] for i in batch], [targets[i] for i in batch]
            scores.update(zip(batch, score_batch(self.pair, self.rule, config, *rows), strict=True))
        return [scores[index] for index in range(len(requests))]

    def _sampling(self, config: SamplingConfig) -> SamplingConfig:
        if config.is_greedy and self.rule.is_certified:
            logger.warning("temperature 0 samples nothing, so no bound holds: ledgers uncertified")
        return config

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        max_new_tokens: int,
        *,
        seed: int | Sequence[int],
        k: float | Sequence[float] | None,
        stop: tuple[str, ...],
    ) -> list[Request]:
        encoded = [self.pair.encode(prompt) for prompt in _as_list(prompts)]
        self._check_lengths(encoded, max_new_tokens)
        seeds = _one_each("seed", seed, len(encoded))
        ks = _one_each("k", k, len(encoded))
        return [
            Request(
                prompt_token_ids=tokens,
                max_new_tokens=max_new_tokens,
                seed=seeds[index],
                k=ks[index],
                stop=stop,
            )
            for index, tokens in enumerate(encoded)
        ]

    def _check_lengths(self, prompts: list[list[int]], max_new_tokens: int) -> None:
        limit = self.pair.context_length
        for index, tokens in enumerate(prompts):
            if limit is not None and len(tokens) + max_new_tokens > limit:
                raise ValueError(
                    f"prompt {index} has {len(tokens)} tokens; with {max_new_tokens} new ones it "
                    f"exceeds the pair's context of {limit}"
                )

    def _batches(self, requests: list[Request]) -> list[list[int]]:
        """Indices by prompt length, so that a batch holds little padding."""
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_token_ids))
        return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]

    def _pieces(self, batch: PairedBatch) -> Iterator[Piece]:
        while not batch.is_finished:
            (piece,) = batch.step()
            if piece is not None:
                yield piece
        if error := batch.states[0].error:
            raise RuntimeError(error)


def _bar(batches: list[list[int]], title: str, progress: bool | str) -> Iterable[list[int]]:
    shown = progress if isinstance(progress, str) else title
    bar: Iterable[list[int]] = tqdm(batches, shown, unit="batch", disable=not progress)
    return bar


def _all_pieces(batch: PairedBatch) -> list[list[tuple[str, bool]]]:
    pieces: list[list[tuple[str, bool]]] = [[] for _ in batch.states]
    while not batch.is_finished:
        for row, piece in enumerate(batch.step()):
            if piece is not None:
                pieces[row].append((piece.text, piece.accepted))
    return pieces


def _generation(
    batch: PairedBatch, row: int, pieces: list[tuple[str, bool]], index: int
) -> Generation:
    state = batch.states[row]
    return Generation(
        prompt=state.request.prompt_token_ids,
        text=state.text.text,
        pieces=pieces,
        ledger=batch.ledger(row),
        error=f"request {index}: {state.error}" if state.error else "",
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text, one list of token ids, or several of either."""
    if isinstance(prompts, str):
        return [prompts]
    several = list(prompts)
    if several and all(isinstance(item, int) for item in several):
        return [several]  # type: ignore[list-item]
    return several  # type: ignore[return-value]


def _one_each(name: str, value: Any, count: int) -> list[Any]:
    if value is None or isinstance(value, int | float):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values
