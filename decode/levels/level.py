"""What the models of a pair are compared in, symbol by symbol; the level of shared tokens."""

import codecs
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from ..models.kv_cache import RowAttention
from ..models.model_pair import ModelPair
from ..models.row_stream import RowStream
from ..models.stream import BatchStream, LoneStream, Stream
from ..rules.budget import PromptRatios
from ..rules.rule import BOTH, StreamName, StreamSpec
from ..settings import LevelName, SamplingConfig
from ..warpers import Warpers


class TextStream:
    """Emits text as symbols (tokens or bytes) arrive; the pieces joined are `text`.

    Text that may yet become a stop string is held back.
    """

    def __init__(self, symbols: "TokenText | ByteText", stop: tuple[str, ...] = ()) -> None:
        self._symbols = symbols
        self._stop = stop
        self._held = ""
        self.text = ""
        self.is_stopped = False

    def push(self, symbol: int) -> str:
        """The text that this symbol makes certain, "" if none."""
        piece = self._symbols.push(symbol)
        return self._emit(piece, is_last=False) if piece else ""

    def finish(self) -> str:
        """The text still held back, and what its symbols make of an incomplete character."""
        return self._emit(self._symbols.finish(), is_last=True)

    def _emit(self, piece: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        pending = self._held + piece
        stops = [
            (pending.find(stop) + len(stop), pending.find(stop))
            for stop in self._stop
            if stop in pending
        ]
        if stops:  # the stop string that is complete first, wherever tokens end
            self.is_stopped = True
            return self._release(pending[: min(stops)[1]], held="")
        keep = 0 if is_last else self._overlap(pending)
        return self._release(pending[: len(pending) - keep], held=pending[len(pending) - keep :])

    def _release(self, piece: str, *, held: str) -> str:
        self._held = held
        self.text += piece
        return piece

    def _overlap(self, pending: str) -> int:
        """Length of the longest end of `pending` with which a stop string may begin."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(pending)), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stop):
                return length
        return 0


class TokenText:
    """Decodes tokens; bytes that do not end a character wait for the next token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._waiting: list[int] = []

    def push(self, symbol: int) -> str:
        """The characters that this token completes, "" if none."""
        self._waiting.append(symbol)
        piece = self._decoder.step(self._backend, symbol)
        if piece is None:
            return ""
        self._waiting.clear()
        return piece

    def finish(self) -> str:
        """The tokens still waiting; an incomplete character becomes the replacement character."""
        rest: str = self._backend.decode(self._waiting, skip_special_tokens=True)
        self._waiting.clear()
        return rest


class ByteText:
    """Decodes UTF-8; each ill-formed piece becomes one replacement character, nothing is lost.

    A character that is not finished at the end of the text is left out: no end can follow it, so
    the text was cut there, and what goes on from it shows the character whole.
    """

    def __init__(self, begun: bytes = b"") -> None:
        """begun: the first bytes of a character, which the text goes on with."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(begun)

    def push(self, symbol: int) -> str:
        """The characters that this byte completes, "" if none."""
        return self._decoder.decode(bytes([symbol]))

    def finish(self) -> str:
        """Nothing: what was not completed is left to a continuation."""
        return ""


class Level(ABC):
    """A pair at one level: its symbols, how text becomes symbols, and streams that predict them.

    Batches, rules, scores and ledgers deal in symbols alone; where they say token, they mean one.
    """

    pair: ModelPair
    prompt_ratios: PromptRatios | None
    """Ratios of all prompts that are decoded, where they are known before."""
    name: LevelName
    vocab_size: int
    """Number of symbols."""
    stop_token_ids: list[int]
    """Symbols that end a text, ascending."""
    special_token_ids: Sequence[int] = ()
    """Symbols of a prompt that owe no prefix debt."""
    symbols_per_token: int
    """Scales the default horizon, and brings prefix debts to the nats of a token."""
    context_length: int | None = None
    """Most symbols of a text; None where the models have no limit or do not count symbols."""
    compares_models = True
    """Both models say how likely every symbol is: ratios and divergences are those of one set."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain JSON values: with the pair, they make the same level again."""

    def ratio_settings(self) -> dict[str, Any]:
        """The settings that decide the ratios of prompts."""
        return self.settings()

    @abstractmethod
    def encode(self, prompt: str | list[int]) -> list[int]:
        """Symbols of a prompt, its text or the symbols themselves; ValueError for bad ones."""

    @abstractmethod
    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Symbols of a text that follows a prompt; ValueError for bad ones."""

    def symbol_of(self, text: str) -> int | None:
        """The symbol that a text is by itself, for both models; None where it is several."""
        symbols = self.encode_continuation(text)
        return symbols[0] if len(symbols) == 1 else None

    def encoding(self) -> tuple[str, ...]:
        """The level and the sha256 of both tokenizers, which decide the symbols of a text."""
        tokenizers = self.pair.tokenizers.values()
        return self.name, *(tokenizer_sha256(own) for own in tokenizers)

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

    @abstractmethod
    def text_stream(self, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> TextStream:
        """The text behind a prompt, symbol by symbol."""

    def rows_can_join(self, max_length: int) -> bool:
        """Whether rows of up to `max_length` symbols can join a batch that is being decoded."""
        return True

    @abstractmethod
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

        scores_prompts: whether reading gives log-probabilities of the prompts' own symbols.
        """

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        """Which model has too few positions for the text of a row, "" while both have enough."""
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

    def __init__(self, pair: ModelPair, prompt_ratios: PromptRatios | None = None) -> None:
        """prompt_ratios: those of all prompts, where they are known before.

        Raises ValueError for a pair whose tokenizers make different tokens of plain text.
        """
        if not pair.shares_tokens:
            sizes = " and ".join(str(len(tokenizer)) for tokenizer in pair.tokenizers.values())
            raise ValueError(
                f"the models have different tokenizers ({sizes} tokens): {pair.shared.difference}; "
                'such a pair needs level="byte"'
            )
        self.pair, self.prompt_ratios = pair, prompt_ratios
        self.vocab_size, self.stop_token_ids = pair.vocab_size, pair.stop_token_ids
        special = {t for tokenizer in pair.tokenizers.values() for t in tokenizer.all_special_ids}
        self.special_token_ids = sorted(special)
        self.context_length = pair.context_length

    def settings(self) -> dict[str, Any]:
        """The tokens of either model that are left out; {} where both tokenizers have the same."""
        shared = self.pair.shared
        if shared.is_whole:
            return {}
        return {"vocab_size": shared.vocab_size, "banned_token_ids": list(shared.banned_token_ids)}

    def encode(self, prompt: str | list[int]) -> list[int]:
        return self.pair.encode(prompt)

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        return self.pair.encode_continuation(text)

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        limit = self.context_length
        if limit is None or len(prompt) + max_new_symbols <= limit:
            return ""
        return (
            f"the prompt has {len(prompt)} tokens; with {max_new_symbols} new ones it exceeds "
            f"the pair's context of {limit}"
        )

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        return Warpers(sampling, self.stop_token_ids, self.pair.shared.banned_token_ids)

    def text_stream(self, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> TextStream:
        return TextStream(TokenText(self.pair.tokenizer), stop)

    def rows_can_join(self, max_length: int) -> bool:
        return all(rows_join(self.pair, name, max_length) for name in self.pair.models)

    def open_streams(
        self,
        num_rows: int,
        max_length: int,
        sampling: SamplingConfig,
        *,
        scores_prompts: bool,
        specs: Mapping[StreamName, StreamSpec] = BOTH,
    ) -> dict[str, Stream]:
        """Streams of raw logits: `warpers` does what `sampling` asks for."""
        return {
            name: open_stream(
                self.pair, own.model, num_rows, max_length, scores_prompts=scores_prompts
            )
            for name, own in specs.items()
        }


def open_stream(
    pair: ModelPair, name: str, num_rows: int, max_length: int, *, scores_prompts: bool
) -> Stream:
    """One model's memory of `num_rows` rows of up to `max_length` tokens.

    scores_prompts: whether reading gives log-probabilities of the prompts' own tokens.
    """
    runner, attention = pair.runners[name], _attention(pair, name, max_length)
    if attention is None:
        kind = LoneStream if pair.decodes_alone[name] else BatchStream
        return kind(runner.model, num_rows, runner.vocab_size, scores_prompts=scores_prompts)
    return RowStream(
        runner,
        attention,
        num_rows=num_rows,
        max_length=max_length,
        scores_prompts=scores_prompts,
    )


def _attention(pair: ModelPair, name: str, max_length: int) -> RowAttention | None:
    attention = pair.row_attention[name]
    return attention if attention is not None and attention.covers(max_length) else None


def rows_join(pair: ModelPair, name: str, max_length: int) -> bool:
    """Whether texts of this length can join a batch of a model: unless they are padded there."""
    return pair.decodes_alone[name] or _attention(pair, name, max_length) is not None
