"""The paired decoding step: both models, a rule and a sampler over the rows of a batch."""

# How requests become ledgers, in order; `Decoder._decode` is the whole loop:
#
#   admit    Both models read the prompts of new requests into free rows (`prompts.read_prompts`),
#            once. That gives the logits after each prompt and the ratios of its tokens, from which
#            the prefix debt follows, and with it the account of the row: k, K and the debt.
#
#   step     One token of each row, again and again:
#
#            1. Allowances. What the next token of each row may spend follows from its account: all
#               that has accrued, less the debt, less what was spent or lost to a full bucket. Where
#               it is 0 the token comes from the safe model alone, and the risky one need not run.
#            2. Read. The models read the tokens that were drawn last, one forward each. Tokens that
#               a model has not read wait in `_unread`, so a model that was skipped catches up.
#            3. Draw. The warpers and the rule make p* of both models' logits, and one token is
#               drawn by the three uniforms of its request and position. Seven columns describe it,
#               from here to the ledger: (A, 7) float64, see `request.ledger_columns`. They are
#               copied to the host together, which is the one wait for a device.
#            4. Enter. Each row of the columns becomes a step of its request's ledger, its text and
#               a spend of its account; the allowances of the next step follow.
#            5. Release. Rows whose requests have ended are free again for those that wait.
#
# `SpeculativeBatch` has the same parts in another order: the safe model drafts some tokens, the
# risky one reads them all (2), and they are drawn (3) and entered (4) one by one until one of them
# is not the draft. Tokens, spends and ledgers of both are the same.

import itertools
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ...kernels.devices import work_device
from ...kernels.sampler import uniforms
from ...kernels.spend import allowance, charged, empty_accounts
from ..levels.level import Level
from ..rules.budget import opened_accounts
from ..rules.rule import ModelName, NextToken, OpenRule, PastRows, StepInputs
from ..settings import SamplingConfig
from ..streams.kv_cache import uploaded
from .log_probs import top_log_probs
from .prompts import PromptReading, asks_for_ratios, read_prompts
from .request import (
    SPEND,
    TOKEN,
    Request,
    RequestState,
    RowSettings,
    ledger_columns,
    ledger_step,
    random_key,
    request_budget,
)
from .side_by_side import SideBySide

# B rows of the batch, A rows that a step draws for, V symbols of the level.

ALONE_FRACTION = 0.25
"""Share of rows without an allowance from which they are drawn for alone: c / (1 + c) with a safe
forward of a third of the risky one's cost, about the dearest that is worth a pair."""


MOST_ALONE = 16
"""Steps in a row that rows with an allowance wait for the others, or requests that come without end
and may spend nothing would hold up all others. Debts are seldom longer, and a step for all rows in
17 costs those hardly more."""


