"""The memory estimate counts what torch really keeps."""

import pytest
import torch

from anchored.pretrain.model.tinycomma import TinyComma, flavors
from anchored.pretrain.run.memory import layer_activation_values


def test_a_layer_saves_the_activations_that_are_counted():
    args = flavors()["trial"]
    args.vocab_size, args.max_seq_len = 512, 64
    model = TinyComma(args)
    model.init_weights()
    hidden = torch.randn(12, 64, args.dim, requires_grad=True)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def remember(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output = model.layers["0"](hidden, None, None)
    # On a CPU both norms also keep their output before it is scaled; the fused ones do not.
    values = layer_activation_values(args, is_compiled=False) + 2 * args.dim
    # Rotary angles and the norms' reciprocals are not counted.
    assert sum(saved.values()) == pytest.approx(4 * 12 * 64 * values, rel=0.01)
    del output  # which kept the storages apart until here
