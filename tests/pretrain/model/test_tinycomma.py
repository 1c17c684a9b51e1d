"""The model: its size, its initial weights, and what a step keeps of it in memory."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from anchored.pretrain.model.tinycomma import (
    TinyComma,
    flavors,
    initialize_weights,
    parameter_count,
)
from anchored.pretrain.run.memory import layer_activation_values


def build(flavor="quickstart", *, seed=0, device="cpu", seq_len=64):
    args = flavors()[flavor]
    if args.needs_shards:
        args.vocab_size = 2048
    args.init_seed, args.max_seq_len = seed, seq_len
    with torch.device("meta"):
        model = TinyComma(args)
    if device != "meta":
        model.to_empty(device=device)
        model.init_weights()
    return model


def test_the_models_have_the_sizes_of_the_paper_and_of_the_plan():
    model = build("tinycomma-1.8b", device="meta", seq_len=2048)
    assert parameter_count(model) == 1_758_562_304
    args = model.model_args
    assert (args.dim, args.n_layers, args.n_heads, args.hidden_dim) == (2048, 24, 32, 5632)
    assert (args.vocab_size, args.rope_theta, args.norm_eps) == (128256, 10000, 1e-5)
    assert model.flops_per_token() == pytest.approx(1.0183e10, rel=1e-4)
    assert 0.7e6 < parameter_count(build("quickstart", device="meta")) < 1.2e6


def test_initial_weights_are_those_of_lingua():
    model = build("trial")
    for name, weight in model.named_parameters():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight)), name
            continue
        width = 512 if name.endswith("w2.weight") else 192
        std = width**-0.5
        # A normal cut at 3 sigma has 0.9866 of its deviation; n weights give it to 1/sqrt(2n).
        assert weight.std().item() == pytest.approx(0.9866 * std, rel=4 / weight.numel() ** 0.5)
        assert abs(weight.mean().item()) < 4 * std / weight.numel() ** 0.5
        assert 2.8 * std < weight.abs().max().item() <= 3 * std, name


def test_initial_weights_depend_on_seed_and_name_and_not_on_wrappers():
    plain, wrapped, other = build(), build(seed=1), dict(build(seed=1).named_parameters())
    wrapped.layers["0"] = checkpoint_wrapper(wrapped.layers["0"])
    args = wrapped.model_args
    initialize_weights(wrapped, dim=args.dim, hidden_dim=args.hidden_dim, seed=0)
    assert any("_checkpoint_wrapped_module" in name for name, _ in wrapped.named_parameters())
    for one, same in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(plain.output.weight, other["output.weight"])
    one, next_one = (plain.layers[layer].attention.wq.weight for layer in "01")
    assert not torch.equal(one, next_one)


def test_a_layer_saves_the_activations_that_are_counted():
    model = build("trial")
    args = model.model_args
    hidden = torch.randn(12, 64, args.dim, requires_grad=True)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def remember(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output = model.layers["0"](hidden, model.rotary_table, None)
    # On a CPU both norms also keep their output before it is scaled; the fused ones do not.
    values = layer_activation_values(args, is_compiled=False) + 2 * args.dim
    # Rotary angles and the norms' reciprocals are not counted.
    assert sum(saved.values()) == pytest.approx(4 * 12 * 64 * values, rel=0.01)
    del output  # which kept the storages apart until here
