"""The public face of decoding: generate, stream and score with a pair under a rule."""

import logging
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal

from tqdm.auto import tqdm
from transformers import GenerationConfig

from .arguments import (
    Earlier,
    Prompt,
    beginnings,
    check_parts,
    is_single,
    request_list,
    target_symbols,
    with_generation_config,
)
from .beginning import Beginning
from .byte.byte_level import ByteLevel
from .byte.prompt_cache import PromptCache
from .byte.settings import ByteSettings
from .engine.paired_batch import PairedBatch, decode_all
from .engine.prompts import measured_ratios, ratio_source
from .engine.request import Request, RequestState, refused, warn_of_safe_only
from .engine.speculative_batch import SpeculativeBatch, draft_length, drafts_fit
from .generation import Generation, PieceStream, generation_of, with_bar
from .levels.chat import Conversation
from .levels.level import Level, TokenLevel
from .levels.retokenized import RetokenizedLevel
from .models.model_pair import ModelPair
from .rules.budget import PromptRatios
from .rules.rule import Rule, opened
from .score import Score, score_batch
from .settings import LevelName, SamplingConfig, Speculate, whole_number

logger = logging.getLogger(__name__)


class Decoder:
    """Decodes prompts with a model pair under one rule, in batches of up to `batch_size`."""

    def __init__(
        self,
        pair: ModelPair,
        rule: Rule,
        *,
        level: LevelName | Literal["auto"] = "auto",
        batch_size: int = 16,
        byte_settings: ByteSettings | None = None,
        prompt_cache: PromptCache | None = None,
        prompt_ratios: PromptRatios | None = None,
        speculate: Speculate = "off",
    ) -> None:
        """level: what is decoded and budgeted step by step; "auto" takes tokens for models with one
        tokenizer and bytes, by `byte_settings`, for models with two. prompt_cache: at byte level,
        the prompts that another k or seed need not read again; PromptCache(0) keeps none, and one
        may serve many decoders. prompt_ratios: those of all prompts, of `prompt_ratios()` with the
        same models and settings; their debts then cost nothing.
        speculate: tokens that the safe model drafts before one risky forward verifies them, "auto"
        for as many as it is worth by what drafts and forwards have cost so far, "off" for none.
        The tokens for a seed are those of "off", up to the models' own numerics.
        Raises ValueError for bad values, for ratios of other models or settings, or for a draft
        where it cannot run.
        """
        check_parts(pair, rule, prompt_ratios)
        self.pair, self.batch_size = pair, whole_number("batch_size", batch_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        self.level = choose_level(
            pair, level, byte_settings, prompt_cache, prompt_ratios, retokenizes=rule.retokenizes
        )
        self.rule = rule = opened(rule, self.level)
        if prompt_ratios is not None:
            prompt_ratios.check(ratio_source(self.level))
        self._draft_length = draft_length(self.level, rule, speculate)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] = (),
        *,
        max_new_tokens: int | None = None,
        max_new_bytes: int | None = None,
        seed: int | Sequence[int] = 0,
        stop: str | Sequence[str] | None = (),
        k: float | Sequence[float | None] | None = None,
        num_return_sequences: int = 1,
        continue_from: Earlier | Sequence[Earlier] | None = None,
        passages: str | Sequence[str] | None = None,
        messages: Conversation | Sequence[Conversation] | None = None,
        progress: bool | str = False,
        generation_config: GenerationConfig | None = None,
        **sampling: Any,
    ) -> list[Generation]:
        """Continuations of the prompts, in order.

        prompts: texts or token ids (lists, arrays, tensors, what a tokenizer returns), at byte
        level byte values; padding is left out by the attention mask of what a tokenizer returns,
        while rows of a bare tensor are read as they stand. max_new_tokens: the horizon, 200 unless
        given; K = k * max_new_tokens nats. max_new_bytes: the horizon at byte level (K = k *
        max_new_bytes), 4 * max_new_tokens unless given. seed, k: one for all or one per prompt.
        Texts depend on prompt and seed, not on their batch; those of other prompts or seeds are
        drawn independently, and so are equal prompts of one call. stop: texts at which to cut.
        num_return_sequences: samples of each prompt, side by side in the result, the first of them
        what one alone would be.
        continue_from: generations that reached their length, or their ledgers, to go on from in
        place of prompts. A ledger that contradicts itself is refused, see `Beginning.of`: `verify`
        first what you did not write. Bounds of samples and of earlier text add up: see
        `Ledger.total_bound`.
        passages: for rules that read one before each prompt, such as RCAD; one for all, or one a
        prompt.
        messages: conversations in place of prompts, lists of {"role": ..., "content": ...}; one, or
        one each. Each model reads them by its own chat template, a safe model without one as plain
        text, which the prefix debt is then counted over; the ledger says which read what.
        progress: show a bar, with this title. sampling: fields of SamplingConfig (temperature 0.7,
        repetition_penalty 1.1, top_k, top_p, min_p). generation_config: of transformers, in place
        of those and of max_new_tokens, stop and num_return_sequences; fields that mean anything
        else are refused by name.
        Raises ValueError for bad values. Of several prompts, one that is too long for the pair,
        that holds a lone surrogate or whose logits or ratios are NaN fails alone, with `.error`; a
        single one that cannot be read is a ValueError.
        Source: paper, algorithm AnchoredDecode.
        """
        results = self.generate_each(
            prompts,
            max_new_tokens=max_new_tokens,
            max_new_bytes=max_new_bytes,
            seed=seed,
            stop=stop,
            k=k,
            num_return_sequences=num_return_sequences,
            continue_from=continue_from,
            passages=passages,
            messages=messages,
            progress=progress,
            generation_config=generation_config,
            **sampling,
        )
        return [generation for _, generation in sorted(results, key=itemgetter(0))]

    def generate_each(
        self,
        prompts: Prompt | Sequence[Prompt] = (),
        *,
        max_new_tokens: int | None = None,
        max_new_bytes: int | None = None,
        seed: int | Sequence[int] = 0,
        stop: str | Sequence[str] | None = (),
        k: float | Sequence[float | None] | None = None,
        num_return_sequences: int = 1,
        continue_from: Earlier | Sequence[Earlier] | None = None,
        passages: str | Sequence[str] | None = None,
        messages: Conversation | Sequence[Conversation] | None = None,
        progress: bool | str = False,
        generation_config: GenerationConfig | None = None,
        **sampling: Any,
    ) -> Iterator[tuple[int, Generation]]:
        """The results of `generate`, each with its index there, as soon as it has ended.

        Arguments and errors as of `generate`; bad values are errors of the call itself. One such
        iterator of a decoder is used up, or dropped, before the next one is begun.
        """
        all_given = [given for given in (prompts, continue_from, messages) if given is not None]
        requests, config = self._asked(
            beginnings(self.level, prompts, continue_from, messages),
            with_generation_config(
                self.pair,
                generation_config,
                max_new_tokens=max_new_tokens,
                stop=stop,
                num_return_sequences=num_return_sequences,
                sampling=sampling,
            ),
            max_new_bytes,
            seed=seed,
            k=k,
            passages=passages,
            is_alone=any(is_single(given) for given in all_given),
        )
        return self._generations(requests, config, progress)

    def stream(
        self,
        prompt: Prompt = "",
        *,
        max_new_tokens: int | None = None,
        max_new_bytes: int | None = None,
        seed: int = 0,
        stop: str | Sequence[str] | None = (),
        k: float | None = None,
        passage: str | None = None,
        messages: Conversation | None = None,
        generation_config: GenerationConfig | None = None,
        **sampling: Any,
    ) -> PieceStream:
        """Pieces of one continuation as they are drawn: `piece.text`, `.spend`, `.accepted`.

        Arguments as in `generate`; the joined texts equal its text for the same seed, and once
        there are no more pieces, `.generation` and `.ledger` of what is returned are those of
        `generate`. Raises AnchoredError when a model's logits are NaN.
        """
        is_left_out = isinstance(prompt, str) and not prompt and messages is not None
        requests, config = self._asked(
            beginnings(self.level, () if is_left_out else prompt, messages=messages),
            with_generation_config(
                self.pair,
                generation_config,
                max_new_tokens=max_new_tokens,
                stop=stop,
                sampling=sampling,
            ),
            max_new_bytes,
            seed=seed,
            k=k,
            passages=passage,
            is_alone=True,
        )
        if len(requests) != 1:
            raise ValueError(f"a stream is one continuation of one prompt, got {len(requests)}")
        (request,) = requests
        return PieceStream(
            request,
            open_batch=lambda: self._open([request], config),
            generation_of=lambda state: generation_of(self.level, self.rule, config, state),
        )

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt],
        *,
        horizon: int | Sequence[int] | None = None,
        k: float | Sequence[float] | None = None,
        passages: str | Sequence[str] | None = None,
        messages: Conversation | Sequence[Conversation] | None = None,
        temperature: float = 1.0,
        repetition_penalty: float = 1.0,
        progress: bool | str = False,
        **sampling: Any,
    ) -> list[Score]:
        """log p*(y_t | y_<t, x) of given continuations, under the rule's budgets.

        prompts, continuations: as many of each; texts or token ids (a text continuation gets no
        special tokens). messages: conversations, as in `generate`, in place of prompts (). horizon:
        steps that K = k * horizon is spread over, one for all or one per continuation, by default
        the longest. Warpers are off unless given. Teacher forcing is exact: p* is a function of the
        prefix. The last symbol is predicted but not read: it may stand behind the models' context.
        Raises ValueError for bad values; failures are reported as by `generate`.
        """
        config = SamplingConfig.of(
            {"temperature": temperature, "repetition_penalty": repetition_penalty, **sampling}
        )
        targets = target_symbols(self.level, continuations)
        longest = max((len(target) for target, _ in targets), default=1)
        begun = beginnings(self.level, prompts, messages=messages)
        if len(begun) != len(targets):
            raise ValueError(f"got {len(begun)} prompts and {len(targets)} continuations")
        requests = request_list(
            self.level,
            self.rule,
            begun,
            max(longest, 1) if horizon is None else horizon,
            horizon_name="horizon",
            k=k,
            passages=passages,
            num_unread=1,
            is_alone=is_single(prompts if messages is None else messages),
        )
        scores: dict[int, Score] = {}
        fitting: list[Request] = []
        for request, (target, unreadable) in zip(requests, targets, strict=True):
            if len(target) > request.max_new_tokens:
                raise ValueError(
                    f"a continuation has {len(target)} {self.level.name}s, the horizon is "
                    f"{request.max_new_tokens}"
                )
            if error := request.error or unreadable:
                budget = self.rule.budget_for(horizon=request.max_new_tokens, k=request.k)
                scores[request.index] = Score.of(budget, target, error)
            else:
                fitting.append(request)
        # Equal prompts side by side: they are read once.
        fitting.sort(key=lambda request: (request.prompt_token_ids, -request.max_new_tokens))
        title = progress if isinstance(progress, str) else "score"
        for batch in tqdm(self._batches(fitting), title, unit="batch", disable=not progress):
            tokens_of_batch = [targets[request.index][0] for request in batch]
            scored = score_batch(self.level, self.rule, config, batch, tokens_of_batch)
            scores.update((r.index, score) for r, score in zip(batch, scored, strict=True))
        return [scores[index] for index in range(len(requests))]

    def prompt_ratios(self, prompts: Prompt | Sequence[Prompt]) -> PromptRatios:
        """The log-likelihood ratios behind the prompts' debts, to be saved and given to decoders.

        A prompt whose logits are NaN has NaN for ratios, by which it fails alone where it is
        decoded. Raises ValueError for a prompt that is too long for the pair, and where the models
        have no tokens to be compared in.
        """
        if not self.level.compares_models:
            raise ValueError("this pair has no prompt ratios: its models have different tokens")
        requests = []
        for begun in beginnings(self.level, prompts):
            if error := begun.error or self.level.too_long(begun.token_ids, 1):
                raise ValueError(error)
            requests.append(Request(prompt_token_ids=begun.token_ids, max_new_tokens=1))
        batches = self._batches(requests)
        return measured_ratios(self.level, ([r.prompt_token_ids for r in b] for b in batches))

    def _asked(
        self,
        begun: list[Beginning],
        asked: tuple[SamplingConfig, dict[str, Any]],
        max_new_bytes: int | None,
        **each: Any,
    ) -> tuple[list[Request], SamplingConfig]:
        """The requests of a call, and how they are sampled."""
        config, others = asked
        if config.is_greedy and self.rule.is_certified:
            logger.warning("temperature 0 samples nothing, so no bound holds: ledgers uncertified")
        horizon = self.level.horizon(others.pop("max_new_tokens"), max_new_bytes)
        return request_list(self.level, self.rule, begun, horizon, **others, **each), config

    def _batches(self, requests: list[Request]) -> list[list[Request]]:
        """Batches by prompt length, longest first: prompts read together need little padding."""
        ordered = sorted(requests, key=lambda request: -len(request.prompt_token_ids))
        starts = range(0, len(ordered), self.batch_size)
        return [ordered[start : start + self.batch_size] for start in starts]

    def _generations(
        self, requests: list[Request], config: SamplingConfig, progress: bool | str
    ) -> Iterator[tuple[int, Generation]]:
        budgets = []
        states = self._decode(requests, config)
        for state in with_bar(states, len(requests), progress, self.level.name):
            budgets.append(state.budget)
            yield state.request.index, generation_of(self.level, self.rule, config, state)
        warn_of_safe_only(budgets)

    def _decode(self, requests: list[Request], config: SamplingConfig) -> Iterator[RequestState]:
        """Every request as it ends."""
        for request in requests:
            if request.error:
                yield refused(request, self.rule, self.level.text_stream())
        fitting = [request for request in requests if not request.error]
        longest = max((request.max_length for request in fitting), default=0)
        batches = self._batches(fitting)
        if batches and self.level.rows_can_join(longest):
            batches = [[request for batch in batches for request in batch]]
        for batch in batches:
            yield from decode_all(self._open(batch, config), batch)

    def _open(self, requests: list[Request], config: SamplingConfig) -> PairedBatch:
        max_length = max(request.max_length for request in requests)
        size = {"num_rows": min(self.batch_size, len(requests)), "max_length": max_length}
        length = self._draft_length
        if length is not None and drafts_fit(length, self.level, max_length):
            return SpeculativeBatch(self.level, self.rule, config, **size, length=length)
        return PairedBatch(self.level, self.rule, config, **size)


