"""Two tokenizers, decoded in the tokens of one: the safe model reads their text in its tokens."""

import codecs
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import eq
from typing import Any

import torch
from torch import Tensor

from ...kernels.devices import work_device
from ..pair.model_pair import ModelPair
from ..rules.rule import ModelName
from ..settings import RequestError, SamplingConfig
from ..streams.row_stream import RowStream
from ..streams.stream import UNSCORED, LoneStream, PromptLogits, Stream
from ..tokenizer.text import TokenDecoder, encoded, special_stops
from ..tokenizer.tokenizer_file import TokenizerFile, read_tokenizer
from ..warpers import Warpers, alike_or_new
from .level import StreamSize, TokenLevel, open_stream, rows_join

# R rows of one call, V symbols, which are tokens of the risky model.

# Half a second of large vocabularies: once for all decoders and ledgers of a pair.
_read_once = lru_cache(maxsize=4)(read_tokenizer)


class RetokenizedLevel(TokenLevel):
    """Symbols are the risky model's tokens; the safe model reads their text in its tokens.

    What it says of the next symbol is what it says of tokens that both have: a distribution of some
    symbols alone, so nothing bounds a divergence from it. For rules that ask no more
    (`Rule.retokenizes`).
    """

    compares_models = False

    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair
        self._tokenizer = pair.tokenizers["risky"]
        self._decoder = TokenDecoder(self._tokenizer)
        tokenizers = pair.tokenizers.items()
        self._files = {name: _read_once(whole.backend_tokenizer) for name, whole in tokenizers}
        self.vocab_size = pair.runners["risky"].vocab_size
        self.stop_token_ids = pair.stop_tokens_of("risky")
        self.special_token_ids = sorted(self._tokenizer.all_special_ids)
        self.context_length = pair.context_lengths.get("risky")
        self.same_tokens = same_tokens(self._files["risky"], self._files["safe"], self.vocab_size)

    def settings(self) -> dict[str, Any]:
        """The model whose tokens are drawn, and the digests of both tokenizers."""
        tokenizers = {name: file.sha256 for name, file in self._files.items()}
        suppressed = {name: tokens for name, tokens in self.pair.suppressed.items() if tokens}
        named = {"suppressed_token_ids": suppressed} if suppressed else {}
        return {"tokens_of": "risky", "tokenizers": tokenizers, **named}

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of the risky model, with the special tokens that its tokenizer adds."""
        token_ids = self._encoded(prompt, add_special_tokens=True)
        if not token_ids:
            raise RequestError("the prompt is empty: give at least one character or one token")
        return token_ids

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        return self._encoded(text, add_special_tokens=False)

    def _encoded(self, text: str | list[int], *, add_special_tokens: bool) -> list[int]:
        if isinstance(text, str):
            text = encoded(self._tokenizer, text, add_special_tokens=add_special_tokens)
        for token_id in text:
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(f"token ids must be in [0, {self.vocab_size}), got {token_id}")
        return list(text)

    def symbol_of(self, text: str) -> int | None:
        """The risky model's token of a text that is one token of both models by itself."""
        tokens = {
            name: encoded(tokenizer, text, add_special_tokens=False)
            for name, tokenizer in self.pair.tokenizers.items()
        }
        symbol = tokens["risky"][0]
        is_one = len(tokens["risky"]) == 1 and tokens["safe"] == [self.same_tokens.get(symbol)]
        return symbol if is_one else None

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        """Counted in as many new tokens of either model; the safe one may outgrow its context yet,
        see `outgrown`."""
        prompts = {"risky": prompt, "safe": self.safe_tokens(prompt)}
        for name, limit in self.pair.context_lengths.items():
            if len(prompts[name]) + max_new_symbols > limit:
                return (
                    f"the prompt has {len(prompts[name])} tokens of the {name} model; with "
                    f"{max_new_symbols} new ones it exceeds that model's context of {limit}"
                )
        return ""

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        """The warpers of the risky model; the safe model's stream warps its logits itself."""
        in_file = self._files["risky"].token_bytes.keys() | self._files["risky"].special_token_ids
        unknown = set(range(self.vocab_size)) - in_file
        banned = unknown | {t for t in self.pair.suppressed["risky"] if t < self.vocab_size}
        return Warpers(sampling, self.stop_token_ids, sorted(banned))

    def stop_symbols(self, stop: Sequence[str]) -> frozenset[int]:
        return special_stops(stop, [self._tokenizer], range(self.vocab_size).__contains__)

    def rows_can_join(self, max_length: int) -> bool:
        return rows_join(self.pair, "risky", max_length)

    def _stream(self, model: ModelName, sampling: SamplingConfig, size: StreamSize) -> Stream:
        """Raw logits of the risky model; the safe one's warped log-probabilities of symbols that it
        has too, -inf elsewhere. Prompts are scored by neither."""
        size = size._replace(scores_prompts=False)
        if model == "risky":
            return open_stream(self.pair, "risky", size)
        pair, attention = self.pair, self.pair.row_attention["safe"]
        longest = max(map(len, self._files["risky"].token_bytes.values()))
        limits = [pair.context_lengths.get("safe"), attention.reach if attention else None]
        reach = min((n for n in limits if n), default=longest * size.max_length + 8)
        runner, stops = pair.runners["safe"], pair.stop_tokens_of("safe")
        banned = [token for token in pair.suppressed["safe"] if token < runner.vocab_size]
        size = size._replace(max_length=reach)
        inner: RowStream | LoneStream = LoneStream(
            pair.safe, size.num_rows, runner.vocab_size, scores_prompts=False
        )
        if attention is not None:
            inner = RowStream(runner, attention, **size._asdict())
        return RetokenizedStream(inner, self, Warpers(sampling, stops, banned), size)

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        for stream in streams.values():
            if isinstance(stream, RetokenizedStream) and stream.is_outgrown(row):
                return f"the text outgrows the safe model's context of {stream.reach} tokens"
        return ""

    def spelled(self, symbols: Sequence[int]) -> str:
        """Whole characters: an unfinished one at the end is left out, ill-formed ones replaced."""
        file = self._files["risky"]
        text = b"".join(file.token_bytes.get(symbol, b"") for symbol in symbols)
        if file.sentence_piece is not None and file.sentence_piece.puts_space:
            text = text.removeprefix(b" ")  # which the tokenizer put first
        return codecs.getincrementaldecoder("utf-8")("replace").decode(text)

    def safe_tokens(self, symbols: Sequence[int]) -> list[int]:
        """The safe model's tokens of the text of symbols, with the special tokens that its
        tokenizer adds; one at least, before an empty text."""
        tokenizer = self.pair.tokenizer
        tokens = encoded(tokenizer, self.spelled(symbols), add_special_tokens=True)
        if tokens:
            return tokens
        first = tokenizer.bos_token_id
        return [tokenizer.eos_token_id or 0 if first is None else first]


