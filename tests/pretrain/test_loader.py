"""The loader: the same global batches for any number of ranks, resumable at any step."""

from itertools import islice

import pytest
import torch

from anchored.pretrain.data_config import DataConfig, DataSource
from anchored.pretrain.data_plan import DataPlan
from anchored.pretrain.loader import SequenceLoader

GLOBAL_BATCH = 8
SEQ_LEN = 16


@pytest.fixture(scope="module")
def plan(corpus):
    sources = tuple(
        DataSource(name=name, path=str(corpus.source(name)), weight=weight)
        for name, weight in (("harbour", 0.55), ("orchard", 0.25), ("quarry", 0.2))
    )
    return DataPlan.open(DataConfig(sources=sources), seq_len=SEQ_LEN, verify=True)


def loaders(plan, world_size, local_batch_size):
    return [
        SequenceLoader(
            plan, dp_rank=rank, dp_world_size=world_size, local_batch_size=local_batch_size
        )
        for rank in range(world_size)
    ]


def global_steps(ranks, num_steps):
    """All rows of each step, input and last label, in the order of rounds and then ranks."""
    iterators = [iter(rank) for rank in ranks]
    rounds = GLOBAL_BATCH // (len(ranks) * ranks[0]._local_batch_size)
    steps = []
    for _ in range(num_steps):
        rows = []
        for _ in range(rounds):
            for iterator in iterators:
                inputs, labels = next(iterator)
                rows += torch.cat([inputs["input"], labels[:, -1:]], dim=1).tolist()
        steps.append(rows)
    return steps


def test_inputs_and_labels_are_shifted_by_one(plan):
    (loader,) = loaders(plan, 1, 3)
    inputs, labels = next(iter(loader))
    assert inputs["input"].shape == labels.shape == (3, SEQ_LEN)
    assert inputs["input"].dtype == labels.dtype == torch.int64
    for row in range(3):
        tokens = torch.from_numpy(plan.tokens(row).astype("int64"))
        assert torch.equal(inputs["input"][row], tokens[:-1])
        assert torch.equal(labels[row], tokens[1:])


@pytest.mark.parametrize(
    ("world_size", "local_batch_size"),
    [(ranks, rows) for ranks in (1, 2, 4, 8) for rows in (1, 2, 4, 8) if ranks * rows <= 8],
)
def test_any_number_of_ranks_reads_the_same_sequences_in_the_same_order(
    plan, world_size, local_batch_size
):
    expected = [[plan.tokens(8 * step + row).tolist() for row in range(8)] for step in range(5)]
    assert global_steps(loaders(plan, world_size, local_batch_size), 5) == expected


@pytest.mark.parametrize("step", range(0, 15, 7))
@pytest.mark.parametrize("world_sizes", [(1, 1), (1, 4), (8, 2)])
def test_a_state_resumes_at_any_step_on_any_number_of_ranks(plan, step, world_sizes):
    before, after = (loaders(plan, world_size, 1) for world_size in world_sizes)
    expected = global_steps(loaders(plan, 1, 8), step + 3)[step:]
    global_steps(before, step)
    states = [loader.state_dict() for loader in before]
    assert all(state == states[0] for state in states)
    assert states[0] == {"plan_hash": plan.hash, "next_sequence": step * GLOBAL_BATCH}
    for loader in after:
        loader.load_state_dict(states[0])
    assert global_steps(after, 3) == expected


def test_a_state_of_another_plan_is_refused(plan):
    (loader,) = loaders(plan, 1, 1)
    with pytest.raises(ValueError, match=f"data plan 0000, this run has plan {plan.hash}"):
        loader.load_state_dict({"plan_hash": "0000", "next_sequence": 0})


def test_the_stream_does_not_end(plan):
    (loader,) = loaders(plan, 1, 8)
    count = 2 * sum(plan.num_windows) // 8
    assert sum(1 for _ in islice(loader, count)) == count
