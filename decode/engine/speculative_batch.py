"""Speculative decoding: the safe model drafts, one risky forward verifies, rows are walked.

How far it drafts is decided by what drafts of each length have been worth.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.sampler import inverse_cdf
from ..levels.level import Level
from ..models.capabilities import largest_leak, shared_scale
from ..models.kv_cache import uploaded
from ..models.row_stream import RowStream
from ..rules.rule import BOTH, Rule, StepInputs
from ..settings import SamplingConfig, Speculate
from .paired_batch import PairedBatch
from .request import RequestState

logger = logging.getLogger(__name__)

# A rows of the batch that take part, V vocabulary.

LENGTHS = (0, 1, 2, 4, 8)
"""Draft lengths among which "auto" chooses; 0 is plain decoding. Longer drafts are hardly ever kept
whole."""

PRIOR_KEPT, PRIOR_SEEN = 6.0, 10.0
"""Tokens that count as kept and as seen before anything was drawn; forgotten in a few rounds."""

DECAY = 0.8
"""A round's weight is multiplied by it in the next: machines are shared and texts change."""

RETRIED = 32
"""Rounds after which the length that was left alone for longest has a turn: a retry of the longest
costs a few safe forwards, so all of them together stay below a twentieth of the time."""


class DraftLength:
    """Chooses the draft length of the next round.

    A draft is kept as often as a token that was drawn is the safe model's own, drafted or not. So
    with share a kept a round of g drafts is expected to give 1 + a + ... + a^g tokens, and its time
    is measured: each length is tried once, then the one with most tokens a second. Whatever is
    chosen changes the speed and no token.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        """lengths: one, or those to choose from."""
        self.lengths = tuple(lengths)
        self._kept, self._seen = PRIOR_KEPT, PRIOR_SEEN
        self._round_s: dict[int, float] = {}
        """By length, the one that was taken last at the end."""
        self._num_rounds = 0

    @property
    def longest(self) -> int:
        """Most tokens of a draft."""
        return max(self.lengths)

    def chosen(self) -> int:
        """The length of the next drafts."""
        for length in self.lengths:
            if length not in self._round_s:
                return length
        if self._num_rounds % RETRIED == 0:
            return next(iter(self._round_s))
        kept = self._kept / self._seen
        tokens = {length: sum(kept**n for n in range(length + 1)) for length in self.lengths}
        return max(self.lengths, key=lambda length: tokens[length] / self._round_s[length])

    def took(self, length: int, round_s: float, *, num_kept: int, num_drawn: int) -> None:
        """A round took so many seconds; `num_kept` of its tokens are the safe model's draws."""
        old_s = self._round_s.pop(length, round_s)
        self._round_s[length] = DECAY * old_s + (1.0 - DECAY) * round_s
        self._kept = DECAY * self._kept + num_kept
        self._seen = DECAY * self._seen + num_drawn
        self._num_rounds += 1


def draft_length(level: Level, rule: Rule, speculate: Speculate) -> DraftLength | None:
    """How far the batches of a decoder draft, which share what is learnt about drafts.

    None for "off", and, with one log line, for "auto" where the pair cannot speculate. Raises
    ValueError for another value, and for a number where the pair cannot speculate.
    """
    if speculate == "off":
        return None
    if speculate != "auto" and (type(speculate) is not int or speculate < 1):
        raise ValueError(f'speculate must be "auto", "off" or >= 1, got {speculate!r}')
    refusal = speculation_refusal(level, rule)
    if not refusal:
        return DraftLength(LENGTHS if speculate == "auto" else (int(speculate),))
    if speculate != "auto":
        raise ValueError(f"speculate={speculate} cannot run here: {refusal}")
    logger.warning("decoding without speculation: %s", refusal)
    return None


def drafts_fit(length: DraftLength, level: Level, max_length: int) -> bool:
    """Whether rows of up to this many tokens can speculate; for "auto" a log line if not.

    Raises ValueError where a draft of a fixed length does not fit.
    """
    longest = length.longest
    attentions = level.pair.row_attention.values()
    if all(own is not None and own.covers(max_length + longest) for own in attentions):
        return True
    refusal = f"rows of {max_length} tokens and drafts of {longest} exceed the models' reach"
    if len(length.lengths) == 1:
        raise ValueError(f"speculate={longest} cannot run here: {refusal}")
    logger.warning("decoding without speculation: %s", refusal)
    return False