def same_tokens(file: TokenizerFile, other: TokenizerFile, vocab_size: int) -> dict[int, int]:
    """Ordinary tokens below `vocab_size` whose bytes are a token of another tokenizer too: that."""
    ids = {
        text: token_id
        for token_id, text in other.token_bytes.items()
        if token_id not in other.added_token_ids
    }
    return {
        token_id: ids[text]
        for token_id, text in file.token_bytes.items()
        if text in ids and token_id not in file.added_token_ids and token_id < vocab_size
    }


class RetokenizedStream:
    """A model that reads the text of symbols in its tokens.

    With every new symbol the whole text is tokenized again, as its last tokens may change; the
    model's cache is cut back to the tokens that stayed, and it reads the others. A model whose rows
    cannot be cut back reads the whole text, one row at a time.
    """

    def __init__(
        self,
        inner: RowStream | LoneStream,
        level: RetokenizedLevel,
        warp: Warpers,
        size: StreamSize,
    ) -> None:
        """size: of the rows, in the model's tokens."""
        self.vocab_size, self.reach, num_rows = level.vocab_size, size.max_length, size.num_rows
        self._inner, self._tokens, self._warps = inner, level.safe_tokens, [warp] * num_rows
        self._device = work_device(inner.model.device)
        symbols, twins = list(level.same_tokens), list(level.same_tokens.values())
        self._symbols = torch.tensor(symbols, dtype=torch.long, device=self._device)
        self._twins = torch.tensor(twins, dtype=torch.long, device=self._device)
        self._rows: dict[int, list[int]] = {row: [] for row in range(num_rows)}
        self._read: dict[int, list[int]] = {row: [] for row in range(num_rows)}

    def set_sampling(self, row: int, sampling: SamplingConfig) -> None:
        """Warp the next text of a free row so."""
        self._warps[row] = alike_or_new(self._warps, sampling)

    def is_outgrown(self, row: int) -> bool:
        """Whether the text of a row has more tokens than the model has positions."""
        return len(self._tokens(self._rows[row])) > self.reach

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts into empty rows; see Stream."""
        return PromptLogits(self.feed(rows, prompts)[:, 0], [UNSCORED] * len(rows), 1)

    @torch.inference_mode()
    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """Log-probabilities, warped and -inf for symbols that the model does not have; NaN for a
        row that the model cannot hold; see Stream."""
        before, columns = [self._rows[row] for row in rows], []
        for num_left in reversed(range(num_last)):
            for row, text, new in zip(rows, before, tokens, strict=True):
                self._rows[row] = text + new[: max(0, len(new) - num_left)]
            columns.append(self._next(rows))
        return torch.stack(columns, dim=1)

    def _next(self, rows: list[int]) -> Tensor:
        """(R, V) after the texts of some rows, read anew where their tokens have changed."""
        texts = {row: self._tokens(self._rows[row]) for row in rows}
        size = len(rows), self.vocab_size
        of_symbols = torch.full(size, torch.nan, dtype=torch.float64, device=self._device)
        for row, log_probs in self._log_probs(texts):
            of_symbols[rows.index(row)] = -torch.inf
            of_symbols[rows.index(row), self._symbols] = log_probs[self._twins]
        return of_symbols

    def free(self, row: int) -> None:
        """Forget a text."""
        self._rows[row], self._read[row] = [], []
        self._inner.free(row)

    def _log_probs(self, texts: Mapping[int, list[int]]) -> Iterator[tuple[int, Tensor]]:
        """Rows that the model can hold, with (the model's tokens,) after their whole texts."""
        kept = {
            row: self._num_kept(row, text) for row, text in texts.items() if len(text) <= self.reach
        }
        # Those of which nothing was read are read together, whatever their lengths.
        groups = [[row for row in kept if bool(kept[row]) == begun] for begun in (False, True)]
        for rows in filter(None, groups):
            logits = self._logits(rows, texts, kept)
            seen = torch.zeros(len(rows), self._inner.vocab_size, dtype=torch.bool)
            for i, row in enumerate(rows):
                seen[i, texts[row]] = True
            seen = seen.to(self._device)
            for warp in set(map(self._warps.__getitem__, rows)):
                alike = [i for i, row in enumerate(rows) if self._warps[row] is warp]
                log_probs = warp(logits[alike], seen[alike]).double().log_softmax(-1)
                yield from zip([rows[i] for i in alike], log_probs, strict=True)

    def _num_kept(self, row: int, text: list[int]) -> int:
        """The number of tokens read before that still begin the text; its last one is read now."""
        if isinstance(self._inner, LoneStream):
            return 0
        equal = itertools.takewhile(bool, map(eq, self._read[row], text[:-1]))
        return len(list(equal))

    def _logits(
        self, rows: list[int], texts: Mapping[int, list[int]], kept: Mapping[int, int]
    ) -> Tensor:
        """(R, the model's tokens) raw; rows that have as many tokens to read, or all."""
        whole = [texts[row] for row in rows]
        self._read.update(zip(rows, whole, strict=True))
        if isinstance(self._inner, LoneStream) or not kept[rows[0]]:
            for row in rows:
                self._inner.free(row)
            return self._inner.read(whole, rows).logits
        for row in rows:
            self._inner.cache.roll_back(row, kept[row])
        return self._inner.feed(rows, [texts[row][kept[row] :] for row in rows])[:, 0]
