"""A batch that decodes on the device and is looked at by the host every few steps."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ...kernels.accounts import new_accounts
from ..ledger import LedgerStep
from ..levels.level import Level
from ..models.model_pair import ModelPair
from ..models.row_stream import RowStream
from ..rules.anchored import Anchored
from ..settings import SamplingConfig
from .device_step import NO_TOKEN, NUM_KEPT, DeviceState, DeviceStep
from .draft_length import DraftLength
from .paired_batch import PairedBatch
from .request import Drawn, Request, RequestState

NUM_WARM_UPS = 3
"""Calls before the capture: kernels are compiled and libraries take their workspaces in them."""

NUM_TIMED = 5
"""Replays by which graphs are compared."""


WAYS = (False, True)
"""Whether forwards overlap: each way is captured, and the faster one is kept."""


class CapturedStep:
    """A call replays the kernels that one call of `step` launched: one launch from the host.

    `step` runs a few times first, so no row may hold a request then. A graph knows addresses alone:
    `step` is kept, and has to keep every tensor that it reads or writes where it is.
    """

    def __init__(
        self,
        step: Callable[[], None],
        device: torch.device,
        pool: "torch.cuda._POOL_HANDLE | None" = None,
    ) -> None:
        """pool: memory that graphs share of which no two run at once, see `graph_pool_handle`."""
        self._step, self._device = step, device
        with torch.cuda.device(device):
            _warm_up(step)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                step()

    def __call__(self) -> None:
        """Advance by one step; returns before the device has done it."""
        self._graph.replay()

    def measured_ms(self) -> float:
        """Mean time of a few replays; no row may hold a request."""
        with torch.cuda.device(self._device):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._graph.replay()
            start.record()
            for _ in range(NUM_TIMED):
                self._graph.replay()
            end.record()
            end.synchronize()
            elapsed_ms: float = start.elapsed_time(end)
            return elapsed_ms / NUM_TIMED


def _warm_up(step: Callable[[], None]) -> None:
    # On a stream of its own, as a capture of what ran on the default stream is refused.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)


CAPACITY_STEP = 256
"""Columns by which capacities differ at least, so that batches of similar lengths can use one."""

ROWS_STEP = 16
"""Rows by which batches differ beyond this number; up to it they are powers of two."""


class DeviceBatch(PairedBatch):
    """A PairedBatch whose steps run `DeviceStep`, as a CUDA graph where there is CUDA.

    `step` makes a few steps, then reads what was drawn. Tokens drawn after the end of a request (a
    stop string, which only the host can see) are dropped: they are in no ledger. A graph for each
    length of a draft is captured once, so a batch that is empty again is worth keeping, and it has
    some rows and columns more than asked for, so that others can use it. Requests that may spend
    nothing yet are like the others: all their drafts are kept.
    """

    rule: Anchored
    streams: dict[str, RowStream]

    def __init__(
        self,
        level: Level,
        rule: Anchored,
        sampling: SamplingConfig,
        *,
        num_rows: int,
        max_length: int,
        draft_lengths: Sequence[int] = (0,),
    ) -> None:
        """draft_lengths: 0 for plain decoding; of several the one that is worth most is chosen.

        Raises ValueError where Triton cannot run; what else is needed, see `engine.pair_refusal`.
        """
        self._length = DraftLength(draft_lengths)
        columns = self._columns(max_length)
        super().__init__(level, rule, sampling, num_rows=rows_for(num_rows), max_length=columns)
        self._state_on_device = self._open()
        self._weights = _weights(self.pair)
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._runs = {length: self._runnable(length) for length in draft_lengths}
        self.serve(sampling, num_rows)

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        """Those that a step may have."""
        return tuple(self._runs)

    @property
    def free_rows(self) -> list[int]:
        """Rows without a request, ascending, of as many as are served."""
        return [row for row in super().free_rows if row < self._num_served]

    def fits(self, num_rows: int, max_length: int) -> bool:
        """Whether this batch, empty again, can serve one of these sizes.

        Not once a weight was changed, from which a backbone may have made its own.
        """
        has_rows = len(self._states) == rows_for(num_rows)
        has_columns = self._columns(max_length) <= self.streams["safe"].max_length
        return self.is_empty and has_rows and has_columns and _weights(self.pair) == self._weights

    def serve(self, sampling: SamplingConfig, num_rows: int) -> None:
        """From now on decode this many requests together, with this penalty and temperature."""
        self._num_served = num_rows
        self.sampling = sampling
        self.warpers = self.level.warpers(sampling)
        self._state_on_device.warp_by(sampling)

    @contextmanager
    def trial(self, level: Level, rule: Anchored, num_drafts: int) -> Iterator[None]:
        """Decode at another level by another rule of the same divergence, by one draft length."""
        own = self.level, self.rule, self._length, self.sampling, self._num_served
        self.level, self.rule, self._length = level, rule, DraftLength((num_drafts,))
        self.serve(SamplingConfig(temperature=1.0), len(self._states))
        try:
            yield
        finally:
            self.level, self.rule, self._length, sampling, num_served = own
            self.serve(sampling, num_served)

    @torch.inference_mode()
    def admit(self, requests: list[Request]) -> list[RequestState]:
        """Read the prompts of new requests into free rows; one that fails there takes no row."""
        rows = self.free_rows[: len(requests)]
        states = super().admit(requests)
        joined = [row for row in rows if self._states[row] is not None]
        if joined:
            self._join(joined)
        return states

    @torch.inference_mode()
    def step(self) -> list[RequestState]:
        """Draw the next tokens of every request; returns those that ended."""
        rows = [row for row, state in enumerate(self._states) if state is not None]
        if not rows:
            return []
        length = self._length.chosen()
        left = max(_steps_left(self._state(row)) for row in rows)
        num_steps = min(-(-NUM_KEPT // (length + 1)), left)
        start_s = time.perf_counter()
        records = self._records(length, num_steps)
        step_s = (time.perf_counter() - start_s) / num_steps
        drawn = [step for row in rows for step in self._bank(row, records[:, row])]
        num_kept = sum(step.accepted for step in drawn)
        self._length.took(length, step_s, num_kept=num_kept, num_drawn=len(drawn))
        return self._release(rows)

    def _columns(self, max_length: int) -> int:
        # Behind a row's own end there are those of its last draft.
        return capacity_for(max_length + self._length.longest)

    def _open(self) -> DeviceState:
        """Buffers and storage for all rows, by reading one token into one of them."""
        for name, stream in self.streams.items():
            stream.reserve()
            with torch.inference_mode():
                self._keep_logits({name: stream.read([[0]], [0]).logits}, [0])
            stream.free(0)
        return DeviceState.empty(self._logits, self._seen, num_drafts=self._length.longest)

    def _runnable(self, num_drafts: int) -> Callable[[], None]:
        """A step; on CUDA as a graph, with overlapping forwards if that is found to be faster."""
        if self._device.type != "cuda":
            return self._device_step(num_drafts, is_forked=False)
        captured = [
            CapturedStep(
                self._device_step(num_drafts, is_forked=is_forked), self._device, self._pool
            )
            for is_forked in WAYS
        ]
        return min(captured, key=CapturedStep.measured_ms)

    def _device_step(self, num_drafts: int, *, is_forked: bool) -> DeviceStep:
        return DeviceStep(
            self._state_on_device,
            self.streams,
            stop_token_ids=self.warpers.stop_token_ids,
            divergence=self.rule.divergence,
            num_drafts=num_drafts,
            is_forked=is_forked,
        )

    def _records(self, length: int, num_steps: int) -> Tensor:
        """(steps, B, G, NUM_FIELDS) on the CPU, of steps made now."""
        self._state_on_device.rewind()
        for _ in range(num_steps):
            self._runs[length]()
        return self._state_on_device.records[:num_steps, :, : length + 1].cpu()

    def _uniforms(self, request: Request) -> Tensor | None:
        return None  # the kernel draws them from the key

    def _join(self, rows: list[int]) -> None:
        states = [self._state(row) for row in rows]
        budgets = [state.budget for state in states]
        self._state_on_device.join(
            rows,
            prompts=[state.request.prompt_token_ids for state in states],
            keys=[self._key(state.request) for state in states],
            steps=[state.request.max_new_tokens for state in states],
            accounts=new_accounts(
                [budget.per_step for budget in budgets],
                [budget.total for budget in budgets],
                [budget.debt for budget in budgets],
                self.rule.budget,
                self._device,
            ),
        )

    def _bank(self, row: int, records: Tensor) -> list[LedgerStep]:
        """Append what a row drew, up to its end; records: (steps, G, NUM_FIELDS) on the CPU."""
        state = self._state(row)
        num_before = len(state.steps)
        for record in records.tolist():
            if state.is_finished:
                break
            self._bank_step(row, record)
        return state.steps[num_before:]

    def _bank_step(self, row: int, record: list[list[float]]) -> None:
        """record: (G, NUM_FIELDS)."""
        state = self._state(row)
        drafts = [draft for *_, draft, _ in record if draft != NO_TOKEN]
        # A row that drafted may have met NaN of its drafts, and tries without them next.
        assert record[0][-1] or drafts, f"row {row} ended on the device alone"
        state.num_forwards.update({"risky": 1, "safe": len(record)})
        state.num_drafted += len(drafts)
        for *figures, draft, was_drawn in record:
            if state.is_finished or not was_drawn:
                return
            drawn = Drawn(*figures)
            state.num_accepted += draft != NO_TOKEN and drawn.token_id == draft
            self._bank_draw(row, drawn)

    def _release(self, rows: list[int]) -> list[RequestState]:
        finished = super()._release(rows)
        for row in rows:
            if self._states[row] is None:
                self._state_on_device.leave(row)
        return finished


def capacity_for(max_length: int) -> int:
    """Columns of the storage for rows of up to `max_length` tokens: at most an eighth more, beyond
    the smallest."""
    step = max(CAPACITY_STEP, 1 << max(0, (max_length - 1).bit_length() - 3))
    return -(-max_length // step) * step


def rows_for(num_rows: int) -> int:
    """Rows of a batch that serves so many requests together."""
    if num_rows > ROWS_STEP:
        return -(-num_rows // ROWS_STEP) * ROWS_STEP
    return 1 << (num_rows - 1).bit_length()


def _weights(pair: ModelPair) -> list[tuple[int, int]]:
    """Changes when a weight is replaced or written to; tensors of inference count no versions."""
    weights = (weight for model in pair.models.values() for weight in model.parameters())
    return [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in weights]


def _steps_left(state: RequestState) -> int:
    return state.request.max_new_tokens - len(state.steps)