def speculation_refusal(level: Level, rule: Rule) -> str:
    """Why a pair cannot speculate at this level under this rule, "" if it can.

    The safe model is only ever fed a token at a time; the risky one reads whole drafts, and then
    its law at a position must not depend on the drafts from there on (else the spends are wrong).
    """
    pair = level.pair
    if len(rule.streams) == 1:
        return f"the rule {rule.name} reads the {' and '.join(rule.streams)} model alone"
    if dict(rule.streams) != BOTH or rule.looks_back:
        return f"the rule {rule.name} reads more than both models' next tokens"
    if level.name != "token":
        return f"its level is the {level.name}, not the token"
    for name, model in pair.models.items():
        if pair.row_attention[name] is None:
            family = model.config.model_type
            return f"the {name} model ({family}) has a memory that cannot go back to earlier tokens"
    if refusal := shared_scale(pair.risky.config):
        return refusal
    attention = pair.row_attention["risky"]
    assert attention is not None
    if error := largest_leak(pair.runners["risky"], attention):
        return f"the risky model's logits depend on later drafts (by up to {error:.2g})"
    return ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A token that the safe model would draw, and the very logits that it would draw it from."""

    token_id: int
    """-1 where these are no distribution: nothing is drafted after it, and the walk fails there."""
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
        self._ends = {-1, *level.stop_token_ids}

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """One round; returns the requests that it ended."""
        rows = [row for row, state in enumerate(self._states) if state is not None]
        states = [self._state(row) for row in rows]
        num_before = [len(state.steps) for state in states]
        # 1. How far to draft: by what rounds of each length have taken and given so far.
        start_s = time.perf_counter()
        length = self.length.chosen()
        if length:
            # 2. The safe model drafts token by token; it draws at once where no draft is needed.
            self._draft_ahead(rows, length)
            # 3. The risky model reads the drafts in one forward, and the walk decides their
            #    positions in order, up to the first token that is not the guess.
            self._verify([row for row in rows if self._drafts[row]])
            finished = self._release(rows)
        else:
            finished = super().step()
        # 4. What the round took is told to those who choose the next length.
        ends = zip(states, num_before, strict=True)
        drawn = [step for state, start in ends for step in state.steps[start:]]
        if any(step.budget > 0.0 for step in drawn):  # else they say nothing about those to come
            self.length.took(
                length,
                time.perf_counter() - start_s,
                num_kept=sum(step.accepted for step in drawn),
                num_drawn=len(drawn),
            )
        return finished

    def _draft_ahead(self, rows: list[int], length: int) -> None:
        """Draft up to `length` tokens in each row; tokens that need no draft are drawn at once."""
        ahead = self._seen.clone()
        for _ in range(length + 1):
            rows = [row for row in rows if self._can_draft(row, length)]
            if not rows:
                return
            self._read({"safe": rows})
            known = [row for row in rows if self._is_law_known(row)]
            if known:
                self._draw(known)
                at = uploaded(torch.tensor(known), self._device)
                ahead.index_copy_(0, at, self._seen.index_select(0, at))
            if drafting := [row for row in rows if row not in known]:
                self._draft(drafting, ahead)

    def _can_draft(self, row: int, length: int) -> bool:
        state, drafts = self._state(row), self._drafts[row]
        if state.is_finished or len(drafts) >= length:
            return False
        is_at_horizon = len(state.steps) + len(drafts) >= state.request.max_new_tokens
        return not is_at_horizon and not (drafts and drafts[-1].token_id in self._ends)

    def _is_law_known(self, row: int) -> bool:
        """Whether a token can be drawn at once: nothing is drafted, and p_r known or not needed."""
        if self._drafts[row]:
            return False
        return not self._unread["risky"][row] or self._nats[row] <= 0.0

    def _draft(self, rows: list[int], ahead: Tensor) -> None:
        """Guess the next token of these rows; ahead: (B, V) bool, seen once all drafts are kept."""
        steps = [len(self._state(row).steps) + len(self._drafts[row]) for row in rows]
        inputs = self._inputs(rows, steps, ahead)
        token_ids = self._guessed(inputs).tolist()
        for row, token_id, safe_logits in zip(rows, token_ids, inputs.logits["safe"], strict=True):
            self._drafts[row].append(Draft(token_id, safe_logits.clone()))
            self._unread["safe"][row].append(token_id)
            ahead[row, token_id] = True

    def _guessed(self, inputs: StepInputs) -> Tensor:
        """(A,) the safe model's draws by u1; -1 where its logits are no distribution."""
        safe = inputs.warped("safe").double()
        best, token_ids = safe.max(-1)
        is_valid = best.isfinite()
        if inputs.uniform is not None:
            probs = safe.masked_fill(~is_valid[:, None], 0.0).softmax(-1)
            token_ids = inverse_cdf(probs, inputs.uniform[:, 0])
        return token_ids.masked_fill(~is_valid, -1)

    def _verify(self, rows: list[int]) -> None:
        """Decide the drafted positions of these rows after one risky forward."""
        unread = {row: self._to_verify(row) for row in rows}
        laws = dict(self._risky_laws(unread))
        for row, num_kept in self._walk(laws).items():
            self._forget_rejected(row, laws[row], num_kept)
            self._drafts[row].clear()

    def _to_verify(self, row: int) -> list[int]:
        """What the risky model reads to verify a row: nothing behind what would end it."""
        state, drafts = self._state(row), self._drafts[row]
        is_at_horizon = len(state.steps) + len(drafts) == state.request.max_new_tokens
        is_last = is_at_horizon or drafts[-1].token_id in self._ends
        tokens = [draft.token_id for draft in drafts[: len(drafts) - is_last]]
        return self._unread["risky"][row] + tokens

    def _risky_laws(self, unread: dict[int, list[int]]) -> Iterator[tuple[int, Tensor]]:
        """Per row (N, V) raw logits of the drafted positions, and of the next one where read."""
        together = [row for row in unread if len(unread[row]) <= self.length.longest + 1]
        alone = [[row] for row in unread if row not in together]
        for group in [together, *alone] if together else alone:
            counts = [len(unread[row]) - len(self._unread["risky"][row]) + 1 for row in group]
            tokens = [unread[row] for row in group]
            logits = self.streams["risky"].feed_ends(group, tokens, max(counts))
            is_broken = logits[..., 0].isnan().any(1).tolist()
            for i, (row, count) in enumerate(zip(group, counts, strict=True)):
                self._state(row).num_forwards["risky"] += 1
                laws = logits[i, logits.shape[1] - count :]
                yield row, self._next_law(row) if is_broken[i] else laws

    def _next_law(self, row: int) -> Tensor:
        """(1, V) law of the first draft, the only one left, read without any draft.

        NaN of a later draft spreads back to it through the mask, as 0 * NaN.
        """
        unread = self._unread["risky"][row]
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
            kept = [row for (row, draft), token_id in pairs if draft.token_id == token_id >= 0]
            for row in kept:
                num_kept[row] += 1
            more = [row for row in kept if num_kept[row] < len(self._drafts[row])]
            rows = [row for row in more if not self._state(row).is_finished]
        return num_kept

    def _forget_rejected(self, row: int, laws: Tensor, num_kept: int) -> None:
        """Let both models' memories end where the text does, but for its last token."""
        state = self._state(row)
        state.num_drafted += len(self._drafts[row])
        state.num_accepted += num_kept
        if state.is_finished:
            return
        self._roll_back("safe", row)
        if self._drafts[row][-1].token_id < 0:
            self.streams["safe"].erase_rest(row)
        if num_kept == len(self._drafts[row]) < len(laws):
            self._logits["risky"][row] = laws[-1]
            self._unread["risky"][row] = []
        else:
            self._roll_back("risky", row)

    def _roll_back(self, name: str, row: int) -> None:
        self.streams[name].roll_back(row, self._text_length(row, name) - 1)
        self._unread[name][row] = [self._state(row).steps[-1].token_id]

    def _text_length(self, row: int, name: str) -> int:
        """Tokens of the prompt, as a stream reads it, and of what was drawn."""
        request = self._state(row).request
        prompt = request.stream_prompts.get(name, request.prompt_token_ids)
        return len(prompt) + len(self._state(row).steps)
