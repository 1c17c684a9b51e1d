"""The model: its size, its initial weights, and what a step keeps of it in memory."""

import pytest
import torch

from anchored.pretrain.model.tinycomma import TinyComma, flavors, initialize_weights
from anchored.pretrain.run.memory import layer_activation_values, parameter_count


def build(flavor="quickstart", *, seed=0, device="cpu"):
    args = flavors()[flavor]
    if args.needs_shards:
        args.vocab_size = 2048
    args.init_seed, args.max_seq_len = seed, 64
    with torch.device("meta"):
        model = TinyComma(args)
    if device != "meta":
        model.to_empty(device=device)
        model.init_weights()
    return model


def test_the_models_have_the_sizes_of_the_paper_and_of_the_plan():
    model = build("tinycomma-1.8b", device="meta")
    assert parameter_count(model) == 1_758_562_304
    args = model.model_args
    assert (args.dim, args.n_layers, args.n_heads, args.hidden_dim) == (2048, 24, 32, 5632)
    assert (args.vocab_size, args.rope_theta, args.norm_eps) == (128256, 10000, 1e-5)
    assert args.get_nparams_and_flops(model, 2048)[1] == pytest.approx(1.0183e10, rel=1e-4)
    assert 0.7e6 < parameter_count(build("quickstart", device="meta")) < 1.2e6


def test_initial_weights_are_those_of_lingua():
    # torchtitan's would be: embeddings 1.0, projections 0.02, outputs scaled by depth.
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
    wrapped.layers["0"] = torch.compile(wrapped.layers["0"], backend="eager")
    args = wrapped.model_args
    initialize_weights(wrapped, dim=args.dim, hidden_dim=args.hidden_dim, seed=0)
    assert any("_orig_mod" in name for name, _ in wrapped.named_parameters())
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
        output = model.layers["0"](hidden, None, None)
    # On a CPU both norms also keep their output before it is scaled; the fused ones do not.
    values = layer_activation_values(args, is_compiled=False) + 2 * args.dim
    # Rotary angles and the norms' reciprocals are not counted.
    assert sum(saved.values()) == pytest.approx(4 * 12 * 64 * values, rel=0.01)
    del output  # which kept the storages apart until here
