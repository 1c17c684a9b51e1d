"""The memory estimate counts what torch really keeps."""

import pytest
import torch

from anchored.pretrain.job_config import JobConfig
from anchored.pretrain.model.tinycomma import TinyComma, flavors
from anchored.pretrain.run.memory import GIB, estimate_memory, layer_activation_values


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


def test_the_1_8b_model_is_estimated_on_one_and_on_eight_gpus():
    config, args = JobConfig(), flavors()["tinycomma-1.8b"]
    config.training.local_batch_size, config.training.seq_len = 16, 2048
    config.compile.enable, args.loss_chunk_tokens = True, 4096
    with torch.device("meta"):
        model = TinyComma(args)
    eight, one = (estimate_memory(config, model, num_shards=count) for count in (8, 1))
    assert one.weights == one.gradients == 8 * eight.weights == 8 * eight.gradients
    assert one.optimizer == 8 * 1_758_562_304
    assert 55 * GIB < eight.total < 75 * GIB
    config.training.global_batch_size = 2 * 8 * 16  # two rounds: whole until they are added up
    assert estimate_memory(config, model, num_shards=8).gradients == one.gradients
    # Logits and gradients in bfloat16; in float32 only where they are not fused.
    assert eight.logits == 128256 * (4096 * 4 + 6 * 2048)
    args.loss_chunk_tokens = 0
    assert estimate_memory(config, model, num_shards=8).logits == 128256 * 32768 * 12
