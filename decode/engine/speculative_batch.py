"""Speculative decoding: the safe model drafts, one risky forward verifies, rows are walked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.sampler import inverse_cdf
from ..levels.level import Level
from ..rules.rule import BOTH, OpenRule, StepInputs
from ..settings import SamplingConfig, Speculate
from ..streams.capabilities import largest_leak, shared_scale
from ..streams.kv_cache import uploaded
from ..streams.row_stream import RowStream
from .paired_batch import PairedBatch
from .request import TOKEN, RequestState

# A rows of the batch that take part, V vocabulary.


def checked_length(level: Level, rule: OpenRule, speculate: Speculate) -> int:
    """The tokens of a draft. Raises ValueError for what is no number >= 1, and for a pair that
    cannot speculate."""
    if type(speculate) is not int or speculate < 1:
        raise ValueError(f'speculate must be "off" or >= 1, got {speculate!r}')
    if refusal := speculation_refusal(level, rule):
        raise ValueError(f"speculate={speculate} cannot run here: {refusal}")
    return speculate


def speculation_refusal(level: Level, rule: OpenRule) -> str:
    """Why a pair cannot speculate at this level under this rule, "" if it can.

    The safe model is only ever fed a token at a time; the risky one reads whole drafts, and then
    its distribution at a position must not depend on the drafts from there on (else the spends are
    wrong).
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
    if attention and (error := largest_leak(pair.runners["risky"], attention)):
        return f"the risky model's logits depend on later drafts (by up to {error:.2g})"
    return ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A token that the safe model would draw, and the very logits that it would draw it from."""

    token_id: int
    """-1 where these are no distribution: nothing is drafted after it, and the request fails where
    it is reached."""
    safe_logits: Tensor
    """(V,), raw."""


class SpeculativeBatch(PairedBatch):
    """A PairedBatch whose steps are rounds: draft, then verify.

    Drafts are guesses at what the rule will draw with the request's uniforms. Each position
    is then drawn by the rule from both models' logits and its spend is entered, up to the first
    token that is not the guess: so the tokens and the ledgers are those of a PairedBatch, whatever
    is drafted and however far. Where both models' logits are known already (after a draft that was
    kept whole), or the risky one is not needed (nothing may be spent), a token is drawn at once.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand.
    """

    streams: dict[str, RowStream]

    def __init__(
        self,
        level: Level,
        rule: OpenRule,
        sampling: SamplingConfig,
        *,
        num_rows: int,
        max_length: int,
        draft_length: int,
    ) -> None:
        """Raises ValueError where rows of `max_length` tokens and a draft exceed the models."""
        for reach in level.pair.row_attention.values():
            if reach is None or not reach.covers(max_length + draft_length):
                raise ValueError(
                    f"speculate={draft_length} cannot run here: rows of {max_length} tokens and "
                    f"drafts of {draft_length} exceed the models' reach"
                )
        # Columns after a row's end: those of a longer draft in another row.
        super().__init__(
            level, rule, sampling, num_rows=num_rows, max_length=max_length + draft_length
        )
        self.draft_length = draft_length
        self._drafts: list[list[Draft]] = [[] for _ in range(num_rows)]
        self._ends = {-1, *level.stop_token_ids}

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """One round; returns the requests that it ended."""
        rows = self.active_rows
        # 1. The safe model drafts token by token; it draws at once where no draft is needed.
        self._draft_ahead(rows)
        # 2. The risky model reads the drafts in one forward, and the walk decides their positions
        #    in order, up to the first token that is not the guess.
        self._verify([row for row in rows if self._drafts[row]])
        return self._release(rows)

    def _draft_ahead(self, rows: list[int]) -> None:
        """Draft in each row; tokens that need no draft are drawn at once."""
        ahead = self._seen.clone()
        for _ in range(self.draft_length + 1):
            rows = [row for row in rows if self._can_draft(row)]
            if not rows:
                return
            self._read({"safe": rows, "risky": []})
            # Nothing is drafted in these rows, and the risky model has read the text or need not.
            may_spend, unread = (self._allowances > 0.0).tolist(), self._unread["risky"]
            at_once = [r for r in rows if not self._drafts[r] and not (unread[r] and may_spend[r])]
            if at_once:
                self._enter(at_once, self._draw(at_once))
                at = uploaded(torch.tensor(at_once), self._device)
                ahead.index_copy_(0, at, self._seen.index_select(0, at))
            drafting = [row for row in rows if row not in at_once]
            for group in self._settings.together(drafting):
                self._draft(group, ahead)

    def _can_draft(self, row: int) -> bool:
        state, drafts = self._state(row), self._drafts[row]
        if state.is_finished or len(drafts) >= self.draft_length:
            return False
        is_at_horizon = len(state.steps) + len(drafts) >= state.request.max_new_tokens
        return not is_at_horizon and not (drafts and drafts[-1].token_id in self._ends)

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
        streams, unread = self.streams, self._unread["risky"]
        # 1. The risky model reads the drafts. They are counted before they are walked, so that an
        #    interrupt leaves it right.
        risky_logits = self._read_drafts(rows)
        kept, walked = dict.fromkeys(risky_logits, 0), list(risky_logits)
        for row in walked:
            self._state(row).num_drafted += len(self._drafts[row])
        # 2. Positions are drawn in order by the rule, up to the first token that is not the draft.
        while walked:
            drafts = [self._drafts[row][kept[row]] for row in walked]
            for row, draft in zip(walked, drafts, strict=True):
                self._logits["safe"][row] = draft.safe_logits
                self._logits["risky"][row] = risky_logits[row][kept[row]]
                self._unread["safe"][row], unread[row] = [], []  # both have read the text so far
            columns = self._draw(walked)  # (A, 7)
            self._enter(walked, columns)
            going_on = []
            for row, draft, token in zip(walked, drafts, columns[:, TOKEN].tolist(), strict=True):
                if draft.token_id == token >= 0:
                    kept[row] += 1
                    self._state(row).num_accepted += 1
                    if kept[row] < len(self._drafts[row]) and not self._state(row).is_finished:
                        going_on.append(row)
            walked = going_on
        # 3. Both memories end where the text does, but for its last token, which is unread. Where
        #    all drafts were kept, the risky model has read that too and predicts the next one.
        for row, num_kept in kept.items():
            drafts, self._drafts[row] = self._drafts[row], []
            if self._state(row).is_finished:
                continue
            streams["safe"].cache.roll_back(row, self._text_length(row, "safe") - 1)
            if drafts[-1].token_id < 0:
                streams["safe"].cache.erase_rest(row)
            if num_kept == len(drafts) < len(risky_logits[row]):
                self._logits["risky"][row], unread[row] = risky_logits[row][-1], []
            else:
                streams["risky"].cache.roll_back(row, self._text_length(row, "risky") - 1)

    def _read_drafts(self, rows: list[int]) -> dict[int, Tensor]:
        """The risky logits of the drafted positions by row: (drafts or one more, V)."""
        stream, unread = self.streams["risky"], self._unread["risky"]
        # 1. The risky model reads what it has not read and the drafts, but for a last one after
        #    which nothing comes. Rows that catch up read alone: they would pad the others.
        fed: dict[int, list[int]] = {}
        for row in rows:
            state, guesses = self._state(row), [draft.token_id for draft in self._drafts[row]]
            is_at_horizon = len(state.steps) + len(guesses) == state.request.max_new_tokens
            is_last = is_at_horizon or guesses[-1] in self._ends
            fed[row] = unread[row] + guesses[: len(guesses) - is_last]
        together = [row for row in rows if len(fed[row]) <= self.draft_length + 1]
        groups = [together, *([row] for row in rows if row not in together)]
        risky_logits: dict[int, Tensor] = {}
        for group in filter(None, groups):
            counts = [len(fed[row]) - len(unread[row]) + 1 for row in group]
            logits = stream.feed(group, [fed[row] for row in group], max(counts))
            is_broken = logits[..., 0].isnan().any(1).tolist()
            for i, row in enumerate(group):
                self._state(row).num_forwards["risky"] += 1
                risky_logits[row] = logits[i, logits.shape[1] - counts[i] :]
                if not is_broken[i]:
                    continue
                # 2. NaN of a later draft spreads back through the mask, as 0 * NaN: the first
                #    draft, the only one left, is read for again without any draft.
                stream.cache.roll_back(row, self._text_length(row, "risky") - len(unread[row]))
                stream.cache.erase_rest(row)
                self._state(row).num_forwards["risky"] += 1
                del self._drafts[row][1:]
                risky_logits[row] = stream.feed([row], [unread[row]])[0]
        return risky_logits

    def _text_length(self, row: int, name: str) -> int:
        """Tokens of the prompt, as a stream reads it, and of what was drawn."""
        request = self._state(row).request
        prompt = request.stream_prompts.get(name, request.prompt_token_ids)
        return len(prompt) + len(self._state(row).steps)