def choose_level(
    pair: ModelPair,
    name: LevelName | Literal["auto"],
    settings: ByteSettings | None = None,
    prompt_cache: PromptCache | None = None,
    prompt_ratios: PromptRatios | None = None,
    *,
    retokenizes: bool = False,
) -> Level:
    """The level of that name; "auto" takes tokens where both models share them.

    settings, prompt_cache: of the byte level. prompt_ratios: those of all prompts, where they are
    known before. retokenizes: the rule decodes the tokens of the risky model where both have their
    own, see `RetokenizedLevel`; "auto" takes them then. Raises ValueError for another name, for a
    level at which the pair cannot be decoded, and for settings that the level does not have.
    """
    if name not in ("auto", "token", "byte"):
        raise ValueError(f'level must be "auto", "token" or "byte", got {name!r}')
    decodes_tokens = pair.shares_tokens or retokenizes
    if name == "byte" or (name == "auto" and not decodes_tokens):
        return ByteLevel(pair, settings or ByteSettings(), prompt_cache, prompt_ratios)
    if settings is not None or prompt_cache is not None:
        raise ValueError(
            'byte settings and a prompt cache need level="byte": this pair decodes tokens'
        )
    kind = TokenLevel if pair.shares_tokens or not retokenizes else RetokenizedLevel
    return kind(pair, prompt_ratios)
