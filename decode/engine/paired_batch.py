"""The paired decoding step: both models, a rule and a sampler over the rows of a batch."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed
from torch import Tensor

from ...kernels.uniforms import uniforms
from ..levels.level import Level
from ..models.kv_cache import uploaded
from ..models.stream import Stream
from ..rules.rule import NextToken, PastRows, Rule, StepInputs
from ..settings import SamplingConfig
from .prompts import PromptReading, asks_for_ratios, read_prompts
from .request import Drawn, Request, RequestState, random_key, request_budget

# B rows of the batch, A rows that hold a request, V symbols of the level.


class PairedBatch:
    """Decodes the requests in its rows together; a row is free again once its request ends.

    Rows are independent: own budget, own uniforms, own history, own length. A request's tokens do
    not depend on the others, and one whose logits are NaN fails alone. While a request may spend
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
            num_ratios=rule.num_ratios,
            readings=rule.streams,
        )
        self._backlogs = {name: Backlog(s, num_rows) for name, s in self.streams.items()}
        self._can_rest = level.rows_can_join(max_length)
        self._states: list[RequestState | None] = [None] * num_rows
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
        prefaced = [request.prefaced for request in requests]
        reading = read_prompts(self.level, self.streams, prompts, rows, prefaced)
        states = [self._new_state(request, reading, i) for i, request in enumerate(requests)]
        for row, state in zip(rows, states, strict=True):
            self._states[row] = state
            self._past.begin(row)
        self._keep_logits(reading.logits, rows)
        self._seen.index_copy_(0, uploaded(torch.tensor(rows), self._device), reading.seen)
        self._release(rows)
        return states

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """Draw the next token of the requests, the cold ones first; returns those that it ended."""
        occupied = [row for row, state in enumerate(self._states) if state is not None]
        rows = rows_to_draw(self._allowances(occupied), can_rest=self._can_rest)
        if not rows:
            return []
        self._draw(rows)
        finished = self._release(rows)
        self._read_on([row for row in rows if self._states[row] is not None])
        return finished

    def _allowances(self, rows: list[int]) -> dict[int, float]:
        """Nats that the next token of each row may spend, the same in every process."""
        allowances = [self._state(row).allowance for row in rows]
        if self.pair.num_processes > 1:
            nats = torch.tensor(allowances, dtype=torch.float64, device=self._device)
            allowances = agreed(nats, self.pair.num_processes).tolist()
        return dict(zip(rows, allowances, strict=True))

    def _draw(self, rows: list[int]) -> None:
        """Decide the next token of these rows; no model has read it yet."""
        for row in rows:
            is_known = (backlog.is_empty(row) for backlog in self._backlogs.values())
            self._state(row).num_skipped += not all(is_known)
        for row, token_id in zip(rows, self._decide(rows), strict=True):
            for backlog in self._backlogs.values():
                backlog.add(row, token_id)

    def _decide(self, rows: list[int]) -> list[int]:
        """Draw and bank the next token of these rows by the logits at hand; -1 where that fails."""
        inputs = self._inputs(rows, self._seen)
        drawn = self.rule.next_token(inputs)
        token_ids = agreed(self._chosen(drawn), self.pair.num_processes)
        is_drawn = torch.ones_like(token_ids, dtype=torch.bool)
        at = uploaded(torch.tensor(rows), self._device)
        self._seen.index_put_((at, token_ids.clamp(min=0)), is_drawn)
        found_columns = _found(inputs, drawn, token_ids, is_own=self.pair.num_processes == 1)
        columns = torch.stack([column.double() for column in found_columns], 1)
        found = [Drawn(*figures) for figures in columns.tolist()]  # the one wait for the device
        if self.rule.looks_back:
            self._past.append(rows, inputs.logits, [max(int(own.token_id), 0) for own in found])
        for row, token in zip(rows, found, strict=True):
            self._bank_draw(row, token)
        return [int(token.token_id) for token in found]

    def _read_on(self, rows: list[int]) -> None:
        """Let the safe model read what was drawn, and the risky one where it will be asked next."""
        warm = [row for row, nats in self._allowances(rows).items() if nats > 0.0]
        for name in self.streams:
            is_risky = self.rule.streams[name].model == "risky"
            rests = is_risky and (self._can_rest or not warm)
            self._read(name, warm if rests else rows)

    def _read(self, name: str, rows: list[int]) -> None:
        for group, logits in self._backlogs[name].read(rows):
            if group == list(range(len(self._states))):
                self._logits[name] = logits  # of all rows: nothing to keep, nothing to copy
            else:
                self._keep_logits({name: logits}, group)
            for row in group:
                self._state(row).num_forwards[self.rule.streams[name].model] += 1

    def _new_state(self, request: Request, reading: PromptReading, place: int) -> RequestState:
        state = RequestState(
            request=request,
            budget=request_budget(request, self.rule, reading.ratios[place]),
            text=self.level.text_stream(request.stop, request.prompt_token_ids),
            uniforms=self._uniforms(request),
        )
        for name, count in reading.num_forwards.items():
            state.num_forwards[self.rule.streams[name].model] += count
        if error := reading.errors[place]:
            state.fail(error)
        return state

    def _uniforms(self, request: Request) -> Tensor | None:
        if self.sampling.is_greedy:
            return None
        positions = torch.arange(request.max_new_tokens)[None]
        return uniforms(torch.tensor([self._key(request)]), positions)[0]

    def _key(self, request: Request) -> int:
        prompt = request.prompt_token_ids
        return random_key(request.seed, prompt, level=self.level.name, place=request.place)

    def _keep_logits(self, logits: dict[str, Tensor], rows: list[int]) -> None:
        for name, new in logits.items():
            if name not in self._logits:
                self._logits[name] = new.new_zeros(len(self._states), new.shape[1])
            self._logits[name].index_copy_(0, uploaded(torch.tensor(rows), new.device), new)

    def _inputs(self, rows: list[int], seen: Tensor) -> StepInputs:
        """seen: (B, V) bool, the tokens that the penalty falls on."""
        states = [self._state(row) for row in rows]
        allowances = [state.allowance for state in states]
        uniform = [
            state.uniforms[len(state.steps)] for state in states if state.uniforms is not None
        ]
        return StepInputs(
            logits={
                name: self._of_rows(logits, rows).to(self._device)
                for name, logits in self._logits.items()
            },
            warp=self.warpers.after(self._of_rows(seen, rows)),
            budget=uploaded(torch.tensor(allowances, dtype=torch.float64), self._device),
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

    def _chosen(self, drawn: NextToken) -> Tensor:
        """(A,) token ids; -1 where nothing can be drawn."""
        token_ids = drawn.log_probs().argmax(-1) if drawn.token_ids is None else drawn.token_ids
        return token_ids.masked_fill(~drawn.is_valid, -1)

    def _bank_draw(self, row: int, drawn: Drawn[float]) -> None:
        if drawn.token_id < 0:
            self._fail(row)
        else:
            self._state(row).append(drawn, is_end=drawn.token_id in self._stop_token_ids)

    def _fail(self, row: int) -> None:
        step = len(self._state(row).steps)
        self._state(row).fail(self.level.outgrown(self.streams, row) or self._fault(row, step))

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
                self._backlogs[name].set(row, [])
        return [state for _, state in finished]


def _is_safe_choice(inputs: StepInputs, token_ids: Tensor) -> Tensor:
    """(A,) bool: the safe model, where it is read, would have taken the token too, greedily."""
    if "safe" not in inputs.logits:
        return torch.zeros_like(token_ids, dtype=torch.bool)
    return token_ids == inputs.warped("safe").argmax(-1)


def _found(
    inputs: StepInputs, drawn: NextToken, token_ids: Tensor, *, is_own: bool
) -> Drawn[Tensor]:
    """is_own: the tokens are those that were drawn here, not in another process."""
    accepted = drawn.accepted
    log_probs = drawn.stored_log_probs if is_own else None
    if log_probs is None:
        given = token_ids.clamp(min=0)
        log_probs = drawn.token_log_probs(given), drawn.safe_token_log_probs(given)
    return Drawn(
        token_id=token_ids,
        accepted=_is_safe_choice(inputs, token_ids) if accepted is None else accepted,
        budget=inputs.budget,
        spend=drawn.spend,
        weight=drawn.weight,
        log_prob=log_probs[0],
        safe_log_prob=log_probs[1],
    )


ALONE_FRACTION = 0.25
"""Share of cold rows from which they are drawn for alone: c / (1 + c) with a safe forward of a
third of the risky one's cost, about the dearest that is worth a pair."""


class Backlog:
    """The tokens of each row that one model has not read yet."""

    def __init__(self, stream: Stream, num_rows: int) -> None:
        self._stream = stream
        self._tokens: list[list[int]] = [[] for _ in range(num_rows)]

    def is_empty(self, row: int) -> bool:
        """Whether the model's logits after the newest token are known."""
        return not self._tokens[row]

    def of(self, row: int) -> list[int]:
        """What a row has not read, oldest first."""
        return list(self._tokens[row])

    def add(self, row: int, token_id: int) -> None:
        """A new token at the end of a row."""
        self._tokens[row].append(token_id)

    def set(self, row: int, tokens: Sequence[int]) -> None:
        """Replace what a row has not read."""
        self._tokens[row] = list(tokens)

    def read(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Read on in these rows: (rows of one forward, their logits (R, vocab_size))."""
        for group in _by_length({row: self.of(row) for row in rows if self._tokens[row]}):
            yield group, self._stream.feed_rows(group, [self.of(row) for row in group])
            for row in group:
                self._tokens[row].clear()


def _by_length(tokens: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Rows by how many tokens they have: a row that catches up would pad the others' forward."""
    groups: dict[int, list[int]] = {}
    for row, unread in tokens.items():
        groups.setdefault(len(unread), []).append(row)
    return list(groups.values())


def rows_to_draw(allowances: Mapping[int, float], *, can_rest: bool) -> list[int]:
    """Rows whose next token is drawn now, by the nats that each may spend on it.

    Rows without an allowance need the safe model only, which is cheap by itself and saves nothing
    beside a risky forward: they are drawn for alone where that is worth the others' waiting.
    can_rest: rows may be fed apart from each other.
    """
    rows = list(allowances)
    cold = [row for row in rows if allowances[row] <= 0.0]
    is_worth_it = can_rest and len(cold) >= ALONE_FRACTION * len(rows)
    return cold if cold and is_worth_it else rows


def agreed(values: Tensor, num_processes: int) -> Tensor:
    """Values of process 0, in every process; unchanged where there is only one.

    Sums over the parts of the model may round differently from process to process, and a token
    that differed would make the caches differ from then on.
    """
    if num_processes > 1:
        torch.distributed.broadcast(values, src=0)
    return values


def decode_all(batch: PairedBatch, requests: Iterable[Request]) -> Iterator[RequestState]:
    """Every request as it ends, in the order of ending; the batch is kept full."""
    waiting = deque(requests)
    while waiting or not batch.is_empty:
        joining = [waiting.popleft() for _ in batch.free_rows if waiting]
        if joining:
            yield from (state for state in batch.admit(joining) if state.is_finished)
        yield from batch.step()
