"""Symbols in which the models of a pair are compared; the level of shared tokens."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from ..pair.model_pair import ModelPair
from ..rules.budget import PromptRatios
from ..rules.rule import BOTH, ModelName, StreamName, StreamSpec
from ..settings import LevelName, SamplingConfig
from ..streams.kv_cache import RowAttention
from ..streams.row_stream import RowStream
from ..streams.stream import BatchStream, LoneStream, Stream
from ..tokenizer.text import TextStream, TokenDecoder, TokenText, special_stops
from ..warpers import Warpers


class StreamSize(NamedTuple):
    """Rows of up to `max_length` symbols; whether reading scores the symbols of prompts."""

    num_rows: int
    max_length: int
    scores_prompts: bool


class Level(ABC):
    """A pair at one level: its symbols, how text becomes symbols, and streams that predict them.

    Batches, rules, scores and ledgers deal in symbols alone; where they say token, they mean one.
    """

    pair: ModelPair
    prompt_ratios: PromptRatios | None = None
    """Ratios of all prompts that are decoded, where they are known before."""
    name: LevelName
    vocab_size: int
    """Number of symbols."""
    stop_token_ids: list[int]
    """Symbols that end a text, ascending."""
    special_token_ids: Sequence[int] = ()
    """Symbols of a prompt that no prefix debt is charged for."""
    symbols_per_token: int
    """Scales the default horizon, and brings prefix debts to the nats of a token."""
    context_length: int | None = None
    """Most symbols of a text; None where the models have no limit or do not count symbols."""
    compares_models = True
    """Both models say how likely every symbol is: ratios and divergences are those of one set."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain JSON values: with the pair, they make the same level again."""

    @abstractmethod
    def encode(self, prompt: str | list[int]) -> list[int]:
        """Symbols of a prompt, its text or the symbols themselves; RequestError for bad ones."""

    @abstractmethod
    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Symbols of a text that follows a prompt; RequestError for bad ones."""

    def symbol_of(self, text: str) -> int | None:
        """The symbol that a text is by itself, for both models; None where it is several."""
        symbols = self.encode_continuation(text)
        return symbols[0] if len(symbols) == 1 else None

    def encoding(self) -> tuple[str, ...]:
        """The level and the sha256 of both tokenizers, which decide the symbols of a text."""
        tokenizers = self.pair.tokenizers.values()
        return self.name, *(tokenizer_sha256(tokenizer) for tokenizer in tokenizers)

    def horizon(self, max_new_tokens: int, max_new_bytes: int | None) -> int:
        """Most symbols of a continuation: tokens, unless the level is another."""
        if max_new_bytes is not None:
            raise ValueError('max_new_bytes needs level="byte": this pair decodes tokens')
        return max_new_tokens

    @abstractmethod
    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        """Why a prompt and its continuation do not fit into the models, "" if they do."""

    @abstractmethod
    def warpers(self, sampling: SamplingConfig) -> Warpers:
        """The warpers that the logits of the streams have not gone through."""

    def stop_symbols(self, stop: Sequence[str]) -> frozenset[int]:
        """The symbols that are no text and that stop texts name: a text ends where one is drawn.

        Raises ValueError, in one line, for a stop text that holds the name of one among others.
        """
        return frozenset()

    @abstractmethod
    def text_stream(self, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> TextStream:
        """The text after a prompt, symbol by symbol: what it adds to the prompt's."""

    def rows_can_join(self, max_length: int) -> bool:
        """Tell whether rows of up to `max_length` symbols can join a batch midway."""
        return True

    def open_streams(
        self,
        num_rows: int,
        max_length: int,
        sampling: SamplingConfig,
        *,
        scores_prompts: bool,
        specs: Mapping[StreamName, StreamSpec] = BOTH,
    ) -> Mapping[str, Stream]:
        """Memories by name, of `num_rows` rows of up to `max_length` symbols.

        scores_prompts: whether reading gives log-probabilities of the prompts' symbols.
        Whatever a call computes begins here: ValueError for models that have changed.
        """
        self.pair.check_unchanged()
        size = StreamSize(num_rows, max_length, scores_prompts)
        return {name: self._stream(spec.model, sampling, size) for name, spec in specs.items()}

    @abstractmethod
    def _stream(self, model: ModelName, sampling: SamplingConfig, size: StreamSize) -> Stream:
        """Open one of the memories of `open_streams`."""

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        """Error text if a row's text exceeds a model's context, "" while it does not."""
        return ""

    def work(self, streams: Mapping[str, Stream], row: int) -> dict[str, dict[str, float]]:
        """The cost of a row by "safe" and "risky", `num_forwards` among it; {} where each
        symbol is a forward."""
        return {}


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """The sha256 of all that a tokenizer is saved as."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


class TokenLevel(Level):
    """Symbols are the tokens that both models share."""

    name: LevelName = "token"
    symbols_per_token = 1

    def __init__(self, pair: ModelPair) -> None:
        """Raises ValueError for a pair whose tokenizers make different tokens of plain text."""
        if not pair.shares_tokens:
            sizes = " and ".join(str(len(tokenizer)) for tokenizer in pair.tokenizers.values())
            raise ValueError(
                f"the models have different tokenizers ({sizes} tokens): {pair.shared.difference}; "
                'such a pair needs level="byte"'
            )
        self.pair = pair
        self.vocab_size, self.stop_token_ids = pair.vocab_size, pair.stop_token_ids
        self.banned_token_ids = pair.banned_token_ids
        special = {t for tokenizer in pair.tokenizers.values() for t in tokenizer.all_special_ids}
        self.special_token_ids = sorted(special)
        self.context_length = pair.context_length
        self._decoder = TokenDecoder(pair.tokenizer)

    def settings(self) -> dict[str, Any]:
        """The tokens of either model that are left out; {} for none."""
        if self.pair.shared.is_whole and not self.banned_token_ids:
            return {}
        return {"vocab_size": self.vocab_size, "banned_token_ids": self.banned_token_ids}

    def encode(self, prompt: str | list[int]) -> list[int]:
        return self.pair.encode(prompt)

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        return self.pair.encode_continuation(text)

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        length, limit = len(prompt), self.context_length
        if limit is None or length + max_new_symbols <= limit:
            return ""
        with_new = f"with {max_new_symbols} new ones it exceeds the pair's context of {limit}"
        return f"the prompt has {length} tokens; {with_new}"

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        return Warpers(sampling, self.stop_token_ids, self.banned_token_ids)

    def stop_symbols(self, stop: Sequence[str]) -> frozenset[int]:
        return special_stops(stop, self.pair.tokenizers.values(), self.pair.has_token)

    def text_stream(self, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> TextStream:
        return TextStream(TokenText(self._decoder, prompt), stop, self.stop_symbols(stop))

    def rows_can_join(self, max_length: int) -> bool:
        return all(rows_join(self.pair, name, max_length) for name in self.pair.models)

    def _stream(self, model: ModelName, sampling: SamplingConfig, size: StreamSize) -> Stream:
        """Logits are raw: `warpers` does what `sampling` asks for."""
        return open_stream(self.pair, model, size)


def open_stream(pair: ModelPair, name: str, size: StreamSize) -> Stream:
    """One model's memory."""
    runner, attention = pair.runners[name], _attention(pair, name, size.max_length)
    if attention is not None:
        return RowStream(runner, attention, **size._asdict())
    kind = LoneStream if pair.decodes_alone[name] else BatchStream
    options = {"scores_prompts": size.scores_prompts}
    return kind(runner.model, size.num_rows, runner.vocab_size, **options)


def _attention(pair: ModelPair, name: str, max_length: int) -> RowAttention | None:
    attention = pair.row_attention[name]
    return attention if attention is not None and attention.covers(max_length) else None


def rows_join(pair: ModelPair, name: str, max_length: int) -> bool:
    """Tell whether texts of this length can join a batch of a model: unless it pads them."""
    return pair.decodes_alone[name] or _attention(pair, name, max_length) is not None
