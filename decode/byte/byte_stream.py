"""One model's memory of texts, byte by byte: the stream of its exact byte distributions."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ..models.attention import RowAttention
from ..models.kv_cache import uploaded
from ..models.linear import OutputLayer
from ..models.row_stream import prompt_groups
from ..models.stream import PromptLogits
from ..tokenizer.viability import Standing
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from ..warpers import Seen, Warpers
from .byte_row import ByteRow
from .node_law import NodeLaw, allowed_in_order, node_laws
from .path_sums import PathSums
from .prompt import BytePrompt, PromptCache, PromptShelf, ReadPrompt
from .settings import ByteCounts, ByteEvaluation
from .tree_cache import TreeBackbone, TreeCache, TreeForward

# B rows of the batch, R rows of one call, T new columns, V tokens of the vocabulary.

ROWS_PER_TILE = 64
"""Nodes of a prompt whose (rows, V) logits exist at once; a product of more is hardly faster."""

Warp = Callable[[Tensor, Seen], Tensor]
"""Logits (N, V) and the tokens seen before each to warped logits (N, V)."""


class ByteStream:
    """A `Stream` over 257 symbols: bytes 0..255 and the end (see `TreeMarginals`).

    Logits are log-probabilities, float64, and those of a row depend on its own bytes alone. Token
    logits are warped before they are summed to bytes; the log-probabilities of prompts are not.
    """

    vocab_size = NUM_SYMBOLS

    def __init__(
        self,
        model: PreTrainedModel,
        attention: RowAttention,
        vocabulary: ByteVocabulary,
        *,
        num_rows: int,
        warp: Warp | None = None,
        evaluation: ByteEvaluation | None = None,
        prompts: PromptShelf | None = None,
        num_ratios: int | None = None,
    ) -> None:
        """attention: how the model is told what to attend to, of `row_attention`.

        warp: a `Warpers` whose stop tokens are those of `vocabulary`; it is given each node's own
        path as the tokens seen. prompts: where those that were read are kept. num_ratios: how many
        of a pair's largest ratios decide its debts. Prompts are then scored in part, for
        `settled_prompts` to go on with. Raises ValueError if the model predicts fewer tokens than
        the vocabulary has.
        """
        config = model.config
        if config.vocab_size < vocabulary.vocab_size:
            raise ValueError(
                f"the model predicts {config.vocab_size} tokens, the tokenizer has "
                f"{vocabulary.vocab_size}"
            )
        self.model, self.vocabulary, self._device = model, vocabulary, model.device
        self.warp, self.evaluation = warp, evaluation or ByteEvaluation()
        # Elsewhere masking before warping is masking after it, and costs more.
        self._truncates = isinstance(warp, Warpers) and warp.config.is_truncating
        self.num_ratios = num_ratios
        self._prompts = prompts or PromptShelf(PromptCache(0))
        self._reach = min(config.max_position_embeddings, attention.reach or 1 << 60)
        self._has_windows = attention.span is not None
        self._backbone = TreeBackbone(model, attention, num_rows)
        self._output = OutputLayer(model, vocabulary.vocab_size, packs=True)
        self._rows: list[ByteRow | None] = [None] * num_rows
        self._sums: dict[int, PathSums] = {}

    def counts(self, row: int) -> ByteCounts:
        """The work that a row has made so far."""
        return self._row(row).counts

    def outgrown(self, row: int) -> int:
        """The positions that the model has, if the text of a row needs more of them; else 0."""
        return self._reach if self._row(row).is_outgrown else 0

    @torch.inference_mode()
    @np.errstate(invalid="ignore")  # a model's NaN is its request's to report
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts (byte values) into the given free rows.

        Returns: logits (R, 257); log-probabilities (bytes - 1,) of the bytes but the first as
        `evaluation.prompt_scores` says. Raises ValueError for bytes that no text has and for
        prompts of more tokens than the model has positions.
        """
        texts = dict(zip(rows, map(bytes, prompts), strict=True))
        kept = {text: self._prompts.get(text) for text in texts.values()}
        new = [row for row, text in texts.items() if kept[text] is None]
        if self._prompts.keeps:  # equal ones are read once
            new = list({texts[row]: row for row in reversed(new)}.values())
        log_probs = self._read_new({row: texts[row] for row in new}, kept)
        for row, text in texts.items():
            if row not in log_probs:
                prompt = kept[text]
                assert prompt is not None
                self._rows[row] = prompt.row.copy()
                self._know(row, prompt.sums)
                self._backbone.cache.restore(row, prompt.states)
                log_probs[row] = prompt.token_log_probs
        num_forwards = max(self._row(row).counts.num_forwards for row in rows)
        return PromptLogits(self._logits(rows), [log_probs[row] for row in rows], num_forwards)

    @torch.inference_mode()
    @np.errstate(invalid="ignore")  # a model's NaN is its request's to report
    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, 257) after each new column of bytes; see Stream. Nothing follows the end.

        A forward computes what several given columns need, and what one needs that was not
        foreseen.
        """
        lengths = mask.sum(1).tolist()
        tokens = {row: own[: lengths[row]] for row, own in enumerate(token_ids.tolist())}
        logits = torch.full((*token_ids.shape, NUM_SYMBOLS), -torch.inf, dtype=torch.float64)
        for place, rows, laws in self._fed(tokens):
            logits[rows, place] = laws.cpu()
        return logits.to(self._device)

    @torch.inference_mode()
    @np.errstate(invalid="ignore")  # a model's NaN is its request's to report
    def feed_rows(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """Logits (R, 257) after the last of each row's new bytes; see Stream."""
        logits: dict[int, Tensor] = {}
        for _, going_on, laws in self._fed(dict(zip(rows, tokens, strict=True))):
            logits.update(zip(going_on, laws.unbind(), strict=True))
        return torch.stack([logits[row] for row in rows])

    def _fed(self, tokens: dict[int, list[int]]) -> Iterator[tuple[int, list[int], Tensor]]:
        """Grow texts by row: each place, the rows that reach it and (rows, 257) behind it."""
        longest = max(map(len, tokens.values()))
        if longest > 1:
            self._foresee({row: _text(own) for row, own in tokens.items() if own})
        for place in range(longest):
            rows = [row for row, own in tokens.items() if place < len(own)]
            for row in rows:
                self._row(row).append(tokens[row][place])
            yield place, rows, self._logits(rows)

    @torch.inference_mode()
    def free(self, row: int) -> None:
        """Empty a row for the next request."""
        self._rows[row] = None
        self._know(row, None)
        self._backbone.cache.free(row)

    def _read_new(
        self, texts: dict[int, bytes], kept: dict[bytes, ReadPrompt | None]
    ) -> dict[int, Tensor]:
        """Log-probabilities by row of prompts that are read now, and kept."""
        rows = list(texts)
        is_partial = self.num_ratios is not None
        read = [
            BytePrompt(self.vocabulary, texts[row], self.evaluation, is_partial=is_partial)
            for row in rows
        ]
        for prompt in read:
            if (length := len(prompt.trunk_token_ids)) > self._reach:
                raise ValueError(
                    f"the prompt has {length} tokens, the model has {self._reach} positions"
                )
        for group in prompt_groups([prompt.num_first for prompt in read]) if read else ():
            self._read_together(read[group], rows[group])
        log_probs = {row: prompt.log_probs() for row, prompt in zip(rows, read, strict=True)}
        for row, prompt in zip(rows, read, strict=True):
            self._rows[row] = state = prompt.row(self._reach)
            self._know(row, prompt.sums if is_partial else None)
            if self._prompts.keeps:
                states, sums = self._backbone.cache.states(row), self.sums(row)
                kept[texts[row]] = whole = ReadPrompt(state.copy(), states, log_probs[row], sums)
                self._prompts.put(texts[row], whole)
            state.take_logits(prompt.logits, prompt.logits.values())
        return log_probs

    def _read_together(self, prompts: list[BytePrompt], rows: list[int]) -> None:
        num_before = len(self.vocabulary.start_token_ids) - 1
        pairs = list(zip(prompts, rows, strict=True))
        if all(prompt.is_short for prompt in prompts):
            self._read_nodes([(p, row, p.whole_forward()) for p, row in pairs], num_before)
        else:
            trunks = [prompt.trunk_token_ids for prompt in prompts]
            for prompt, hidden in zip(prompts, self._backbone.read(trunks, rows), strict=True):
                self._take(prompt, prompt.trunk, hidden[num_before:])
        while forwards := [
            (prompt, row, forward)
            for prompt, row in pairs
            if (forward := prompt.next_forward()) is not None
        ]:
            self._read_nodes(forwards)

    def _read_nodes(
        self, forwards: list[tuple[BytePrompt, int, TreeForward]], num_before: int = 0
    ) -> None:
        """num_before: start tokens in front of the first node."""
        states = self._forward([(prompt.cache, row, f) for prompt, row, f in forwards])
        for (prompt, row, forward), hidden in zip(forwards, states, strict=True):
            self._take(prompt, forward.nodes[num_before:], hidden[num_before:])
            self._backbone.cache.keep(row, *prompt.compact())

    def _take(self, prompt: BytePrompt, nodes: list[int], hidden: Tensor) -> None:
        prompt.take(nodes, hidden)
        if prompt.sums is None:
            return
        for tile, logits in self._tiles(nodes, hidden):
            prompt.keep_logits(tile, logits)
            prompt.sums.add(tile, logits)

    def _tiles(self, nodes: list[int], hidden: Tensor) -> Iterator[tuple[list[int], Tensor]]:
        """Nodes with their logits (nodes, V), a few at a time."""
        for start in range(0, len(nodes), ROWS_PER_TILE):
            tile = slice(start, start + ROWS_PER_TILE)
            yield nodes[tile], self._output.logits(hidden[tile])

    def sums(self, row: int) -> PathSums | None:
        """What is known of the prompt that a row has read in part."""
        return self._sums.get(row)

    def _know(self, row: int, sums: PathSums | None) -> None:
        self._sums.pop(row, None)
        if sums is not None:
            self._sums[row] = sums

    @torch.inference_mode()
    @np.errstate(invalid="ignore")  # a model's NaN is its request's to report
    def look_into(self, wanted: Mapping[int, list[int]]) -> None:
        """Add the laws of nodes, by row, to what is known of prompts that were just read."""
        forwards = []
        for row, nodes in wanted.items():
            state = self._row(row)
            forward = state.cache.add(state.cache.missing(nodes))
            state.counts.num_forwards += 1
            state.counts.num_nodes += len(forward.nodes)
            forwards.append((state.cache, row, forward))
        for (_, row, forward), hidden in zip(forwards, self._forward(forwards), strict=True):
            for tile, logits in self._tiles(forward.nodes, hidden):
                self._sums[row].add(tile, logits)

    @torch.inference_mode()
    def look_no_further(self, rows: Iterable[int]) -> None:
        """Drop what `look_into` computed beside what the next bytes need."""
        for row in rows:
            self._backbone.cache.keep(row, *self._row(row).cache.compact())

    def _foresee(self, continuations: dict[int, bytes]) -> None:
        """Compute what given continuations need, by row."""
        for row, text in continuations.items():
            self._row(row).foresee(text)
        while any((f := {row: self._row(row).next_forward() for row in continuations}).values()):
            self._compute(f)

    def _logits(self, rows: list[int]) -> Tensor:
        """(R, 257) after the texts of these rows."""
        wanted = {row: self._row(row).wanted() for row in rows}
        num_rows = len(rows)
        self._compute({row: self._row(row).forward(own, num_rows) for row, own in wanted.items()})
        self._project(wanted)
        self._add_laws([(self._row(row), node) for row, nodes in wanted.items() for node in nodes])
        return self._marginals([self._row(row) for row in rows])

    def _marginals(self, rows: list[ByteRow]) -> Tensor:
        """(R, 257) of rows that have all laws that they want."""
        return torch.from_numpy(np.array([row.log_probs() for row in rows])).to(self._device)

    def _compute(self, forwards: Mapping[int, TreeForward | None]) -> None:
        """Run the forwards of some rows, None for none."""
        needed = [(self._row(row), row, f) for row, f in forwards.items() if f is not None]
        if not needed:
            return
        states = self._forward([(state.cache, row, forward) for state, row, forward in needed])
        for (state, row, forward), hidden in zip(needed, states, strict=True):
            state.take(forward.nodes, hidden)
            if (kept := state.compact()) is not None:
                self._backbone.cache.keep(row, *kept)

    def _forward(self, forwards: list[tuple[TreeCache, int, TreeForward]]) -> list[Tensor]:
        caches, rows, own = zip(*forwards, strict=True)
        # Only layers with a window read the positions.
        places = [c.slot_positions() if self._has_windows else np.zeros(1, int) for c in caches]
        return self._backbone.forward([*rows], [*own], places)

    def _project(self, wanted: Mapping[int, list[int]]) -> None:
        """Logits of nodes whose laws are wanted, and of others whose turn may come."""
        parts = [(self._row(row), self._row(row).without_logits(n)) for row, n in wanted.items()]
        hidden = [row.hidden[node] for row, nodes in parts for node in nodes]
        if not hidden:
            return
        logits = iter(self._output.logits(_joined(hidden))[:, None].unbind())
        for row, nodes in parts:
            row.take_logits(nodes, logits)

    def _add_laws(self, wanted: list[tuple[ByteRow, int]]) -> None:
        if not wanted:
            return
        logits = _joined([row.logits[node] for row, node in wanted])
        standings = [row.tree.standing[node] for row, node in wanted]
        if self._truncates:
            logits = self._masked(standings, logits)
        if self.warp is not None:
            logits = self.warp(logits, self._seen([row.seen(node) for row, node in wanted]))
        for (row, node), law in zip(wanted, self._new_laws(standings, logits), strict=True):
            row.add_law(node, law)

    def _masked(self, standings: list[Standing], logits: Tensor) -> Tensor:
        """Without what may not follow: a truncation then keeps the likeliest of what may."""
        allowed = allowed_in_order(self.vocabulary, standings, self.evaluation.mode)
        by_token = np.empty_like(allowed)
        by_token[:, self.vocabulary.ordered_tokens] = allowed
        return logits.masked_fill(~uploaded(torch.from_numpy(by_token), self._device), -torch.inf)

    def _seen(self, paths: list[NDArray[np.int64]]) -> Seen:
        """The tokens of each path as the warper takes them: marked where the model is, and on the
        CPU, where a mask is more to look through than its few places, by these."""
        if self._device.type == "cpu":
            return np.repeat(np.arange(len(paths)), [*map(len, paths)]), np.concatenate(paths)
        seen = torch.zeros(len(paths), self.vocabulary.vocab_size, dtype=torch.bool)
        for row, path in zip(seen, paths, strict=True):
            row[torch.from_numpy(path)] = True
        return uploaded(seen, self._device)

    def _new_laws(self, standings: list[Standing], logits: Tensor) -> Iterable[NodeLaw]:
        """What follows nodes by their warped logits (N, V)."""
        return node_laws(self.vocabulary, standings, logits, self.evaluation.mode)

    def _row(self, row: int) -> ByteRow:
        state = self._rows[row]
        assert state is not None, f"row {row} holds no text"
        return state


def _joined(rows: list[Tensor]) -> Tensor:
    """(N, ...) of tensors (1, ...), without a copy where there is but one."""
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _text(symbols: list[int]) -> bytes:
    """The bytes before the end."""
    return bytes(symbols[: symbols.index(END_SYMBOL)] if END_SYMBOL in symbols else symbols)
