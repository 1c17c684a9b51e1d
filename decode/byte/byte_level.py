"""A pair decoded byte by byte: what its models have in common when their tokenizers differ."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..levels.level import Level, StreamSize
from ..pair.model_pair import ModelPair
from ..rules.rule import ModelName
from ..settings import UNWARPED, LevelName, RequestError, SamplingConfig
from ..streams.kv_cache import RowAttention
from ..streams.stream import Stream
from ..tokenizer.text import ByteText, TextStream
from ..tokenizer.utf8 import cut_partial
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from ..warpers import Warpers
from .byte_row import PromptCache
from .byte_stream import ByteStream

# Seconds for 128k tokens: once for all decoders and ledgers of a pair.
_vocabulary = lru_cache(maxsize=4)(ByteVocabulary)

BYTES_PER_TOKEN = 4
"""The mean of English text. Source: paper, section on byte-level decoding."""


class ByteLevel(Level):
    """Symbols are the 256 bytes and the end of the text, into which all stop tokens merge.

    Special tokens of a prompt's text are not recognized: all of it is bytes.
    """

    name: LevelName = "byte"
    vocab_size = NUM_SYMBOLS
    symbols_per_token = BYTES_PER_TOKEN

    def __init__(self, pair: ModelPair, prompt_cache: PromptCache | None = None) -> None:
        """prompt_cache: where prompts that were read are kept; None for a new one.

        Raises ValueError, in one line, for a tokenizer that cannot be read as bytes and for a model
        whose attention cannot be masked token by token.
        """
        self.pair = pair
        self.prompt_cache = prompt_cache if prompt_cache is not None else PromptCache()
        self.stop_token_ids = [END_SYMBOL]
        self._attention: dict[str, RowAttention] = {}
        self.vocabularies: dict[str, ByteVocabulary] = {}
        for name, attention in pair.row_attention.items():
            if attention is None:
                whose = f"the {name} model's attention"
                raise ValueError(f"byte level cannot mask {whose} token by token")
            self._attention[name] = attention
        for name, model in pair.models.items():
            try:
                stops = tuple(self._stops_of(name))
                num_rows = model.config.get_text_config().vocab_size
                whole = pair.tokenizers[name]
                self.vocabularies[name] = _vocabulary(
                    whole.backend_tokenizer, stops, whole.bos_token_id, num_rows
                )
                # Other tokens have the bytes of one that is text; special tokens have none.
                texts = self.vocabularies[name].trie.row_of
                if are_text := [token for token in pair.suppressed[name] if token in texts]:
                    raise ValueError(
                        f"byte level cannot suppress token {are_text[0]}, which is text: take it "
                        "out of suppress_tokens and bad_words_ids in the model's generation_config"
                    )
            except ValueError as error:
                raise ValueError(f"the {name} model's tokenizer: {error}") from None

    def _stops_of(self, name: str) -> list[int]:
        suppressed = self.pair.suppressed[name]
        return [token for token in self.pair.stop_tokens_of(name) if token not in suppressed]

    def settings(self) -> dict[str, Any]:
        """The identities of the tokenizers, by "safe" and "risky"."""
        return {"tokenizers": self._tokenizers}

    @property
    def _tokenizers(self) -> dict[str, Any]:
        return {
            name: {
                "sha256": vocabulary.sha256,
                "stop_token_ids": self._stops_of(name),
                "start_token_ids": list(vocabulary.start_token_ids),
            }
            for name, vocabulary in self.vocabularies.items()
        }

    def encode(self, prompt: str | list[int]) -> list[int]:
        """The bytes of a text, in the normal form of both tokenizers, or these bytes.

        There may be none: each model's start tokens come before every text.
        """
        symbols = self._symbols(prompt)
        _check_range(symbols)
        if cut_partial(bytes(symbols)) is None:
            raise RequestError("the bytes are not the beginning of a UTF-8 text")
        for name, vocabulary in self.vocabularies.items():
            if unknown := set(symbols) - vocabulary.known_bytes:
                raise RequestError(
                    f"the prompt holds byte 0x{min(unknown):02x}, for which the {name} model's "
                    "tokenizer has no token"
                )
        return symbols

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """The bytes of a text; bytes may begin inside a character and end with the end."""
        symbols = self._symbols(text)
        _check_range(symbols[:-1] if symbols[-1:] == self.stop_token_ids else symbols)
        return symbols

    def _symbols(self, text: str | list[int]) -> list[int]:
        if not isinstance(text, str):
            return list(text)
        for vocabulary in self.vocabularies.values():
            text = vocabulary.normalize(text).decode()
        return list(text.encode())

    def horizon(self, max_new_tokens: int, max_new_bytes: int | None) -> int:
        """max_new_bytes, else BYTES_PER_TOKEN of them per token."""
        if max_new_bytes is None:
            return BYTES_PER_TOKEN * max_new_tokens
        if max_new_bytes < 1:
            raise ValueError(f"max_new_bytes must be >= 1, got {max_new_bytes}")
        return max_new_bytes

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        """Count BYTES_PER_TOKEN; shorter tokens may still outgrow a model, see `outgrown`."""
        for name, limit in self.pair.context_lengths.items():
            text = bytes(prompt).decode(errors="replace")
            tokens = self.pair.tokenizers[name](text, add_special_tokens=False, verbose=False)
            num_tokens = len(self.vocabularies[name].start_token_ids) + len(tokens["input_ids"])
            if num_tokens + max_new_symbols / BYTES_PER_TOKEN > limit:
                return (
                    f"the prompt has {num_tokens} tokens of the {name} model; with "
                    f"{max_new_symbols} new bytes, {BYTES_PER_TOKEN} a token, it exceeds that "
                    f"model's context of {limit}"
                )
        return ""

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        """Nothing but the end is left to do: tokens are warped before they become bytes."""
        return Warpers(UNWARPED, self.stop_token_ids)

    def text_stream(self, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> TextStream:
        """A character that the prompt ends inside is part of it."""
        cut = cut_partial(bytes(prompt))
        return TextStream(ByteText(b"" if cut is None else cut[1]), stop)

    def _stream(self, model: ModelName, sampling: SamplingConfig, size: StreamSize) -> Stream:
        """Logits are log-probabilities of symbols."""
        vocabulary, runner = self.vocabularies[model], self.pair.runners[model]
        # All that decides what is kept of a prompt, with its bytes.
        source = self.pair.fingerprints[model], str(self._tokenizers[model])
        place = runner.model.dtype, runner.model.device
        return ByteStream(
            runner,
            self._attention[model],
            vocabulary,
            num_rows=size.num_rows,
            warp=Warpers(sampling, vocabulary.stop_columns),
            scores_prompts=size.scores_prompts,
            prompts=self.prompt_cache,
            prompt_source=(*source, *place, size.scores_prompts),
        )

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        for name, stream in _byte_streams(streams).items():
            if limit := stream.outgrown(row):
                return f"the text outgrows the {name} model's context of {limit} tokens"
        return ""

    def work(self, streams: Mapping[str, Stream], row: int) -> dict[str, dict[str, float]]:
        """Forwards, what they computed, and what masking left out; see ByteCounts."""
        return {n: stream.counts(row).record() for n, stream in _byte_streams(streams).items()}


def _byte_streams(streams: Mapping[str, Stream]) -> dict[str, ByteStream]:
    return {name: stream for name, stream in streams.items() if isinstance(stream, ByteStream)}


def _check_range(symbols: list[int]) -> None:
    if wrong := [symbol for symbol in symbols if not 0 <= symbol < END_SYMBOL]:
        raise RequestError(f"bytes must be in [0, {END_SYMBOL}), got {wrong[0]}")
