"""One model's memory of texts, byte by byte: the stream of its exact byte distributions."""

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ...kernels.devices import work_device
from ..settings import SamplingConfig
from ..streams.configs import context_length
from ..streams.kv_cache import RowAttention, uploaded
from ..streams.row_stream import ModelRunner, prompt_groups
from ..streams.stream import UNSCORED, PromptLogits
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from ..warpers import Places, Warpers, alike_or_new, largest_logit
from .byte_row import (
    LOGITS_AT_ONCE,
    NODES_PER_FORWARD,
    ByteCounts,
    ByteRow,
    PromptCache,
    ReadPrompt,
)
from .node_distribution import allowed_in_order, node_distributions
from .tree_cache import TreeBackbone, TreeForward

# B rows of the batch, R rows of one call, T new columns, V tokens of the vocabulary.

T = TypeVar("T", bound=Callable[..., object])
BYTES_AHEAD = 256
"""Bytes that are certain to come whose nodes, one or two a byte, are computed at once."""

PROMPT_LOGITS = 64
"""Nodes of prompts that the output layer reads together: all of them will be asked for."""


def quietly(method: T) -> T:
    """Without gradients, nor numpy's warnings of a model's NaN, which its request reports."""
    return torch.inference_mode()(np.errstate(invalid="ignore")(method))


