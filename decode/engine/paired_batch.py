"""The paired decoding step: both models, a rule and a sampler over the rows of a batch."""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from ...kernels.sampler import uniforms
from ..levels.level import Level
from ..models.kv_cache import uploaded
from ..rules.rule import NextToken, PastRows, Rule, StepInputs
from ..settings import SamplingConfig
from .prompts import PromptReading, asks_for_ratios, read_prompts
from .request import (
    Drawn,
    Request,
    RequestState,
    allowances,
    ledger_step,
    random_key,
    request_budget,
)
from .side_by_side import SideBySide

# B rows of the batch, A rows that hold a request, V symbols of the level.

ALONE_FRACTION = 0.25
"""Share of rows without an allowance from which they are drawn for alone: c / (1 + c) with a safe
forward of a third of the risky one's cost, about the dearest that is worth a pair."""


class PairedBatch:
    """Decodes the requests in its rows together; a row is free again once its request ends.

    Each row has its budget, its uniforms, its history and its length. A request's tokens do not
    depend on the others, and one whose logits are NaN fails alone. While a request may spend
    nothing its tokens come from the safe model alone, and the risky one rests.
    """

    def __init__(
        self,
        level: Level,
        rule: Rule,
        sampling: SamplingConfig,
        *,
        num_rows: int,
        max_length: int,
    ) -> None:
        self.level, self.pair = level, level.pair
        self.rule, self.sampling = rule, sampling
        self.warpers = level.warpers(sampling)
        self.streams = level.open_streams(
            num_rows,
            max_length,
            sampling,
            scores_prompts=asks_for_ratios(level, rule),
            specs=rule.streams,
        )
        self._unread: dict[str, list[list[int]]] = {
            name: [[] for _ in range(num_rows)] for name in self.streams
        }
        """By stream and row: tokens that the model has not read yet, oldest first."""
        self._can_rest = level.rows_can_join(max_length)
        self._side_by_side = SideBySide(self.streams)
        self._states: list[RequestState | None] = [None] * num_rows
        self._nats = [0.0] * num_rows
        """What the next token of each row may spend, see `_count_budgets`."""
        self._device = self.pair.safe.device
        self._stop_token_ids = frozenset(level.stop_token_ids)
        self._seen = torch.zeros(num_rows, level.vocab_size, dtype=torch.bool, device=self._device)
        self._logits: dict[str, Tensor] = {}
        self._past = PastRows(num_rows, rule.streams)

    @property
    def free_rows(self) -> list[int]:
        """Rows without a request, ascending."""
        return [row for row, state in enumerate(self._states) if state is None]

    @property
    def is_empty(self) -> bool:
        return not any(self._states)

    @torch.inference_mode()
    def admit(self, requests: list[Request]) -> list[RequestState]:
        """Read the prompts of new requests into free rows; one that fails there takes no row."""
        rows = self.free_rows[: len(requests)]
        prompts = [request.prompt_token_ids for request in requests]
        stream_prompts = [request.stream_prompts for request in requests]
        read = read_prompts(self.level, self.streams, prompts, rows, stream_prompts)
        states = [self._new_state(request, read, i) for i, request in enumerate(requests)]
        for row, state in zip(rows, states, strict=True):
            self._states[row] = state
            self._past.begin(row)
        self._keep_logits(read.logits, rows)
        self._seen.index_copy_(0, uploaded(torch.tensor(rows), self._device), read.seen)
        self._count_budgets(rows)
        self._release(rows)
        return states

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """Draw the next token of some requests or all of them; returns those that it ended."""
        rows = [row for row, state in enumerate(self._states) if state is not None]
        if not rows:
            return []
        # 1. Rows without an allowance need the safe model only, which is cheap by itself and saves
        #    nothing beside a risky forward: they go first where that is worth the others' waiting.
        without = [row for row in rows if self._nats[row] <= 0.0]
        if self._can_rest and len(without) >= max(1, ALONE_FRACTION * len(rows)):
            rows = without
        # 2. The models read what was drawn last; nothing is read for a row that ended with it.
        self._read_on(rows)
        # 3. One token each, by the laws at hand, and what it cost; rows that it ends are free.
        self._draw(rows)
        return self._release(rows)

    def _count_budgets(self, rows: list[int]) -> None:
        """Count what the next token of these rows may spend, once a token."""
        nats = allowances([self._state(row) for row in rows]).tolist()
        for row, value in zip(rows, nats, strict=True):
            self._nats[row] = value

    def _draw(self, rows: list[int]) -> None:
        """Decide the next token of these rows; no model has read it yet."""
        for row in rows:
            self._state(row).num_skipped += any(unread[row] for unread in self._unread.values())
        for row, token_id in zip(rows, self._decide(rows), strict=True):
            for unread in self._unread.values():
                unread[row].append(token_id)

    def _decide(self, rows: list[int]) -> list[int]:
        """Draw and bank the next token of these rows by the logits at hand; -1 where that fails."""
        # 1. p* of every row, and the token drawn from it, -1 where nothing can be drawn.
        num_before = [len(self._state(row).steps) for row in rows]
        inputs = self._inputs(rows, num_before, self._seen)
        drawn = self.rule.next_token(inputs)
        token_ids = drawn.log_probs().argmax(-1) if drawn.token_ids is None else drawn.token_ids
        token_ids = token_ids.masked_fill(~drawn.is_valid, -1)
        # 2. All figures of the step in one transfer: the one wait for the device. Then the token is
        #    seen, and not before: on a device the inputs' warpers read `_seen` itself.
        figures = _drawn(inputs, drawn, token_ids)
        index = uploaded(torch.tensor(rows), self._device), token_ids.clamp(min=0)
        self._seen.index_put_(index, torch.ones_like(token_ids, dtype=torch.bool))
        columns = torch.stack([column.double() for column in figures], 1)
        steps = [
            ledger_step(step, values)
            for step, values in zip(num_before, columns.tolist(), strict=True)
        ]
        # 3. The spends are banked, and what that leaves for the next token is counted.
        if self.rule.looks_back:
            self._past.append(rows, inputs.logits, [max(step.token_id, 0) for step in steps])
        for row, step in zip(rows, steps, strict=True):
            state = self._state(row)
            if step.token_id >= 0:
                state.append(step, is_end=step.token_id in self._stop_token_ids)
            else:
                state.fail(self.level.outgrown(self.streams, row) or self._fault(row, step.step))
        self._count_budgets(rows)
        return [step.token_id for step in steps]

    def _read_on(self, rows: list[int]) -> None:
        """Let both models read what was drawn, the risky one only where something may be spent."""
        warm = [row for row in rows if self._nats[row] > 0.0]
        rested = warm if self._can_rest or not warm else rows
        self._read(
            {
                name: rested if self.rule.streams[name].model == "risky" else rows
                for name in self.streams
            }
        )

    def _read(self, rows: dict[str, list[int]]) -> None:
        """Let models read what some rows have drawn; rows: by stream."""
        # 1. Rows with as many tokens share a forward: one that catches up would pad the others'.
        groups: dict[str, dict[int, list[int]]] = {}
        for name, own in rows.items():
            for row in own:
                if count := len(self._unread[name][row]):
                    groups.setdefault(name, {}).setdefault(count, []).append(row)
        # 2. The forwards of all models, which know nothing of each other.
        forwards = [partial(self._forwards, name, list(groups[name].values())) for name in groups]
        for name, logits in zip(groups, self._side_by_side(forwards), strict=True):
            # 3. What they say is kept.
            for group, new in zip(groups[name].values(), logits, strict=True):
                if group == list(range(len(self._states))):
                    self._logits[name] = new  # of all rows: nothing to keep, nothing to copy
                else:
                    self._keep_logits({name: new}, group)
                for row in group:
                    self._unread[name][row] = []
                    self._state(row).num_forwards[self.rule.streams[name].model] += 1

    def _forwards(self, name: str, groups: list[list[int]]) -> list[Tensor]:
        """Logits (R, V) of each group of rows, by a forward each."""
        feed_rows, unread = self.streams[name].feed_rows, self._unread[name]
        return [feed_rows(group, [unread[row] for row in group]) for group in groups]

    def _new_state(self, request: Request, read: PromptReading, index: int) -> RequestState:
        """The state of the request whose prompt was read as number `index`."""
        state = RequestState(
            request=request,
            budget=request_budget(request, self.rule, read.ratios[index]),
            text=self.level.text_stream(request.stop, request.prompt_token_ids),
            uniforms=None if self.sampling.is_greedy else self._uniforms(request),
        )
        for name, count in read.num_forwards.items():
            state.num_forwards[self.rule.streams[name].model] += count
        if error := read.errors[index]:
            state.fail(error)
        return state

    def _uniforms(self, request: Request) -> Tensor:
        prompt, level = request.prompt_token_ids, self.level.name
        key = random_key(request.seed, prompt, level=level, place=request.place)
        return uniforms(torch.tensor([key]), torch.arange(request.max_new_tokens)[None])[0]

    def _keep_logits(self, logits: dict[str, Tensor], rows: list[int]) -> None:
        for name, new in logits.items():
            if name not in self._logits:
                self._logits[name] = new.new_zeros(len(self._states), new.shape[1])
            self._logits[name].index_copy_(0, uploaded(torch.tensor(rows), new.device), new)

    def _inputs(self, rows: list[int], steps: list[int], seen: Tensor) -> StepInputs:
        """steps: the 0-based step of each row; seen: (B, V) bool, what the penalty falls on."""
        nats = torch.tensor([self._nats[row] for row in rows], dtype=torch.float64)
        uniform = [
            own[step]
            for row, step in zip(rows, steps, strict=True)
            if (own := self._state(row).uniforms) is not None
        ]
        logits = {
            name: self._of_rows(logits, rows).to(self._device)
            for name, logits in self._logits.items()
        }
        return StepInputs(
            logits=logits,
            warp=self.warpers.after(self._of_rows(seen, rows)),
            budget=uploaded(nats, self._device),
            uniform=uploaded(torch.stack(uniform), self._device) if uniform else None,
            past=self._past.of(rows) if self.rule.looks_back else None,
        )

    def _of_rows(self, values: Tensor, rows: list[int]) -> Tensor:
        if rows == list(range(len(values))):
            return values
        return values.index_select(0, uploaded(torch.tensor(rows), values.device))

    def _state(self, row: int) -> RequestState:
        state = self._states[row]
        assert state is not None, f"row {row} holds no request"
        return state

    def _fault(self, row: int, step: int) -> str:
        """What is wrong with the logits of a row."""
        for name, logits in self._logits.items():
            if not torch.isfinite(logits[row].max()):
                return f"the {name} model's logits at step {step} are NaN, +inf or all -inf"
        if self.rule.is_certified:
            return f"the warped logits at step {step} are not finite"
        return (
            f"the rule {self.rule.name} has no distribution at step {step}: the warped logits are "
            "not finite, or no symbol is left in those of all models that it mixes"
        )

    def _release(self, rows: list[int]) -> list[RequestState]:
        """Free the rows of requests that have ended; returns these."""
        finished = [(row, state) for row in rows if (state := self._state(row)).is_finished]
        for row, state in finished:
            state.work = self.level.work(self.streams, row)
            self._states[row] = None
            for name, stream in self.streams.items():
                stream.free(row)
                self._unread[name][row] = []
        return [state for _, state in finished]


def _drawn(inputs: StepInputs, drawn: NextToken, token_ids: Tensor) -> Drawn:
    accepted = drawn.accepted
    if accepted is None:  # greedy: whether the safe model, where it is read, would take it too
        accepted = torch.zeros_like(token_ids, dtype=torch.bool)
        if "safe" in inputs.logits:
            accepted = token_ids == inputs.warped("safe").argmax(-1)
    log_probs = drawn.stored_log_probs
    if log_probs is None:
        given = token_ids.clamp(min=0)
        log_probs = drawn.token_log_probs(given), drawn.safe_token_log_probs(given)
    return Drawn(
        token_id=token_ids,
        accepted=accepted,
        budget=inputs.budget,
        spend=drawn.spend,
        weight=drawn.weight,
        log_prob=log_probs[0],
        safe_log_prob=log_probs[1],
    )


def decode_all(batch: PairedBatch, requests: Iterable[Request]) -> Iterator[RequestState]:
    """Every request as it ends, in the order of ending; the batch is kept full."""
    waiting = deque(requests)
    while waiting or not batch.is_empty:
        joining = [waiting.popleft() for _ in batch.free_rows if waiting]
        if joining:
            yield from (state for state in batch.admit(joining) if state.is_finished)
        yield from batch.step()
