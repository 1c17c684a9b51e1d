"""The loader: the same global batches for any number of ranks, resumable at any step."""

import threading
import time

import pytest
import torch

from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.plan.loader import read_batches

GLOBAL_BATCH = 8


@pytest.fixture(scope="module")
def plan(corpus):
    return corpus.plan({"harbour": 0.55, "orchard": 0.25, "quarry": 0.2}, seq_len=16)


def loaders(plan, world_size, local_batch_size, **options):
    size = {"dp_world_size": world_size, "local_batch_size": local_batch_size}
    return [read_batches(plan, dp_rank=rank, **size, **options) for rank in range(world_size)]


def global_steps(ranks, local_batch_size, num_steps):
    """All rows of each step with their last labels, in the order of rounds and then ranks."""
    rounds = GLOBAL_BATCH // (len(ranks) * local_batch_size)
    steps = []
    for _ in range(num_steps):
        rows = []
        for _ in range(rounds):
            for rank in ranks:
                inputs, labels = next(rank)
                assert torch.equal(inputs[:, 1:], labels[:, :-1])
                rows += torch.cat([inputs, labels[:, -1:]], dim=1).tolist()
        steps.append(rows)
    return steps


@pytest.mark.parametrize(
    ("world_size", "local_batch_size"),
    [(ranks, rows) for ranks in (1, 2, 4, 8) for rows in (1, 2, 4, 8) if ranks * rows <= 8],
)
def test_any_number_of_ranks_reads_the_same_sequences_from_any_step_on(
    plan, world_size, local_batch_size
):
    for first in (0, 7):
        after = loaders(plan, world_size, local_batch_size, first_sequence=first * GLOBAL_BATCH)
        expected = [
            [plan.tokens(GLOBAL_BATCH * step + row).tolist() for row in range(GLOBAL_BATCH)]
            for step in range(first, first + 5)
        ]
        assert global_steps(after, local_batch_size, 5) == expected


@pytest.mark.parametrize("position", [0, 8, 10**9])
def test_resuming_reads_the_next_sequences_and_ends_its_thread(plan, monkeypatch, position):
    reads, threads, tokens = [], set(), DataPlan.tokens

    def spied(plan, sequence):
        reads.append(sequence)
        threads.add(threading.current_thread())
        return tokens(plan, sequence)

    monkeypatch.setattr(DataPlan, "tokens", spied)
    (batches,) = loaders(plan, 1, 2, num_prefetched=3, first_sequence=position)
    next(batches)
    deadline = time.monotonic() + 300  # on a machine that is at other work
    while len(reads) < 8 and time.monotonic() < deadline:  # 1 batch handed out, 3 ready
        time.sleep(0.001)
    time.sleep(0.02)
    batches.close()
    (thread,) = threads
    assert thread is not threading.main_thread() and not thread.is_alive()
    assert reads == list(range(position, position + 8))


def test_an_error_is_raised_where_its_batch_would_come(plan, monkeypatch):
    tokens = DataPlan.tokens

    def failing(plan, sequence):
        if sequence == 2:
            raise ValueError("corrupt token shard")
        return tokens(plan, sequence)

    monkeypatch.setattr(DataPlan, "tokens", failing)
    (batches,) = loaders(plan, 1, 1)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(ValueError, match="corrupt token shard"):
        next(batches)
