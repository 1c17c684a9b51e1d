"""The memory estimate counts what torch really keeps."""

import pytest
import torch

from anchored.pretrain.job_config import JobConfig
from anchored.pretrain.model.tinycomma import TinyComma, flavors
from anchored.pretrain.run.memory import (
    GIB,
    estimate_memory,
    layer_activation_values,
    parameter_count,
)


def small_args(**changes):
    args = flavors()["quickstart-risky"]
    args.vocab_size = 512
    for name, value in {"max_seq_len": 64, **changes}.items():
        setattr(args, name, value)
    return args


def saved_bytes(model, *inputs):
    """Bytes of distinct tensors that a forward saves for backward, parameters apart."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def remember(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output = model(*inputs)
    return sum(storages.values()), output  # the output keeps the storages apart until here


@pytest.mark.parametrize("flavor", list(flavors()))
def test_parameters_are_counted_without_building_the_model(flavor):
    args = flavors()[flavor]
    with torch.device("meta"):
        model = TinyComma(args)
    assert parameter_count(args) == sum(weight.numel() for weight in model.parameters())


def test_a_layer_saves_the_activations_that_are_counted():
    args = small_args()
    model = TinyComma(args)
    model.init_weights()
    hidden = torch.randn(3, 64, args.dim, requires_grad=True)
    actual, _ = saved_bytes(model.layers["0"], hidden, model.freqs_cis, None)
    # On a CPU both norms also keep their output before it is scaled; the fused ones do not.
    values = layer_activation_values(args, is_compiled=False) + 2 * args.dim
    # Rotary angles and the norms' reciprocals are not counted.
    assert actual == pytest.approx(4 * 3 * 64 * values, rel=0.01)


def test_the_1_8b_model_is_estimated_on_one_and_on_eight_gpus():
    config = JobConfig()
    config.training.local_batch_size, config.training.seq_len = 16, 2048
    config.compile.enable = True
    config.loss.chunk_tokens = 4096
    args = flavors()["tinycomma-1.8b"]
    args.loss_chunk_tokens = 4096
    eight, one = (estimate_memory(config, args, num_shards=count) for count in (8, 1))
    assert one.weights == one.gradients == 4 * 1_758_562_304
    assert one.optimizer == 8 * 1_758_562_304
    assert eight.weights == one.weights // 8
    # A layer and a token: 8 * 2048 + 3 * 5632 + 32 numbers of bfloat16.
    assert eight.activations == 16 * 2048 * 24 * 2 * (8 * 2048 + 3 * 5632 + 32)
    assert eight.logits == 128256 * (4096 * 12 + 6 * 2048)
    assert 55 * GIB < eight.total < 75 * GIB
    args.loss_chunk_tokens = 0
    assert estimate_memory(config, args, num_shards=8).logits == 128256 * 32768 * 12
