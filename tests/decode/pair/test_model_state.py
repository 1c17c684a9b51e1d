"""The models of a pair are two, the safe one has no adapter, and both stay what they were."""

import copy
import warnings
from functools import partial

import pytest
import torch
from tiny_models import tiny_gpt2, tiny_llama
from torch import nn

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.pair.model_state import ModelState, check_apart

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # peft asks it when it adapts
)
TEXT = "the keeper of the lamp"


def llama(seed):
    return tiny_llama(seed, vocab_size=320).float()


def generate(pair):
    return Decoder(pair, Anchored(k=1.0)).generate(TEXT, max_new_tokens=4)[0]


def adapted(base):
    """A LoRA that changes something."""
    peft = pytest.importorskip("peft")
    settings = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    torch.manual_seed(5)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))


def with_weight(weight):
    other = llama(2)
    other.lm_head.weight = nn.Parameter(weight)
    return other


def test_views_of_one_memory_are_refused_and_parts_of_it_are_not():
    """Weights of one file lie next to each other in one memory."""
    memory = torch.randn(700, 32)
    safe = with_weight(memory[:320])
    check_apart(safe, with_weight(memory[320:640]))
    for models in ((safe, with_weight(memory[319:639])), (with_weight(memory[319:639]), safe)):
        with pytest.raises(ValueError, match=r"lm_head\.weight of the safe one with lm_head\.w"):
            check_apart(*models)


def test_an_adapter_in_the_safe_model_is_refused_by_name(tokenizer):
    base = llama(1)
    risky = adapted(base)  # which puts its layers into the base
    with pytest.raises(ValueError, match=r"the safe model holds an adapter, peft\.\S+ at model\."):
        ModelPair(base, risky, tokenizer)


def test_an_adapter_of_a_copy_is_the_risky_model_until_it_is_switched(tokenizer):
    base = llama(1)
    pair = ModelPair(base, adapted(copy.deepcopy(base)), tokenizer)
    expected = generate(pair)
    assert verify(expected.ledger, pair)
    with pair.risky.disable_adapter(), pytest.raises(ValueError, match="_disable_adapters is True"):
        generate(pair)
    assert generate(pair) == expected


def test_one_model_twice_is_taken_with_one_warning(tokenizer, caplog):
    model = llama(1)
    for other in (model, copy.deepcopy(model)):
        caplog.clear()
        pair = ModelPair(model, other, tokenizer)
        (line,) = caplog.messages
        assert line.startswith("the safe and the risky model are the same one: p* is p_s")
        assert generate(pair).ledger.spent == 0.0


# Changes after the pair was made: what is done to a model, and what the refusal says of it.


def hook(module, *inputs):
    """A hook that changes nothing."""


@torch.no_grad()
def doubled(tensor):
    """In place; `.data`, through which adapters are merged, counts no versions."""
    tensor.mul_(2.0)


CHANGES = {
    "a shape": (
        lambda m: setattr(m.lm_head.weight, "data", torch.ones(352, 32)),
        r"lm_head.weight is \(352, 32\), it was \(320, 32\)",
    ),
    "a weight": (lambda m: doubled(m.lm_head.weight[5:6]), r"lm_head.weight was replaced or writ"),
    "a buffer": (lambda m: doubled(m.model.rotary_emb.inv_freq), r"\S+inv_freq was replaced or"),
    "a new tensor": (
        lambda m: setattr(m.lm_head, "bias", nn.Parameter(torch.ones(320))),
        r"lm_head.bias is new",
    ),
    "a merged adapter": (lambda m: adapted(m).merge_and_unload(), r"\S+q_proj.weight was written"),
    "a hook": (lambda m: m.lm_head.register_forward_hook(hook), "lm_head._forward_hooks is hook, "),
    "a forward": (
        lambda m: setattr(m.model.layers[0].mlp, "forward", m.model.layers[1].mlp.forward),
        "model.layers.0.mlp.forward is LlamaMLP.forward, it was none",
    ),
    "a number of a module": (
        lambda m: setattr(m.model.norm, "variance_epsilon", 5.0),
        r"model.norm.variance_epsilon is 5.0, it was 1e-06",
    ),
    "a list of a config": (
        lambda m: m.config.rope_parameters.update(factor=2.0),
        r'LlamaConfig.rope_parameters is .*"factor": 2.0',
    ),
}


