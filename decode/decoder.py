"""The public face of decoding: generate, stream and score with a pair under a rule."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Unpack

from tqdm.auto import tqdm

from ..fields import whole_number
from .ambient import in_plain_torch
from .engine.paired_batch import PairedBatch
from .engine.prompts import measured_ratios, ratio_source
from .engine.request import Request, RequestState, refused
from .engine.score import Score, score_batch
from .generation import Generation, Generations, PieceStream, generation_of
from .levels.chat import Conversation
from .levels.level import Level, TokenLevel
from .pair.model_pair import ModelPair
from .rules.budget import PromptRatios
from .rules.claims import opened, warn_of_left_out
from .rules.rule import Rule
from .settings import (
    GenerateOptions,
    LevelName,
    SamplingConfig,
    Speculate,
    StreamOptions,
    read_options,
)
from .texts import (
    Prompt,
    is_single,
    prompt_requests,
    request_list,
    target_symbols,
    with_values,
)
from .verify.rounding import least_temperature, temperature_error

if TYPE_CHECKING:
    from .byte.byte_row import PromptCache

logger = logging.getLogger(__name__)


class Decoder:
    """Decodes prompts with a model pair under one rule, in batches of up to `batch_size`."""

    @in_plain_torch
    def __init__(
        self,
        pair: ModelPair,
        rule: Rule,
        *,
        level: LevelName | Literal["auto"] | None = "auto",
        batch_size: int | None = 16,
        prompt_cache: PromptCache | None = None,
        speculate: Speculate | None = "off",
    ) -> None:
        """level: what is decoded and budgeted step by step; "auto" takes tokens for models with one
        tokenizer and bytes for models with two. prompt_cache: at byte level, the prompts that
        another k or seed need not read again; one may serve many decoders. speculate: tokens that
        the safe model drafts before one risky forward verifies them. The tokens for a seed are
        those of "off", up to the models' numerics. Raises ValueError for bad values, and for a
        rule or a draft that cannot run.
        """
        if not (isinstance(pair, ModelPair) and isinstance(rule, Rule)):
            raise ValueError(
                "write Decoder(pair, rule), as Decoder(pair, Anchored(k=1.5)), "
                f"got {type(pair).__name__} and {rule!r}"
            )
        level, size = "auto" if level is None else level, 16 if batch_size is None else batch_size
        self.pair, self.batch_size = pair, whole_number("batch_size", size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        self.level = choose_level(pair, level, prompt_cache, retokenizes=rule.retokenizes)
        self.rule, self.open_rule = rule, opened(rule, self.level)
        warn_of_left_out(self.open_rule)
        self.draft_length = 0
        """Tokens that the safe model drafts before the risky one reads them; 0 drafts none."""
        if speculate not in ("off", None):
            from .engine.speculative_batch import checked_length  # most decoders draft nothing

            self.draft_length = checked_length(self.level, self.open_rule, speculate)

    def generate(
        self, prompts: Prompt | Sequence[Prompt] | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Generation]:
        """Continuations of the prompts, in order.

        prompts: texts or token ids (lists, arrays, tensors, what a tokenizer returns), at byte
        level byte values; padding is left out by the attention mask of what a tokenizer returns,
        while rows of a bare tensor are read as they are. options: see `GenerateOptions`.
        Raises ValueError for bad values of settings. One of several prompts fails alone, with
        `.error`: if it, its passage, conversation or ledger cannot be read, if it is too long for
        the pair, if logits are NaN. A single one is a ValueError.
        Source: paper, algorithm AnchoredDecode.
        """
        results = self.generate_each(prompts, **options)
        return [generation for _, generation in sorted(results, key=itemgetter(0))]

    @in_plain_torch
    def generate_each(
        self, prompts: Prompt | Sequence[Prompt] | None = None, **options: Unpack[GenerateOptions]
    ) -> Generations:
        """The results of `generate`, each with its index there, as soon as it has ended.

        Arguments and errors as of `generate`; bad values are errors of the call itself. One such
        iterator of a decoder is used up, or dropped, before the next one is begun. What was drawn
        and not taken then is in its `aborted`.
        """
        more = {"continue_from": None, "passages": None, "progress": False}
        config, chosen = read_options(options, **more)
        progress, sources = chosen.pop("progress"), (chosen["continue_from"], chosen["messages"])
        texts = [source for source in (prompts, *sources) if source is not None]
        if not texts:
            raise ValueError("give prompts, messages or continue_from: there is nothing to go on")
        chosen["is_alone"] = any(map(is_single, texts))
        requests = self._requests(prompts, config, **chosen)
        begun: dict[int, RequestState] = {}
        return Generations(
            self._decode(requests, config, begun),
            begun,
            partial(generation_of, self.level, self.open_rule, config),
            total=len(requests),
            progress=progress,
            symbol=self.level.name,
        )

    @in_plain_torch
    def stream(self, prompt: Prompt | None = None, **options: Unpack[StreamOptions]) -> PieceStream:
        """Pieces of one continuation as they are drawn: `piece.text`, `.spend`, `.accepted`.

        Arguments as in `generate`; for the same seed the joined texts equal its text, see
        `PieceStream`.
        """
        config, chosen = read_options(options, passage=None)
        requests = self._requests(prompt, config, passages=chosen.pop("passage"), **chosen)
        if len(requests) != 1:
            raise ValueError(f"a stream is one continuation of one prompt, got {len(requests)}")
        (request,) = requests
        if request.error:
            raise ValueError(request.error)
        return PieceStream(
            request,
            open_batch=lambda: self._open([request], config),
            generation_of=partial(generation_of, self.level, self.open_rule, config),
        )

    @in_plain_torch
    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt],
        *,
        horizon: int | Sequence[int] | None = None,
        k: float | Sequence[float] | None = None,
        passages: str | Sequence[str] | None = None,
        messages: Conversation | Sequence[Conversation] | None = None,
        temperature: float | None = None,
        repetition_penalty: float | None = None,
        progress: bool | str = False,
        **sampling: Any,
    ) -> list[Score]:
        """log p*(y_t | y_<t, x) of continuations, under the rule's budgets.

        prompts, continuations: as many of each; texts or token ids (a text continuation gets no
        special tokens). messages: conversations, as in `generate`, in place of prompts (). horizon:
        steps that K = k * horizon is spread over, one for all or one per continuation, by default
        the longest. Warpers are off by default. Teacher forcing is exact: p* is a function of the
        prefix. The last symbol is predicted but not read: it may come after the models' context.
        Raises ValueError for bad values; failures are reported as by `generate`.
        """
        warped = {"temperature": temperature, "repetition_penalty": repetition_penalty}
        off = {name: 1.0 if value is None else value for name, value in warped.items()}
        config = SamplingConfig.of({**off, **sampling})
        targets = target_symbols(self.level, continuations)
        longest = max((len(target) for target, _ in targets), default=1)
        texts = prompt_requests(self.level, prompts, messages=messages)
        horizon = max(longest, 1) if horizon is None else horizon
        texts = with_values(texts, horizon, horizon_name="horizon", k=k, passages=passages)
        is_alone = is_single(prompts if messages is None else messages)
        requests = request_list(self.level, self.open_rule, texts, num_unread=1, is_alone=is_alone)
        if len(requests) != len(targets):
            raise ValueError(f"got {len(requests)} prompts and {len(targets)} continuations")
        return self._scores(requests, targets, config, progress)

    def _scores(
        self,
        requests: list[Request],
        targets: list[tuple[list[int], str]],
        config: SamplingConfig,
        progress: bool | str,
    ) -> list[Score]:
        """Scores of `target_symbols`, in order."""
        scores: dict[int, Score] = {}
        for request, (target, unreadable) in zip(requests, targets, strict=True):
            if len(target) > (steps := request.max_new_tokens):
                raise ValueError(
                    f"a continuation has {len(target)} {self.level.name}s, the horizon is {steps}"
                )
            if error := request.error or unreadable:
                budget = self.open_rule.budget_for(horizon=steps, k=request.k)
                scores[request.index] = Score.of(budget, target, error)
        # Equal prompts next to each other: they are read once.
        fitting = [request for request in requests if request.index not in scores]
        fitting.sort(key=lambda request: (request.prompt_token_ids, -request.max_new_tokens))
        title = progress if isinstance(progress, str) else "score"
        for batch in tqdm(self._batches(fitting), title, unit="batch", disable=not progress):
            tokens_of_batch = [targets[request.index][0] for request in batch]
            scored = score_batch(self.level, self.open_rule, config, batch, tokens_of_batch)
            scores.update((r.index, score) for r, score in zip(batch, scored, strict=True))
        return [scores[index] for index in range(len(requests))]

    @in_plain_torch
    def prompt_ratios(self, prompts: Prompt | Sequence[Prompt]) -> PromptRatios:
        """The log-likelihood ratios from which the debts follow, see `use_prompt_ratios`.

        A prompt whose logits are NaN has NaN for ratios, by which it fails alone where it is
        decoded. Raises ValueError where the models have no tokens to be compared in.
        """
        if not self.level.compares_models:
            raise ValueError("this pair has no prompt ratios: its models have different tokens")
        requests = prompt_requests(self.level, prompts)
        for request in requests:
            if error := request.error or self.level.too_long(request.prompt_token_ids, 1):
                raise ValueError(error)
        batches = self._batches(requests)
        return measured_ratios(self.level, ([r.prompt_token_ids for r in b] for b in batches))

    def use_prompt_ratios(self, ratios: PromptRatios) -> None:
        """Take the debts of all prompts from these ratios, so that no prompt is scored again.

        Raises ValueError for ratios of other models or settings.
        """
        ratios.check(ratio_source(self.level))
        self.level.prompt_ratios = ratios

    def _requests(
        self,
        prompts: Any,
        config: SamplingConfig,
        *,
        max_new_tokens: int,
        max_new_bytes: int | None,
        messages: Any = None,
        continue_from: Any = None,
        is_alone: bool = False,
        **values: Any,
    ) -> list[Request]:
        """The requests of a call. values: of `with_values`."""
        if config.is_greedy and self.open_rule.is_certified:
            logger.warning("temperature 0 samples nothing, so no bound holds: ledgers uncertified")
        least = least_temperature(model.dtype for model in self.pair.models.values())
        if self.open_rule.is_certified and 0.0 < config.temperature < least:
            raise ValueError(temperature_error(config.temperature, least))
        texts = prompt_requests(self.level, prompts, continue_from, messages)
        horizon = self.level.horizon(max_new_tokens, max_new_bytes)
        texts = with_values(texts, horizon, **values)
        return request_list(self.level, self.open_rule, texts, is_alone=is_alone)

    def _batches(self, requests: list[Request]) -> list[list[Request]]:
        """Batches by prompt length, longest first: prompts read together need little padding."""
        ordered = sorted(requests, key=lambda request: -len(request.prompt_token_ids))
        starts = range(0, len(ordered), self.batch_size)
        return [ordered[start : start + self.batch_size] for start in starts]

    def _decode(
        self, requests: list[Request], config: SamplingConfig, begun: dict[int, RequestState]
    ) -> Iterator[RequestState]:
        """Every request as it ends, in the order of ending.

        begun: takes each request that models have read, by its index.
        """
        # 1. Requests that cannot be read have failed already.
        for request in requests:
            if request.error:
                yield refused(request, self.open_rule, self.level.text_stream())
        # 2. All others share one batch, where a row can join while the others go on.
        batches = self._batches([request for request in requests if not request.error])
        longest = max((request.max_length for batch in batches for request in batch), default=0)
        if batches and self.level.rows_can_join(longest):
            batches = [[request for batch in batches for request in batch]]
        for waiting in map(deque, batches):
            batch = self._open(list(waiting), config)
            while waiting or not batch.is_empty:
                # 3. Requests that wait join where rows are free; one may end by its prompt.
                if joining := [waiting.popleft() for _ in batch.free_rows if waiting]:
                    states = batch.admit(joining)
                    begun.update((state.request.index, state) for state in states)
                    yield from (state for state in states if state.is_finished)
                # 4. One token of each row, or a round of drafts.
                yield from batch.step()

    def _open(self, requests: list[Request], config: SamplingConfig) -> PairedBatch:
        max_length = max(request.max_length for request in requests)
        return self.open_batch(min(self.batch_size, len(requests)), max_length, config)

    def open_batch(self, num_rows: int, max_length: int, sampling: SamplingConfig) -> PairedBatch:
        """An empty batch of so many rows, for texts of up to `max_length` symbols.

        sampling: of requests that name none.
        """
        size = {"num_rows": num_rows, "max_length": max_length}
        if not self.draft_length:
            return PairedBatch(self.level, self.open_rule, sampling, **size)
        from .engine.speculative_batch import SpeculativeBatch

        size["draft_length"] = self.draft_length
        return SpeculativeBatch(self.level, self.open_rule, sampling, **size)


def choose_level(
    pair: ModelPair,
    name: LevelName | Literal["auto"],
    prompt_cache: PromptCache | None = None,
    *,
    retokenizes: bool = False,
) -> Level:
    """The level of that name; "auto" takes tokens where both models share them.

    prompt_cache: of the byte level. retokenizes: the rule decodes the tokens of the risky model
    where the safe one has others, see `RetokenizedLevel`; "auto" takes them then.
    """
    if name not in ("auto", "token", "byte"):
        raise ValueError(f'level must be "auto", "token" or "byte", got {name!r}')
    decodes_tokens = pair.shares_tokens or retokenizes
    if name == "byte" or (name == "auto" and not decodes_tokens):
        from .byte.byte_level import ByteLevel  # its tokenizer's automaton: for these pairs alone

        return ByteLevel(pair, prompt_cache)
    if prompt_cache is not None:
        raise ValueError('a prompt cache needs level="byte": this pair decodes tokens')
    if pair.shares_tokens or not retokenizes:
        return TokenLevel(pair)
    from .levels.retokenized import RetokenizedLevel

    return RetokenizedLevel(pair)
