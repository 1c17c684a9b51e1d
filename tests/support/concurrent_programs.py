"""All programs of a launch at once, a thread each, in Triton's interpreter, and what they read and
write, so that races between them can be found."""

import random
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from triton.runtime import interpreter


@dataclass(frozen=True)
class Access:
    """One element read or written."""

    program: tuple[int, ...]
    epoch: int
    """Barriers of its request that the program came to; accesses of one epoch may be at once."""
    section: int
    """The same for the threads of one program."""
    address: int
    value: bytes | None
    """The bits written; None for a read."""


class Recorder:
    """The accesses of one launch."""

    def __init__(self):
        self.accesses, self._lock = [], threading.Lock()
        self._epochs, self._sections = Counter(), Counter()
        self.thread = threading.local()
        """Each thread's `program`."""

    def note(self, pointers, mask, value=None):
        addresses = np.asarray(pointers.data).ravel()
        shape = np.asarray(pointers.data).shape
        chosen = np.broadcast_to(np.asarray(mask.data), shape).ravel().astype(bool)
        values = [None] * len(addresses)
        if value is not None:
            values = [x.tobytes() for x in np.broadcast_to(np.asarray(value.data), shape).ravel()]
        with self._lock:
            program = self.thread.program
            where = program, self._epochs[program], self._sections[program]
            for address, is_chosen, each in zip(addresses.tolist(), chosen, values, strict=True):
                if is_chosen:
                    self.accesses.append(Access(*where, address, each))

    def pass_barrier(self, *, is_arrival):
        with self._lock:
            self._sections[self.thread.program] += 1
            self._epochs[self.thread.program] += is_arrival

    def hazards(self):
        """Kinds of races found, with how many addresses have them."""
        counts, places = Counter(), defaultdict(list)
        for access in self.accesses:
            places[access.address].append(access)
        for accesses in places.values():
            counts.update(_shared_hazards(accesses))
            counts.update(_program_hazards(accesses))
        return counts


def _shared_hazards(accesses):
    """Between programs: what is written in an epoch must be the same bits from all of them, and
    may be read by others only if it changes nothing."""
    before, epochs = None, defaultdict(list)
    for access in accesses:
        epochs[access.epoch].append(access)
    for epoch in sorted(epochs):
        writes = [each for each in epochs[epoch] if each.value is not None]
        writers, values = {w.program for w in writes}, {w.value for w in writes}
        if len(writers) > 1 and len(values) > 1:
            yield "different bits in one epoch"
        if writes and values != {before}:
            past_writers = set()
            for access in epochs[epoch]:
                if access.value is not None:
                    past_writers.add(access.program)
                elif access.program not in past_writers and writers - {access.program}:
                    yield "read while another program writes"
        before = writes[-1].value if writes else before


def _program_hazards(accesses):
    """Inside a program, whose threads meet at barriers alone."""
    last = {}
    for access in accesses:
        if access.value is not None:
            last[access.program] = access.section
        elif last.get(access.program) == access.section:
            yield "written and read without a barrier"


@contextmanager
def concurrent(monkeypatch):
    """Launches within run their programs at once, live barriers and all; yields a Recorder.

    One access in fifty waits a while, so that programs overtake each other.
    """
    recorder, builder = Recorder(), type(interpreter.interpreter_builder)
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic = builder.create_atomic_rmw

    def stumble():
        if random.random() < 0.02:
            time.sleep(random.random() * 0.004)

    def noted_load(self, pointers, mask, other, *rest):
        recorder.note(pointers, mask)
        stumble()
        return load(self, pointers, mask, other, *rest)

    def noted_store(self, pointers, value, mask, *rest):
        recorder.note(pointers, mask, value)
        stumble()
        return store(self, pointers, value, mask, *rest)

    def noted_atomic(self, operation, pointer, value, mask, *rest):
        result = atomic(self, operation, pointer, value, mask, *rest)
        is_arrival = int(np.asarray(value.data).ravel()[0]) == 1
        recorder.pass_barrier(is_arrival=is_arrival)
        if not is_arrival:
            time.sleep(0.0005)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(builder, "create_masked_load", noted_load)
        patch.setattr(builder, "create_masked_store", noted_store)
        patch.setattr(builder, "create_atomic_rmw", noted_atomic)
        barrier = lambda self, *_: recorder.pass_barrier(is_arrival=False)  # noqa: E731
        patch.setattr(builder, "create_barrier", barrier)
        index = property(lambda self: recorder.thread.program, lambda self, value: None)
        patch.setattr(builder, "grid_idx", index, raising=False)
        executor = interpreter.GridExecutor
        patch.setattr(executor, "__call__", lambda *a, **k: _run_at_once(recorder, *a, **k))
        yield recorder


def _run_at_once(recorder, executor, *args, **options):
    names = executor.fn.__code__.co_varnames[: executor.fn.__code__.co_argcount]
    values = dict(zip(names, args, strict=False)) | {
        name: value for name, value in options.items() if name in names
    }
    scope = interpreter._patch_lang(executor.fn)
    try:
        values = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in values.items()
        }
        grid = (*executor.grid, 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(*grid)
        errors = []

        def run(program):
            recorder.thread.program = program
            try:
                executor.fn(**values)
            except Exception as error:
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=((x, y, 0),), daemon=True)
            for x in range(grid[0])
            for y in range(grid[1])
        ]
        random.shuffle(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
    finally:
        scope.restore()
