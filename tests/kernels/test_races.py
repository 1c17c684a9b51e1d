"""The programs that share a row may run in any order: three at once in Triton's interpreter.

Each is a thread, of which one runs at a time and hands over to the next where its schedule says, so
that every run is the same.
"""

import inspect
import math
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
import triton
from triton.runtime import interpreter

from anchored.kernels.gpu import clip, launch, layout
from anchored.kernels.sampler import uniforms

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's programs are watched"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NAN, NUM_PROGRAMS = math.nan, 3


class Programs:
    """The programs of a launch, in the order in which they hand over to each other."""

    def __init__(self, order):
        self.order, self.errors, self.running = order, [], None
        self._gates = {program: threading.Semaphore(0) for program in order}

    def run(self, function):
        threads = [threading.Thread(target=self._run, args=(function, p)) for p in self.order]
        for thread in threads:
            thread.start()
        self._gates[self.order[0]].release()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def hand_over(self):
        program = self.running
        self._gates[self._following(program)].release()
        self._take_turn(program)
        if self.errors:
            raise RuntimeError("another program has failed")

    def _run(self, function, program):
        self._take_turn(program)
        try:
            function()
        except Exception as error:
            self.errors.append(error)
        following = self._following(program)
        self.order.remove(program)
        self._gates[following].release()

    def _take_turn(self, program):
        self._gates[program].acquire()
        self.running = program
        interpreter.interpreter_builder.set_grid_idx(*program)

    def _following(self, program):
        return self.order[(self.order.index(program) + 1) % len(self.order)]


@dataclass
class Cell:
    """One element, and what programs did to it since the last barrier of its row."""

    epoch: int = 0
    before: bytes | None = None
    bits: bytes | None = None
    readers: set = field(default_factory=set)
    writers: dict = field(default_factory=dict)
    """The last write of each program: at which of its barriers, those of its threads too."""


class Watch:
    """Races between programs, which meet where all have arrived, and between a program's threads,
    which meet at any barrier."""

    def __init__(self):
        self.hazards, self.cells = Counter(), defaultdict(Cell)
        self.arrivals, self.barriers, self.programs = Counter(), Counter(), None

    @property
    def program(self):
        return self.programs.running

    def read(self, address):
        program, cell = self.program, self._cell(address)
        if cell.writers.get(program) == self.barriers[program]:
            self.hazards["written and read without a barrier"] += 1
        if program not in cell.writers:
            cell.readers.add(program)
            if cell.writers and cell.bits != cell.before:
                self.hazards["read after another program wrote"] += 1

    def write(self, address, bits):
        program, cell = self.program, self._cell(address)
        if bits != cell.bits and cell.writers.keys() - {program}:
            self.hazards["different bits from two programs"] += 1
        if bits != cell.before and cell.readers - {program}:
            self.hazards["written after another program read"] += 1
        cell.bits, cell.writers[program] = bits, self.barriers[program]

    def _cell(self, address):
        cell, epoch = self.cells[address], self.arrivals[self.program]
        if cell.epoch != epoch:
            cell = self.cells[address] = Cell(epoch, before=cell.bits, bits=cell.bits)
        return cell


def elements(pointers, mask, value=None):
    """Addresses and bits of what a mask lets through."""
    addresses = np.asarray(pointers.data)
    chosen = np.broadcast_to(np.asarray(mask.data), addresses.shape).astype(bool)
    values = [None] * int(chosen.sum())
    if value is not None:
        values = np.broadcast_to(np.asarray(value.data), addresses.shape)[chosen]
    return zip(addresses[chosen].tolist(), values, strict=True)


def run_in_turns(executor, args, options, watch, *, is_forwards):
    """A launch of the interpreter, all programs of its grid in turns."""
    names = inspect.getfullargspec(executor.fn).args
    options = {name: value for name, value in options.items() if name in names}
    scope = interpreter._patch_lang(executor.fn)
    try:
        values = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(executor.fn, *args, **options).items()
        }
        interpreter.interpreter_builder.set_grid_dim(*executor.grid, 1)
        order = [(*program, 0) for program in product(*map(range, executor.grid))]
        watch.programs = Programs(order if is_forwards else order[::-1])
        watch.programs.run(lambda: executor.fn(**values))
    finally:
        scope.restore()


