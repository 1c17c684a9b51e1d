"""Speculative decoding: the safe model drafts, one risky forward verifies, rows are walked."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...kernels.sampler import inverse_cdf
from ..levels.level import Level
from ..models.kv_cache import uploaded
from ..models.row_stream import RowStream
from ..rules.rule import Rule, StepInputs
from ..settings import SamplingConfig
from .draft_length import DraftLength
from .paired_batch import PairedBatch, agreed
from .request import RequestState

# A rows of the batch that take part, V vocabulary.


@dataclass(frozen=True, slots=True)
class Draft:
    """A token that the safe model would draw, and the very logits that it would draw it from."""

    token_id: int
    safe_logits: Tensor
    """(V,), raw."""


class SpeculativeBatch(PairedBatch):
    """A PairedBatch whose steps are rounds: draft, verify, walk.

    Drafts are guesses at what the rule will draw with the request's own uniforms. The walk draws
    every position by the rule from the laws of both models, banks its spend, and stops at the first
    token that is not the guess: so the tokens and the ledgers are those of a PairedBatch, whatever
    is drafted and however far. Where both laws are known already (behind a draft that was kept
    whole), or the risky one is not needed (nothing may be spent), a token is drawn at once.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand.
    """

    streams: dict[str, RowStream]

    def __init__(
        self,
        level: Level,
        rule: Rule,
        sampling: SamplingConfig,
        *,
        num_rows: int,
        max_length: int,
        length: DraftLength,
    ) -> None:
        # Columns behind a row's own end: those of a longer draft beside it.
        super().__init__(
            level, rule, sampling, num_rows=num_rows, max_length=max_length + length.longest
        )
        self.length = length
        self._drafts: list[list[Draft]] = [[] for _ in range(num_rows)]
        self._stuck: set[int] = set()
        self._ends = set(level.stop_token_ids)

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """One round; returns the requests that it ended."""
        rows = [row for row, state in enumerate(self._states) if state is not None]
        num_before = {row: len(self._state(row).steps) for row in rows}
        start_s = time.perf_counter()
        length = self._agreed(self.length.chosen())
        num_verified = self._draft_and_verify(rows, length) if length else self._draw_plainly(rows)
        if num_verified:  # where the budget was 0, tokens say nothing about those to come
            drawn = [step for row in rows for step in self._state(row).steps[num_before[row] :]]
            self.length.took(
                length,
                time.perf_counter() - start_s,
                num_kept=sum(step.accepted for step in drawn),
                num_drawn=len(drawn),
            )
        return self._release(rows)

    def _draft_and_verify(self, rows: list[int], length: int) -> int:
        """A round of drafts; returns how many tokens the risky model read."""
        self._draft_ahead(rows, length)
        return self._verify([row for row in rows if self._drafts[row]])

    def _draw_plainly(self, rows: list[int]) -> int:
        """Read on with both models and draw a token; returns in how many rows it may spend."""
        num_warm = sum(nats > 0.0 for nats in self._allowances(rows).values())
        self._read_on(rows)
        self._draw(rows)
        return num_warm

    def _draft_ahead(self, rows: list[int], length: int) -> None:
        """Draft up to `length` tokens in each row; tokens that need no draft are drawn at once."""
        ahead = self._seen.clone()
        for _ in range(length + 1):
            rows = [row for row in rows if self._can_draft(row, length)]
            if not rows:
                return
            self._read("safe", rows)
            known = [row for row in rows if self._is_law_known(row)]
            if known:
                self._draw(known)
                at = uploaded(torch.tensor(known), self._device)
                ahead.index_copy_(0, at, self._seen.index_select(0, at))
            if drafting := [row for row in rows if row not in known]:
                self._draft(drafting, ahead)

    def _can_draft(self, row: int, length: int) -> bool:
        state, drafts = self._state(row), self._drafts[row]
        if state.is_finished or row in self._stuck or len(drafts) >= length:
            return False
        is_at_horizon = len(state.steps) + len(drafts) >= state.request.max_new_tokens
        return not is_at_horizon and not (drafts and drafts[-1].token_id in self._ends)

    def _agreed(self, length: int) -> int:
        """The same length in every process, as their clocks differ."""
        if self.pair.num_processes == 1:
            return length
        chosen = torch.tensor([length], dtype=torch.int64, device=self._device)
        return int(agreed(chosen, self.pair.num_processes).item())

    def _is_law_known(self, row: int) -> bool:
        """Whether a token can be drawn at once: nothing is drafted, and p_r known or not needed."""
        if self._drafts[row]:
            return False
        return self._backlogs["risky"].is_empty(row) or self._allowances([row])[row] <= 0.0

    def _draft(self, rows: list[int], ahead: Tensor) -> None:
        """Guess the next token of these rows; ahead: (B, V) bool, seen once all drafts are kept."""
        inputs = self._draft_inputs(rows, ahead)
        token_ids = self._guessed(inputs).tolist()
        for place, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
            if token_id < 0:
                self._stuck.add(row)
                if not self._drafts[row]:
                    self._decide([row])  # and so fail: there is nothing to verify before it
                continue
            self._drafts[row].append(Draft(token_id, inputs.logits["safe"][place].clone()))
            self._backlogs["safe"].add(row, token_id)
            ahead[row, token_id] = True

    def _draft_inputs(self, rows: list[int], ahead: Tensor) -> StepInputs:
        inputs = self._inputs(rows, ahead)
        uniform = inputs.uniform
        if uniform is not None:
            places = [len(self._state(row).steps) + len(self._drafts[row]) for row in rows]
            drawn = [self._state(row).uniforms for row in rows]
            each = [u[place] for u, place in zip(drawn, places, strict=True) if u is not None]
            uniform = uploaded(torch.stack(each), self._device)
        return replace(inputs, uniform=uniform)

    def _guessed(self, inputs: StepInputs) -> Tensor:
        """(A,) the safe model's own draws by u1; -1 where its logits are no distribution."""
        safe = inputs.warped("safe").double()
        best, token_ids = safe.max(-1)
        is_valid = best.isfinite()
        if inputs.uniform is not None:
            probs = safe.masked_fill(~is_valid[:, None], 0.0).softmax(-1)
            token_ids = inverse_cdf(probs, inputs.uniform[:, 0])
        return agreed(token_ids.masked_fill(~is_valid, -1), self.pair.num_processes)

    def _verify(self, rows: list[int]) -> int:
        """Decide drafted positions after one risky forward; returns how many tokens it read."""
        unread = {row: self._unread(row) for row in rows}
        laws = dict(self._risky_laws(unread))
        for row, num_kept in self._walk(laws).items():
            self._settle(row, laws[row], num_kept)
            self._drafts[row].clear()
        self._stuck.clear()
        return sum(map(len, unread.values()))

    def _unread(self, row: int) -> list[int]:
        """What the risky model reads to verify a row: nothing behind what would end it."""
        state, drafts = self._state(row), self._drafts[row]
        is_at_horizon = len(state.steps) + len(drafts) == state.request.max_new_tokens
        is_last = is_at_horizon or drafts[-1].token_id in self._ends
        tokens = [draft.token_id for draft in drafts[: len(drafts) - is_last]]
        return self._backlogs["risky"].of(row) + tokens

    def _risky_laws(self, unread: dict[int, list[int]]) -> Iterator[tuple[int, Tensor]]:
        """Per row (N, V) raw logits of the drafted positions, and of the next one where read."""
        together = [row for row in unread if len(unread[row]) <= self.length.longest + 1]
        alone = [[row] for row in unread if row not in together]
        for group in [together, *alone] if together else alone:
            counts = [len(unread[row]) - len(self._backlogs["risky"].of(row)) + 1 for row in group]
            tokens = [unread[row] for row in group]
            logits = self.streams["risky"].feed_ends(group, tokens, max(counts))
            is_broken = logits[..., 0].isnan().any(1).tolist()
            for place, (row, count) in enumerate(zip(group, counts, strict=True)):
                self._state(row).num_forwards["risky"] += 1
                laws = logits[place, len(logits[place]) - count :]
                yield row, self._next_law(row) if is_broken[place] else laws

    def _next_law(self, row: int) -> Tensor:
        """(1, V) law of the first draft, the only one left, read without any draft.

        NaN of a later draft spreads back to it through the mask, as 0 * NaN.
        """
        unread = self._backlogs["risky"].of(row)
        self.streams["risky"].roll_back(row, self._text_length(row, "risky") - len(unread))
        self.streams["risky"].erase_rest(row)
        self._state(row).num_forwards["risky"] += 1
        del self._drafts[row][1:]
        return self.streams["risky"].feed_ends([row], [unread], 1)[0]

    def _walk(self, laws: dict[int, Tensor]) -> dict[int, int]:
        """Draw the drafted positions in order up to the first other token; drafts kept, by row."""
        num_kept = dict.fromkeys(laws, 0)
        rows = list(laws)
        while rows:
            drafts = {row: self._drafts[row][num_kept[row]] for row in rows}
            for row, draft in drafts.items():
                self._logits["safe"][row] = draft.safe_logits
                self._logits["risky"][row] = laws[row][num_kept[row]]
            token_ids = self._decide(rows)
            pairs = zip(drafts.items(), token_ids, strict=True)
            kept = [row for (row, draft), token_id in pairs if draft.token_id == token_id]
            for row in kept:
                num_kept[row] += 1
            rows = [row for row in kept if self._is_followed(row, num_kept[row])]
        return num_kept

    def _is_followed(self, row: int, num_kept: int) -> bool:
        return not self._state(row).is_finished and num_kept < len(self._drafts[row])

    def _settle(self, row: int, laws: Tensor, num_kept: int) -> None:
        """Let both models' memories end where the text does, but for its last token."""
        state = self._state(row)
        state.num_drafted += len(self._drafts[row])
        state.num_accepted += num_kept
        if state.is_finished:
            return
        self._roll_back("safe", row)
        if row in self._stuck:
            self.streams["safe"].erase_rest(row)
        if num_kept == len(self._drafts[row]) < len(laws):
            self._logits["risky"][row] = laws[-1]
            self._backlogs["risky"].set(row, [])
        else:
            self._roll_back("risky", row)

    def _roll_back(self, name: str, row: int) -> None:
        self.streams[name].roll_back(row, self._text_length(row, name) - 1)
        self._backlogs[name].set(row, [self._state(row).steps[-1].token_id])

    def _text_length(self, row: int, name: str) -> int:
        """Tokens of the prompt, as a stream reads it, and of what was drawn."""
        request = self._state(row).request
        prompt = request.prefaced.get(name, request.prompt_token_ids)
        return len(prompt) + len(self._state(row).steps)
