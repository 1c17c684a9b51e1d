"""The programs that share a row do not race: six of a launch in Triton's interpreter.

Each is a thread, and the next one runs where one stores or waits, so every run is the same. A race
is found as a pair of accesses, whichever of them came first.
"""

import inspect
import math
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
import torch
import triton
from logit_kinds import random_logits
from triton.runtime import interpreter

from anchored.kernels.gpu import clip, launch, layout
from anchored.kernels.sampler import uniforms

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's programs are watched"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

MOST_TURNS = 2000
"""More would be a program that waits for another for ever."""


@dataclass
class Cell:
    """Accesses of programs to an element between two barriers of its row."""

    before: bytes | None
    values: set = field(default_factory=set)
    """The values that were written."""
    readers: set = field(default_factory=set)
    """Programs that had not written it themselves."""
    writers: dict = field(default_factory=dict)
    """Programs, and how many barriers of its threads each had passed."""

    def is_race(self) -> bool:
        if len(self.writers) > 1 and len(self.values) > 1:
            return True
        is_changed = bool(self.values - {self.before})
        return is_changed and any(one != other for one in self.readers for other in self.writers)


class Programs:
    """The programs of a launch, the next one at turn, and every access of theirs to memory."""

    def __init__(self):
        self.order, self.changed, self.num_turns = deque(), threading.Condition(), 0
        self.arrivals, self.barriers = Counter(), Counter()
        self.cells, self.bits, self.num_races_of_threads = {}, {}, 0

    def run(self, executor, *args, **options):
        """A launch of the interpreter, all programs of its grid in turns."""
        names = inspect.getfullargspec(executor.fn).args
        options = {name: value for name, value in options.items() if name in names}
        scope = interpreter._patch_lang(executor.fn)
        values = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(executor.fn, *args, **options).items()
        }
        interpreter.interpreter_builder.set_grid_dim(*executor.grid, 1)
        self.order.extend(product(*map(range, executor.grid)))

        def run_one(program):
            with self.changed:
                self._take_turn(program)
                try:
                    executor.fn(**values)
                finally:
                    self.order.popleft()
                    self.changed.notify_all()

        with ThreadPoolExecutor(len(self.order)) as pool:
            ended = [pool.submit(run_one, program) for program in list(self.order)]
        scope.restore()
        for future in ended:
            future.result()

    def hand_over(self):
        assert self.num_turns < MOST_TURNS
        program = self.order[0]
        self.order.rotate(-1)
        self.changed.notify_all()
        self._take_turn(program)

    def _take_turn(self, program):
        self.changed.wait_for(lambda: self.order[0] == program)
        self.num_turns += 1
        interpreter.interpreter_builder.set_grid_idx(*program, 0)

    def access(self, pointers, mask, value=None):
        """Note the elements that a mask lets through, which are written if there is a value."""
        addresses, program = np.asarray(pointers.data), self.order[0]
        chosen = np.broadcast_to(np.asarray(mask.data), addresses.shape).astype(bool)
        if value is not None:
            value = np.broadcast_to(np.asarray(value.data), addresses.shape)[chosen]
        for index, address in enumerate(addresses[chosen].tolist()):
            key = address, self.arrivals[program]
            if (cell := self.cells.get(key)) is None:
                cell = self.cells[key] = Cell(self.bits.get(address))
            if value is not None:
                self.bits[address] = value[index].tobytes()
                cell.values.add(self.bits[address])
                cell.writers[program] = self.barriers[program]
            elif program not in cell.writers:
                cell.readers.add(program)
            else:
                self.num_races_of_threads += cell.writers[program] == self.barriers[program]

    def num_races(self) -> int:
        return self.num_races_of_threads + sum(cell.is_race() for cell in self.cells.values())


@pytest.fixture
def programs(monkeypatch) -> Programs:
    """The programs of later launches; memory that is not set holds NaN."""
    programs, builder = Programs(), type(interpreter.interpreter_builder)
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic = builder.create_atomic_rmw

    def watched_load(self, pointers, mask, *rest):
        programs.access(pointers, mask)
        return load(self, pointers, mask, *rest)

    def watched_store(self, pointers, value, mask, *rest):
        programs.access(pointers, mask, value)
        store(self, pointers, value, mask, *rest)
        if programs.order[0][1] > 0:  # the first of a row runs ahead
            programs.hand_over()

    def watched_atomic(self, operation, pointer, value, mask, *rest):
        result, program = atomic(self, operation, pointer, value, mask, *rest), programs.order[0]
        is_arrival = bool(np.asarray(value.data).any())
        programs.arrivals[program] += is_arrival
        programs.barriers[program] += 1
        if not is_arrival:
            programs.hand_over()
        return result

    def barrier(self, *_):
        programs.barriers[programs.order[0]] += 1

    monkeypatch.setattr(builder, "create_masked_load", watched_load)
    monkeypatch.setattr(builder, "create_masked_store", watched_store)
    monkeypatch.setattr(builder, "create_atomic_rmw", watched_atomic)
    monkeypatch.setattr(builder, "create_barrier", barrier)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", lambda *a, **o: programs.run(*a, **o))
    monkeypatch.setattr(launch, "resident_splits", lambda *_: 3)
    monkeypatch.setattr(torch, "empty", lambda *shape, **like: torch.full(*shape, math.nan, **like))
    return programs


def launched(seed, charge):
    """Two rows with bans or NaN, and budgets that bind or do not."""
    kind, nats = [("masked_risky", 2.0), ("masked_safe", 0.5), ("generic", 0.5)][seed - 1]
    risky, safe = random_logits(kind, 2, 2100, torch.Generator().manual_seed(seed))
    if seed == 2:
        risky[0, 5], safe[1, ::7] = torch.nan, -3e9
    budget = torch.full((2,), nats, dtype=torch.float64)
    numbers = uniforms(torch.tensor([seed, seed + 1]), torch.zeros(2, dtype=torch.int64))
    return launch.project(risky, safe, budget, numbers, charge=charge)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("charge", ["mean", "worst", "drawn"])
def test_programs_of_a_row_do_not_race_and_give_what_one_alone_does(
    seed, charge, programs, monkeypatch
):
    actual = launched(seed, charge)
    assert programs.num_races() == 0
    monkeypatch.undo()
    expected = launched(seed, charge)
    for name in ("token_ids", "accepted", "is_valid", "is_safe_only", "weight", "spend"):
        assert torch.equal(getattr(actual, name), getattr(expected, name))
    for ours, one in zip(actual.stored_log_probs, expected.stored_log_probs, strict=True):
        torch.testing.assert_close(ours, one, rtol=0.0, atol=0.0, equal_nan=True)


@triton.jit
def same_sums(step):
    """A fault: every step writes where the last one may still be read."""
    return layout.STEP_SUMS + step * 0


def test_a_planted_race_is_found(programs, monkeypatch):
    monkeypatch.setattr(clip, "step_sums", same_sums)
    with suppress(interpreter.InterpreterError):  # programs that read unlike sums wait for ever
        launched(3, "worst")
    assert programs.num_races() > 0
