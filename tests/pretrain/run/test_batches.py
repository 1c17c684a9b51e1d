"""The loader: the same global batches for any number of ranks, resumable at any step."""

import threading
from queue import Queue

import pytest
import torch
import torch.distributed as dist

from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.run.batches import read_batches

GLOBAL_BATCH = 8


@pytest.fixture(scope="module")
def plan(corpus):
    return corpus.plan({"harbour": 0.55, "orchard": 0.25, "quarry": 0.2}, seq_len=16)


@pytest.fixture
def loaders(plan, monkeypatch):
    """The batches of each rank of a run, which asks for its rank once."""

    def build(world_size, local_batch_size, **options):
        monkeypatch.setattr(dist, "get_world_size", lambda: world_size)
        ranks = []
        for rank in range(world_size):
            monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
            ranks.append(read_batches(plan, local_batch_size=local_batch_size, **options))
            ranks[-1] = (next(ranks[-1]), ranks[-1])
        return [chained(*one) for one in ranks]

    def chained(first, rest):
        yield first
        yield from rest

    return build


@pytest.mark.parametrize(("world_size", "local_batch_size"), [(1, 8), (2, 2), (8, 1)])
def test_any_number_of_ranks_reads_the_same_sequences_from_any_step_on(
    plan, loaders, world_size, local_batch_size
):
    rounds = GLOBAL_BATCH // (world_size * local_batch_size)
    for first in (0, 7):
        ranks = loaders(world_size, local_batch_size, first_sequence=first * GLOBAL_BATCH)
        for step in range(first, first + 5):
            batches = [next(rank) for _ in range(rounds) for rank in ranks]
            assert all(torch.equal(inputs[:, 1:], labels[:, :-1]) for inputs, labels in batches)
            rows = [torch.cat([one, labels[:, -1:]], dim=1).tolist() for one, labels in batches]
            expected = [plan.tokens(GLOBAL_BATCH * step + row) for row in range(GLOBAL_BATCH)]
            assert [row for batch in rows for row in batch] == [one.tolist() for one in expected]


def test_sequences_are_read_ahead_by_a_thread_that_ends_with_the_iteration(
    plan, loaders, monkeypatch
):
    reads, threads, tokens = Queue(), set(), DataPlan.tokens

    def spied(plan, sequence):
        threads.add(threading.current_thread())
        row = tokens(plan, sequence)
        reads.put(sequence)
        return row

    monkeypatch.setattr(DataPlan, "tokens", spied)
    (batches,) = loaders(1, 2, num_prefetched=3, first_sequence=10**9)
    next(batches)
    assert [reads.get() for _ in range(8)] == list(range(10**9, 10**9 + 8))  # 1 handed out, 3 ready
    next(batches)
    assert [reads.get() for _ in range(2)] == [10**9 + 8, 10**9 + 9]
    batches.close()
    (thread,) = threads
    thread.join()
    assert thread is not threading.main_thread() and reads.empty()