class ByteStream:
    """A `Stream` over 257 symbols: bytes 0..255 and the end (see `TreeMarginals`).

    Logits are log-probabilities, float64, and those of a row depend on its bytes alone. Token
    logits are warped before they are summed to bytes; the log-probabilities of prompts are not.
    """

    vocab_size = NUM_SYMBOLS

    def __init__(
        self,
        runner: ModelRunner,
        attention: RowAttention,
        vocabulary: ByteVocabulary,
        *,
        num_rows: int,
        warp: Warpers,
        scores_prompts: bool = True,
        prompts: PromptCache | None = None,
        prompt_source: Hashable = (),
    ) -> None:
        """warp: of columns in order, whose stops are the vocabulary's `stop_columns`; the tokens
        seen are those of a node's path. scores_prompts: whether `read` gives log-probabilities of
        prompts' bytes. prompts: where those that were read are kept, and prompt_source: what names
        this stream's ones among them."""
        self.model, self.vocabulary = model, vocabulary = runner.model, vocabulary
        self._device = work_device(model.device)
        self._scores_prompts, self._warps = scores_prompts, [warp] * num_rows
        self._prompts = PromptCache(0) if prompts is None else prompts  # an empty one is falsy
        self._prompt_source = prompt_source
        limits = context_length(model.config), attention.reach
        self._reach = min(limit for limit in (*limits, sys.maxsize) if limit)
        self._backbone = TreeBackbone(runner, attention, num_rows)
        self._runner = runner.in_order(torch.from_numpy(vocabulary.ordered_tokens))
        self._rows: dict[int, ByteRow] = {}
        self.records_sizes = False
        """Whether the two below are measured, for a stream of one text."""
        self.sizes: list[float] = []
        """Sizes of token logits, one for each distribution of bytes so far: see `ByteRow.size`."""
        self.prompt_size = 0.0
        """The largest size in the log-probabilities of the prompt, which are not warped."""

    def set_sampling(self, row: int, sampling: SamplingConfig) -> None:
        """Warp the next text of a free row so."""
        self._warps[row] = alike_or_new(self._warps, sampling)

    def counts(self, row: int) -> ByteCounts:
        """The work that a row has made so far."""
        return self._rows[row].counts

    def outgrown(self, row: int) -> int:
        """The positions that the model has, if the text of a row needs more of them; else 0."""
        return self._reach if self._rows[row].is_outgrown else 0

    @quietly
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts (byte values) into free rows.

        Returns: logits (R, 257); log-probabilities (bytes - 1,) of the bytes but the first, NaN of
        a prompt in which a beginning of some word takes more positions than the model has.
        """
        # 1. Read what is not kept; equal prompts once, if they can be kept.
        texts = {
            row: self.vocabulary.spelled(bytes(prompt))
            for row, prompt in zip(rows, prompts, strict=True)
        }
        kept = {text: self._prompts.get((self._prompt_source, text)) for text in texts.values()}
        new = {row: text for row, text in texts.items() if kept[text] is None}
        can_keep = self._prompts.max_bytes > 0
        if can_keep:
            row_of = {text: row for row, text in new.items()}
            new = {row: text for text, row in row_of.items()}
        lengths = [min(len(text), NODES_PER_FORWARD) for text in new.values()]  # a node a byte
        log_probs: dict[int, Tensor] = {}
        for group in prompt_groups(lengths) if new else ():
            log_probs |= self._read_together(dict([*new.items()][group]))
        # 2. Keep copies, before anything is appended, and copy the others.
        for row, text in new.items() if can_keep else ():
            states = self._backbone.cache.states(row)
            kept[text] = read = ReadPrompt(self._rows[row].copy(), states, log_probs[row])
            self._prompts.put((self._prompt_source, text), read)
        for row in texts.keys() - new.keys():
            prompt = kept[texts[row]]
            assert prompt is not None
            self._rows[row] = prompt.row.copy()
            self._backbone.cache.restore(row, prompt.states)
            log_probs[row] = prompt.token_log_probs
        num_forwards = max(self._rows[row].counts.num_forwards for row in rows)
        logits = self._logits(rows).to(self._device)
        # Of a space that the tokenizer puts first nothing is reported, nor of the first byte.
        firsts = [len(log_probs[row]) - len(p) + 1 for row, p in zip(rows, prompts, strict=True)]
        scored = [log_probs[row][max(0, n) :] for row, n in zip(rows, firsts, strict=True)]
        return PromptLogits(logits, scored, num_forwards)

    def _read_together(self, texts: dict[int, bytes]) -> dict[int, Tensor]:
        """Read prompts into free rows, column by column; their log-probabilities by row."""
        new = {row: ByteRow(self.vocabulary, self._reach) for row in texts}
        self._rows |= new
        if self._scores_prompts:
            log_probs = self._scored(texts)
        else:
            log_probs = dict.fromkeys(texts, UNSCORED)
            for row, content in texts.items():
                for byte in content:
                    new[row].tree.append(byte)
        for text in new.values():
            text.begin()
        self._compute_foreseen(new)
        for row, text in new.items():
            self._backbone.cache.keep(row, *text.cache.compact())
        return log_probs

    def _scored(self, texts: dict[int, bytes]) -> dict[int, Tensor]:
        """Log-probabilities (bytes - 1,) by row of new texts, which are fed to their rows."""
        scores: dict[int, list[float]] = {row: [] for row in texts}
        for column, rows, log_probs in self._fed(texts, is_warped=False):
            for row, of_bytes in zip(rows, log_probs.numpy(), strict=True):
                scores[row] += [of_bytes[byte] for byte in texts[row][column + 1 : column + 2]]
        for row in texts:
            if self._rows[row].is_outgrown:
                scores[row] = [math.nan] * len(scores[row])
        return {row: torch.tensor(nats, dtype=torch.float64) for row, nats in scores.items()}

    @quietly
    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """See Stream. Nothing follows the end.

        A forward computes what several bytes need, and what one needs that was not foreseen.
        """
        symbols = dict(zip(rows, tokens, strict=True))
        columns: dict[int, list[Tensor]] = {row: [] for row in rows}
        for _, going_on, log_probs in self._fed(symbols):
            for row, of_row in zip(going_on, log_probs, strict=True):
                columns[row].append(of_row)
        logits = [[*columns[row][:1] * num_last, *columns[row]][-num_last:] for row in rows]
        return torch.stack([torch.stack(of_row) for of_row in logits]).to(self._device)

    def _fed(
        self, symbols: Mapping[int, Sequence[int]], *, is_warped: bool = True
    ) -> Iterator[tuple[int, list[int], Tensor]]:
        """Grow texts by row: each column, the rows that reach it and (rows, 257) after it."""
        longest = max(map(len, symbols.values()))
        for column in range(longest):
            rows = [row for row, text in symbols.items() if column < len(text)]
            if column % BYTES_AHEAD == 0 and longest > 1:  # what is certain to come
                for row in rows:
                    ahead = [*symbols[row][column : column + BYTES_AHEAD], END_SYMBOL]
                    self._rows[row].foresee(bytes(ahead[: ahead.index(END_SYMBOL)]))
                self._compute_foreseen(rows)
            for row in rows:
                self._rows[row].append(symbols[row][column])
            yield column, rows, self._logits(rows, is_warped=is_warped)

    def _compute_foreseen(self, rows: Iterable[int]) -> None:
        while any((f := {row: self._rows[row].next_forward() for row in rows}).values()):
            self._compute(f)

    @torch.inference_mode()
    def free(self, row: int) -> None:
        """Empty a row for the next request."""
        self._rows.pop(row, None)
        self._backbone.cache.free(row)

    def _logits(self, rows: list[int], *, is_warped: bool = True) -> Tensor:
        """(R, 257) on the CPU after the texts of these rows."""
        texts = {row: self._rows[row] for row in rows}
        # 1. Hidden states of the nodes that the next bytes depend on.
        wanted = {row: text.wanted() for row, text in texts.items()}
        self._compute({row: text.forward(wanted[row], len(rows)) for row, text in texts.items()})
        # 2. Logits of these, and of others whose turn may come.
        number = LOGITS_AT_ONCE if is_warped else max(LOGITS_AT_ONCE, PROMPT_LOGITS // len(rows))
        parts = [(text, text.without_logits(wanted[row], number)) for row, text in texts.items()]
        if hidden := [text.hidden[node] for text, nodes in parts for node in nodes]:
            logits = iter(self._runner.logits(torch.cat(hidden))[:, None].unbind())
            for text, nodes in parts:
                text.take_logits(nodes, logits)
        # 3. Distributions of tokens, warped and masked; then those of bytes.
        by_warp: dict[Warpers | None, list[tuple[ByteRow, int]]] = {}
        for row, text in texts.items():
            warp = self._warps[row] if is_warped else None
            by_warp.setdefault(warp, []).extend((text, node) for node in wanted[row])
        for warp, of_rows in by_warp.items():
            # On a CPU one by one, as a row over the vocabulary stays in the cache from its warpers
            # to its sums, and many do not; on a device together, as each call costs the same.
            number = 1 if self._device.type == "cpu" else len(of_rows)
            for start in range(0, len(of_rows), max(1, number)):
                self._add_distributions(of_rows[start : start + number], warp)
        log_probs = [text.log_probs() for text in texts.values()]
        # After these: a text to which truncation gave no probability begins again there.
        size = max(text.size for text in texts.values()) if self.records_sizes else 0.0
        if not is_warped:
            self.prompt_size = max(self.prompt_size, size)
        elif self.records_sizes:
            self.sizes.append(size)
        return torch.from_numpy(np.array(log_probs))

    def _compute(self, forwards: Mapping[int, TreeForward | None]) -> None:
        """Run the forwards of some rows, None for none."""
        needed = {row: forward for row, forward in forwards.items() if forward is not None}
        for row, hidden in self._backbone.forward(needed).items() if needed else ():
            text = self._rows[row]
            text.take(needed[row].nodes, hidden)
            if (kept := text.compact()) is not None:
                self._backbone.cache.keep(row, *kept)

    def _add_distributions(self, wanted: list[tuple[ByteRow, int]], warp: Warpers | None) -> None:
        rows = [text.logits[node] for text, node in wanted]
        logits = torch.cat(rows) if len(rows) > 1 else rows[0]
        states = [text.tree.state[node] for text, node in wanted]
        if warp is not None and warp.config.is_truncating:
            # It keeps the likeliest of what may follow. Else masking is done after, at less cost.
            allowed = torch.from_numpy(allowed_in_order(self.vocabulary, states))
            logits = logits.masked_fill(~uploaded(allowed, self._device), -torch.inf)
        if warp is not None:
            logits = warp.after(self._seen([text.seen(node) for text, node in wanted]))(logits)
        if self.records_sizes:
            for (text, node), size in zip(wanted, largest_logit(logits).tolist(), strict=True):
                text.sizes[node] = size
        distributions = node_distributions(self.vocabulary, states, logits)
        for (text, node), following in zip(wanted, distributions, strict=True):
            text.add_distribution(node, following)

    def _seen(self, paths: list[list[int]]) -> Tensor | Places:
        """The tokens of each path, columns in order: places, or on a device (N, V) bool."""
        rows = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
        columns = self.vocabulary.column_of[np.concatenate(paths)]
        if self._device.type == "cpu":
            return rows, columns
        seen = torch.zeros(len(paths), self.vocabulary.vocab_size, dtype=torch.bool)
        seen[rows, columns] = True
        return uploaded(seen, self._device)