class PairedBatch:
    """Decodes the requests in its rows together; a row is free again once its request ends.

    Each row has its budget, its uniforms, its history and its length. A request's tokens do not
    depend on the others, and one whose logits are NaN fails alone. While a request may spend
    nothing its tokens come from the safe model alone, and the risky one is skipped.
    """

    def __init__(
        self,
        level: Level,
        rule: OpenRule,
        sampling: SamplingConfig,
        *,
        num_rows: int,
        max_length: int,
    ) -> None:
        self.level, self.pair = level, level.pair
        self.rule = rule
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
        """Tokens that the model has not read yet, by stream and row, oldest first."""
        self._settings = RowSettings(level, rule, sampling, num_rows)
        self._rows_join = level.rows_can_join(max_length)
        self._num_alone = 0
        """Steps since rows with an allowance were drawn for."""
        self._side_by_side = SideBySide(self.streams)
        self._states: list[RequestState | None] = [None] * num_rows
        self._accounts = empty_accounts(num_rows, torch.device("cpu"))  # (B, 7) float64 nats
        self._allowances = allowance(self._accounts)  # (B,) nats, of the next token
        self._device = work_device(self.pair.safe.device)
        self._stop_token_ids = frozenset(level.stop_token_ids)
        self._seen = torch.zeros(num_rows, level.vocab_size, dtype=torch.bool, device=self._device)
        self._logits: dict[str, Tensor] = {}  # by stream: (B, V) raw, after the last token read
        self._past = PastRows(num_rows, rule.streams)

    @property
    def free_rows(self) -> list[int]:
        """Rows without a request, ascending."""
        return [row for row, state in enumerate(self._states) if state is None]

    @property
    def active_rows(self) -> list[int]:
        """Rows with a request, ascending."""
        return [row for row, state in enumerate(self._states) if state is not None]

    @property
    def is_empty(self) -> bool:
        return not any(self._states)

    @torch.inference_mode()
    def admit(self, requests: list[Request]) -> list[RequestState]:
        """Read the prompts of new requests into free rows; one that fails there takes no row."""
        rows = self.free_rows[: len(requests)]
        for row, request in zip(rows, requests, strict=True):
            self._settings.begin(row, request, self.streams)
        prompts = [request.prompt_token_ids for request in requests]
        stream_prompts = [request.stream_prompts for request in requests]
        read = read_prompts(self.level, self.streams, prompts, rows, stream_prompts)
        states = []
        for i, (row, request) in enumerate(zip(rows, requests, strict=True)):
            states.append(self._new_state(row, request, read, i))
            self._past.begin(row)
        for row, state in zip(rows, states, strict=True):
            self._states[row] = state
        for name, logits in read.logits.items():
            self._keep_logits(name, logits, rows)
        self._seen.index_copy_(0, uploaded(torch.tensor(rows), self._device), read.seen)
        self._accounts[rows] = opened_accounts([state.budget for state in states])
        self._allowances = allowance(self._accounts)
        self._release(rows)
        return states

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """Draw the next token of some requests or all of them; returns those that it ended."""
        rows = self.active_rows  # A of the B rows
        if not rows:
            return []
        # 1. Allowances. Rows without one need the safe model only, which is cheap by itself and
        #    saves nothing with a risky forward: they go first where that is worth the others' wait.
        may_spend = (self._allowances > 0.0).tolist()  # B
        spending = [row for row in rows if may_spend[row]]
        is_worth = len(rows) - len(spending) >= max(1, ALONE_FRACTION * len(rows))
        is_alone = self._rows_join and is_worth and self._num_alone < MOST_ALONE
        self._num_alone = self._num_alone + 1 if is_alone and spending else 0
        if is_alone:
            rows, spending = [row for row in rows if not may_spend[row]], []
        # 2. Read. The risky model reads where something may be spent; of a batch whose rows are
        #    padded to each other it reads all rows or none.
        self._read({"safe": rows, "risky": spending if self._rows_join or not spending else rows})
        # 3. Draw one token each, and wait for the device.
        columns = self._draw(rows)  # (A, 7) float64
        # 4. Enter what the tokens cost; the models read them in the next step, if there is one.
        self._enter(rows, columns)
        # 5. Release the rows of requests that have ended.
        return self._release(rows)

    @torch.inference_mode()
    def cancel(self, state: RequestState) -> None:
        """Free the row of a request that nobody waits for; what it drew stays, and it has no
        finish_reason. One that has ended has no row any more."""
        for row in self.active_rows:
            if self._states[row] is state:
                self._free(row)

    def _read(self, rows: Mapping[ModelName, list[int]]) -> None:
        """Let the models read what some rows have drawn, and keep their logits; rows: by model."""
        # Rows with as many tokens share a forward: one that catches up would pad the others'.
        groups: dict[str, dict[int, list[int]]] = {}
        for name, spec in self.rule.streams.items():
            for row in rows[spec.model]:
                if count := len(self._unread[name][row]):
                    groups.setdefault(name, {}).setdefault(count, []).append(row)

        def forwards(name: str) -> list[Tensor]:
            unread, feed = self._unread[name], self.streams[name].feed
            of_groups = groups[name].values()
            return [feed(group, [unread[row] for row in group])[:, 0] for group in of_groups]

        # The models know nothing of each other, so their forwards may run at once.
        read = self._side_by_side([partial(forwards, name) for name in groups])
        for name, logits_of_groups in zip(groups, read, strict=True):
            for group, logits in zip(groups[name].values(), logits_of_groups, strict=True):
                self._keep_logits(name, logits, group)  # (rows of the group, V)
                for row in group:
                    self._unread[name][row] = []
                    self._state(row).num_forwards[self.rule.streams[name].model] += 1

    def _draw(self, rows: list[int]) -> Tensor:
        """Draw the next token of these rows by the logits at hand, and call it seen.

        Returns: (A, 7) float64 on the host, see `ledger_columns`.
        """
        groups = self._settings.together(rows)
        inputs_of = [
            self._inputs(group, [len(self._state(row).steps) for row in group], self._seen)
            for group in groups
        ]
        drawn_of = [*map(self._drawn, groups, inputs_of)]
        # One wait for the device, for all groups; of one group they are in order.
        columns = (drawn_of[0] if len(drawn_of) == 1 else torch.cat(drawn_of)).cpu()
        if self.rule.looks_back:
            token_ids = columns[:, TOKEN].long().clamp(min=0).tolist()
            for group, inputs in zip(groups, inputs_of, strict=True):
                drawn, token_ids = token_ids[: len(group)], token_ids[len(group) :]
                self._past.append(group, inputs.logits, drawn)
        if len(groups) == 1:
            return columns
        index_of = {row: i for i, row in enumerate(itertools.chain(*groups))}
        return columns[[index_of[row] for row in rows]]

    def _drawn(self, rows: list[int], inputs: StepInputs) -> Tensor:
        """(A, 7) float64 where the models are, of rows that draw together."""
        drawn = self._settings.rules[rows[0]].next_token(inputs)
        safe_logits = None
        if drawn.accepted is None and "safe" in inputs.logits:
            safe_logits = inputs.warped("safe")  # (A, V)
        columns = ledger_columns(drawn, inputs.budget, safe_logits)  # (A, 7)
        # Seen now and not before: on a device the inputs' warpers read `_seen` itself.
        token_ids = columns[:, TOKEN].long().clamp(min=0)  # (A,)
        index = uploaded(torch.tensor(rows), self._device), token_ids
        self._seen.index_put_(index, torch.ones_like(token_ids, dtype=torch.bool))
        self._keep_log_probs(rows, inputs, drawn, token_ids)
        return columns

    def _keep_log_probs(
        self, rows: list[int], inputs: StepInputs, drawn: NextToken, token_ids: Tensor
    ) -> None:
        """Keep the log-probabilities of this step that requests want; token_ids: (A,)."""
        for i, state in enumerate(map(self._state, rows)):
            if (num_top := state.request.num_top) is None:
                continue
            if state.request.exposes:
                log_probs = drawn.log_probs()[i]
            else:
                log_probs = inputs.logits["safe"][i].double().log_softmax(-1)
            state.log_probs += top_log_probs(log_probs[None], [int(token_ids[i])], num_top)

    def _enter(self, rows: list[int], columns: Tensor) -> None:
        """Enter the tokens that were drawn into ledgers, texts and accounts; columns: (A, 7)."""
        for row, figures in zip(rows, columns.tolist(), strict=True):
            state = self._state(row)
            step = ledger_step(len(state.steps), figures)
            state.num_skipped += any(unread[row] for unread in self._unread.values())
            if step.token_id >= 0:
                is_end = step.token_id in self._stop_token_ids and not state.request.ignores_ends
                state.append(step, is_end=is_end)
            else:
                state.fail(self.level.outgrown(self.streams, row) or self._fault(row, step.step))
            for unread in self._unread.values():
                unread[row].append(step.token_id)
        self._accounts[rows] = charged(self._accounts[rows], columns[:, [SPEND]])
        self._allowances = allowance(self._accounts)

    def _release(self, rows: list[int]) -> list[RequestState]:
        """Free the rows of requests that have ended; returns these."""
        finished = {row: state for row in rows if (state := self._state(row)).is_finished}
        for row in finished:
            self._free(row)
        return [*finished.values()]

    def _free(self, row: int) -> None:
        self._state(row).work = self.level.work(self.streams, row)
        self._states[row] = None
        for name, stream in self.streams.items():
            stream.free(row)
            self._unread[name][row] = []

    def _new_state(
        self, row: int, request: Request, read: PromptReading, index: int
    ) -> RequestState:
        """The state of the request whose prompt was read as number `index`."""
        prompt, numbers = request.prompt_token_ids, None
        if not self._settings.sampling[row].is_greedy:
            key = random_key(request.seed, prompt, level=self.level.name, place=request.place)
            numbers = uniforms(torch.tensor([key]), torch.arange(request.max_new_tokens)[None])[0]
        state = RequestState(
            request=request,
            budget=request_budget(request, self._settings.rules[row], read.ratios[index]),
            text=self.level.text_stream(request.stop, prompt),
            uniforms=numbers,  # (max_new_tokens, 3)
        )
        for name, count in read.num_forwards.items():
            state.num_forwards[self.rule.streams[name].model] += count
        if error := read.errors[index]:
            state.fail(error)
        return state

    def _inputs(self, rows: list[int], steps: list[int], seen: Tensor) -> StepInputs:
        """rows: that draw together. steps: the 0-based step of each; seen: (B, V) bool, what the
        penalty falls on."""
        numbers = [
            state.uniforms[step]
            for state, step in zip(map(self._state, rows), steps, strict=True)
            if state.uniforms is not None
        ]
        return StepInputs(
            logits={
                name: _select(logits, rows).to(self._device)  # (A, V)
                for name, logits in self._logits.items()
            },
            warp=self._settings.warp(rows, _select(seen, rows)),
            budget=uploaded(self._allowances[rows], self._device),  # (A,)
            uniform=uploaded(torch.stack(numbers), self._device) if numbers else None,  # (A, 3)
            past=self._past.of(rows) if self.rule.looks_back else None,
        )

    def _keep_logits(self, name: str, logits: Tensor, rows: list[int]) -> None:
        """Keep what a stream predicts for these rows; logits: (rows, V)."""
        if rows == list(range(len(self._states))):
            self._logits[name] = logits  # of all rows: nothing to copy
            return
        if name not in self._logits:
            self._logits[name] = logits.new_zeros(len(self._states), logits.shape[1])
        self._logits[name].index_copy_(0, uploaded(torch.tensor(rows), logits.device), logits)

    def _state(self, row: int) -> RequestState:
        state = self._states[row]
        assert state is not None, f"row {row} holds no request"
        return state

    def _fault(self, row: int, step: int) -> str:
        """The fault in the logits of a row."""
        for name, logits in self._logits.items():
            if not torch.isfinite(logits[row].max()):
                return f"the {name} model's logits at step {step} are NaN, +inf or all -inf"
        if self.rule.is_certified:
            return f"the warped logits at step {step} are not finite"
        return (
            f"the rule {self.rule.name} has no distribution at step {step}: the warped logits are "
            "not finite, or no symbol is left in those of all models that it mixes"
        )


def _select(values: Tensor, rows: list[int]) -> Tensor:
    """Rows of (B, V) values; the tensor itself where they are all."""
    if rows == list(range(len(values))):
        return values
    return values.index_select(0, uploaded(torch.tensor(rows), values.device))