@pytest.mark.parametrize(("change", "says"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_has_changed_is_refused_by_name(change, says):
    state = ModelState(model := llama(2).eval(), "risky")
    state.check()
    change(model.train(False))
    with pytest.raises(ValueError, match=f"the risky model has changed since .* made: (?:{says})"):
        state.check()


def test_a_module_in_place_of_one_that_is_gone_is_another_one():
    """A state keeps nothing alive, so that an address may be that of a new object."""
    state = ModelState(model := llama(1).eval(), "safe")
    del model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = nn.SiLU()
    with pytest.raises(ValueError, match=r"its module .*act_fn is another one"):
        state.check()


def test_every_public_call_checks(tokenizer):
    pair = ModelPair(llama(1), llama(2), tokenizer)
    decoder, ledger = Decoder(pair, Anchored(k=1.0)), generate(pair).ledger
    doubled(pair.risky.lm_head.weight)
    for call in (
        lambda: decoder.generate(TEXT, max_new_tokens=2),
        lambda: next(decoder.stream(TEXT, max_new_tokens=2)),
        lambda: decoder.score(TEXT, " of"),
        lambda: verify(ledger, pair),
    ):
        with pytest.raises(ValueError, match="the risky model has changed since the ModelPair"):
            call()


def test_a_model_in_training_mode_is_evaluated_again(tokenizer, caplog):
    pair = ModelPair(tiny_gpt2(1).float(), tiny_gpt2(2).float(), tokenizer)
    expected = generate(pair)
    for name, part in (("safe", pair.safe), ("risky", pair.risky.lm_head)):
        part.train()
        caplog.clear()
        assert generate(pair) == expected and not part.training
        assert caplog.messages == [f"the {name} model was in training mode: set to evaluation"]


ODD_WEIGHTS = {
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "parts": lambda: torch.nested.nested_tensor([torch.ones(4, 2)], layout=torch.jagged),
    "inference": torch.inference_mode()(partial(torch.ones, 4, 4)),
}
"""Quantized and distributed weights are of parts as nested ones are."""


@pytest.mark.parametrize("kind", ODD_WEIGHTS)
def test_weights_of_any_kind_are_compared(kind):
    models = [nn.Module(), nn.Module()]
    weights = [nn.Parameter(ODD_WEIGHTS[kind](), requires_grad=False) for _ in range(3)]
    for model, weight in zip(models, weights, strict=False):
        model.register_parameter("weight", weight)
        model.eval()
    state = ModelState(models[0], "safe")
    state.check()
    check_apart(*models)
    models[1].weight = models[0].weight
    with pytest.raises(ValueError, match="share memory, weight"):
        check_apart(*models)
    models[0].weight = weights[2]
    if kind != "meta":  # which has no address
        with pytest.raises(ValueError, match="the safe model has changed"):
            state.check()


def test_what_calls_of_transformers_write_to_a_model_is_no_change(tokenizer, tmp_path, caplog):
    """Hooks for hidden states, the longest text that dynamic rotary embeddings have read, what a
    saved config names, a setting of training."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    safe = tiny_llama(1, rope_parameters=rope).float()
    pair = ModelPair(safe, llama(2), tokenizer)
    expected, before = generate(pair), safe.model.rotary_emb.max_seq_len_cached
    safe(torch.arange(200)[None], output_hidden_states=True)
    safe.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it gets another name in transformers 6
        safe.gradient_checkpointing_enable()
    safe.config.use_cache = False
    assert safe.model.layers[0]._forward_hooks and safe.model.layers[0].gradient_checkpointing
    assert safe.model.rotary_emb.max_seq_len_cached > before and safe.config.architectures
    assert generate(pair).token_ids == expected.token_ids