def watched(monkeypatch, *, is_forwards, at_stores):
    """A Watch of later launches, whose programs hand over where they wait, and at their stores."""
    watch, builder = Watch(), type(interpreter.interpreter_builder)
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic = builder.create_atomic_rmw

    def watched_load(self, pointers, mask, *rest):
        for address, _ in elements(pointers, mask):
            watch.read(address)
        return load(self, pointers, mask, *rest)

    def watched_store(self, pointers, value, mask, *rest):
        for address, bits in elements(pointers, mask, value):
            watch.write(address, bits.tobytes())
        store(self, pointers, value, mask, *rest)
        if at_stores:
            watch.programs.hand_over()

    def watched_atomic(self, operation, pointer, value, mask, *rest):
        result = atomic(self, operation, pointer, value, mask, *rest)
        is_arrival = bool(np.asarray(value.data).any())
        watch.arrivals[watch.program] += is_arrival
        watch.barriers[watch.program] += 1
        if not is_arrival:
            watch.programs.hand_over()
        return result

    def barrier(self, *_):
        watch.barriers[watch.program] += 1

    for name, method in (
        ("create_masked_load", watched_load),
        ("create_masked_store", watched_store),
        ("create_atomic_rmw", watched_atomic),
        ("create_barrier", barrier),
    ):
        monkeypatch.setattr(builder, name, method)
    run = partial(run_in_turns, watch=watch, is_forwards=is_forwards)
    call = lambda executor, *args, **options: run(executor, args, options)  # noqa: E731
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)
    monkeypatch.setattr(launch, "resident_splits", lambda *_: NUM_PROGRAMS)
    return watch


def case(seed, charge):
    """Two rows with bans or NaN, and budgets that bind or do not; arguments of a launch."""
    generator = torch.Generator().manual_seed(seed)
    base = 2.0 * torch.randn(2, 2100, generator=generator)
    safe = (base + torch.randn(2, 2100, generator=generator)).bfloat16()
    risky = (1.2 * base + torch.randn(2, 2100, generator=generator)).bfloat16()
    if seed % 3 == 1:
        risky[..., ::3] = -torch.inf
    if seed % 3 == 2:
        risky[0, 5], safe[1, ::7] = torch.nan, -3e9
    budget = torch.full((2,), (0.0, 0.05, 0.5, 3.0)[seed % 4], dtype=torch.float64)
    numbers = uniforms(torch.tensor([seed, seed + 1]), torch.zeros(2, dtype=torch.int64))
    return partial(launch.project, risky, safe, budget, numbers, charge=charge)


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch):
    """Memory that is not set holds NaN."""
    monkeypatch.setattr(torch, "empty", lambda *shape, **like: torch.full(*shape, NAN, **like))


SCHEDULES = [(True, False), (False, False), (True, True)]
"""Forwards or backwards, and at stores or only where a program must wait."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("charge", ["mean", "worst", "drawn"])
def test_programs_of_a_row_do_not_race_and_give_what_one_alone_does(seed, charge, monkeypatch):
    launched, (is_forwards, at_stores) = case(seed + 1, charge), SCHEDULES[seed]
    expected = launched()
    watch = watched(monkeypatch, is_forwards=is_forwards, at_stores=at_stores)
    actual = launched()
    assert watch.hazards == {}
    for name in ("token_ids", "accepted", "is_valid", "is_safe_only", "weight", "spend"):
        assert torch.equal(getattr(actual, name), getattr(expected, name))
    for ours, one in zip(actual.stored_log_probs, expected.stored_log_probs, strict=True):
        torch.testing.assert_close(ours, one, rtol=0.0, atol=0.0, equal_nan=True)


@triton.jit
def same_sums(step):
    """A fault: every step writes where the last one may still be read."""
    return layout.STEP_SUMS + step * 0


def test_a_planted_race_is_found(monkeypatch):
    monkeypatch.setattr(clip, "step_sums", same_sums)
    watch = watched(monkeypatch, is_forwards=True, at_stores=False)
    case(3, "worst")()
    assert watch.hazards
