"""Divided among processes: rounds of a step communicate once, and angles stay float32."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils._python_dispatch import TorchDispatchMode

from anchored.pretrain.job_config import ActivationCheckpoint, JobConfig
from anchored.pretrain.model import attention
from anchored.pretrain.model.attention import rotate
from anchored.pretrain.model.tinycomma import (
    TinyComma,
    flavors,
    parallel_dims,
    parallelized,
    schedule_reduction,
)
from anchored.pretrain.titan import CompileConfig

# Nothing is added in place to what a module returns.
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
NUM_ROUNDS = 3
NUM_MODULES = 4  # the embedding, two layers, the norm with the output layer


@pytest.fixture
def divide():
    """Divides a model among two processes, of which only this one is there."""

    def divided(**sections):
        config = replace(JobConfig(), **sections)
        config.parallelism.fsdp_reshard_after_forward = "never"
        args = replace(flavors()["smoke"], vocab_size=50, max_seq_len=16, loss_chunk_tokens=16)
        return parallelized(TinyComma(args), parallel_dims(config, 2), config)

    dist.init_process_group("fake", rank=0, world_size=2)
    yield divided
    dist.destroy_process_group()


@pytest.fixture
def model(divide):
    return divide()


class CommunicationCount(TorchDispatchMode):
    """Operations of process groups, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "c10d":
            self.counts[operation._opname] += 1
        return operation(*args, **(kwargs or {}))


def collectives(model, *, is_due):
    """Gathers and reductions of a step; is_due: whether to reduce in a round."""
    token_ids = torch.zeros(1, 16, dtype=torch.int64)
    with CommunicationCount() as communication:
        for number in range(NUM_ROUNDS):
            schedule_reduction(model, is_due=is_due(number), keeps_weights=True)
            model(token_ids, labels=token_ids).backward()
    counts = communication.counts
    assert len(counts) == 2
    return [counts["_allgather_base_"], counts["_reduce_scatter_base_"]]


def test_a_step_of_several_rounds_takes_the_collectives_of_one(model):
    every_round = collectives(model, is_due=lambda number: True)
    assert every_round == [NUM_ROUNDS * NUM_MODULES] * 2
    model.zero_grad()
    last = NUM_ROUNDS - 1
    assert collectives(model, is_due=lambda number: number == last) == [NUM_MODULES] * 2
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters())


def test_angles_stay_float32_where_weights_are_cast(model, monkeypatch):
    dtypes = []

    def remember(heads, table):
        dtypes.append((heads.dtype, table.dtype))
        return rotate(heads, table)

    monkeypatch.setattr(attention, "rotate", remember)
    model(torch.zeros(1, 16, dtype=torch.int64))
    assert dtypes == [(torch.bfloat16, torch.float32)] * 4


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_layers_are_computed_again_and_compiled_where_the_config_says_so(divide, mode, is_compiled):
    compiled = CompileConfig(enable=is_compiled, backend="eager")
    model = divide(activation_checkpoint=ActivationCheckpoint(mode=mode), compile=compiled)
    for layer in model.layers.values():
        assert isinstance(layer, CheckpointWrapper) == (mode != "none")
        assert (layer._compiled_call_impl is not None) == is_compiled
