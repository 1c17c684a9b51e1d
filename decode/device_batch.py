"""A batch that decodes on the device and is looked at by the host every few steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.walk import new_accounts
from .captured_step import CapturedStep
from .device_state import NUM_KEPT, DeviceState
from .device_step import DeviceStep
from .level import Level
from .paired_batch import PairedBatch
from .request import Request, RequestState
from .row_stream import RowStream
from .rules.anchored import Anchored
from .sampling_config import SamplingConfig

CAPACITY_STEP = 256
"""Columns by which capacities differ, so that batches of similar lengths can use one graph."""


class DeviceBatch(PairedBatch):
    """A PairedBatch whose steps run `DeviceStep`, as a CUDA graph where there is CUDA.

    `step` makes up to NUM_KEPT steps, then reads what was drawn. Tokens drawn after the end of a
    request (a stop string, which only the host can see) are dropped: they are in no ledger. The
    graph is captured once, so a batch that is empty again is worth keeping.
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
    ) -> None:
        """Raises ValueError where Triton cannot run; what else is needed, see `device_refusal`."""
        super().__init__(
            level, rule, sampling, num_rows=num_rows, max_length=capacity_for(max_length)
        )
        self._state_on_device = self._open()
        self._run = self._runnable()
        self.warp_by(sampling)

    def fits(self, num_rows: int, max_length: int) -> bool:
        """Whether this batch, empty again, can serve one of these sizes."""
        stream = self.streams["safe"]
        sizes = (len(self._states), stream.max_length)
        return self.is_empty and sizes == (num_rows, capacity_for(max_length))

    def warp_by(self, sampling: SamplingConfig) -> None:
        """Use this penalty and temperature from the next step on."""
        self.sampling = sampling
        self.warpers = self.level.warpers(sampling)
        self._state_on_device.warp_by(sampling)

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
        left = max(_steps_left(self._state(row)) for row in rows)
        num_steps = min(NUM_KEPT, left)
        self._state_on_device.rewind()
        for _ in range(num_steps):
            self._run()
        records = self._state_on_device.records[:num_steps].cpu()
        for row in rows:
            self._bank(row, records[:, row])
        return self._release(rows)

    def _open(self) -> DeviceState:
        """Buffers and storage for all rows, by reading one token into one of them."""
        for name, stream in self.streams.items():
            stream.reserve()
            with torch.inference_mode():
                self._keep_logits({name: stream.read([[0]], [0]).logits}, [0])
            stream.free(0)
        return DeviceState.empty(self._logits, self._seen)

    def _runnable(self) -> Callable[[], None]:
        step = DeviceStep(
            self._state_on_device,
            self.streams,
            stop_token_ids=self.warpers.stop_token_ids,
            divergence=self.rule.divergence,
        )
        return CapturedStep(step, self._device) if self._device.type == "cuda" else step

    def _uniforms(self, request: Request) -> Tensor | None:
        return None  # the kernel draws them from the seed

    def _join(self, rows: list[int]) -> None:
        states = [self._state(row) for row in rows]
        budgets = [state.budget for state in states]
        self._state_on_device.join(
            rows,
            prompts=[state.request.prompt_token_ids for state in states],
            seeds=[state.request.seed for state in states],
            steps=[state.request.max_new_tokens for state in states],
            accounts=new_accounts(
                [budget.per_step for budget in budgets],
                [budget.total for budget in budgets],
                [budget.debt for budget in budgets],
                self.rule.budget,
                self._device,
            ),
        )

    def _bank(self, row: int, records: Tensor) -> None:
        """Append what a row drew, up to its end; records: (steps, NUM_FIELDS) on the CPU."""
        state = self._state(row)
        for token_id, accepted, *figures, was_drawn in records.tolist():
            if state.is_finished:
                return
            assert was_drawn, f"row {row} ended on the device alone"
            if token_id < 0:
                self._fail(row)
            else:
                self._append(state, int(token_id), bool(accepted), *figures)
            if not state.is_finished:
                state.num_forwards.update(self.streams.keys())

    def _release(self, rows: list[int]) -> list[RequestState]:
        finished = super()._release(rows)
        for row in rows:
            if self._states[row] is None:
                self._state_on_device.leave(row)
        return finished


def capacity_for(max_length: int) -> int:
    """Columns of the storage for rows of up to `max_length` tokens."""
    return -(-max_length // CAPACITY_STEP) * CAPACITY_STEP


def _steps_left(state: RequestState) -> int:
    return state.request.max_new_tokens - len(state.steps)
