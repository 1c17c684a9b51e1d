"""The models of a pair are two, the safe one has no adapter, and both stay what they were."""

import copy
import logging
import warnings
from functools import partial

import pytest
import torch
from tiny_models import tiny_family, tiny_gpt2, tiny_llama
from torch import nn

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, verify, with_divergences
from anchored.decode.pair.model_state import ModelState, check_apart

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # peft asks it when it adapts
)
TEXT = "the keeper of the lamp"


def generate(pair):
    return Decoder(pair, Anchored(k=1.0)).generate(TEXT, max_new_tokens=4)[0]


# Models that are not apart: each makes (safe, risky), the latter by what is done to a base model.


def peft():
    return pytest.importorskip("peft")


def adapted(base, kind="LoraConfig", **settings):
    targets = {"target_modules": ["q_proj", "down_proj"]}
    if kind == "IA3Config":
        targets["feedforward_modules"] = ["down_proj"]
    config = getattr(peft(), kind)(task_type="CAUSAL_LM", **targets, **settings)
    return peft().get_peft_model(base, config)


def prompted(base, kind="PromptTuningConfig"):
    config = getattr(peft(), kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return peft().get_peft_model(base, config)


def trained(model):
    """An adapter that changes something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ("lora_", "ia3_", "prompt_")):
                weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return model


def injected(base):
    """As by `add_adapter` of transformers."""
    config = peft().LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    return peft().inject_adapter_in_model(config, base)


def disabled(model):
    model.disable_adapter_layers()
    return model


def wrapped(base):
    class Wrapper(type(base)):
        pass

    other = tiny_llama(2).float()
    other.inner = base
    other.__class__ = Wrapper
    return other


def tied(base):
    other = tiny_llama(2).float()
    other.model.embed_tokens.weight = base.model.embed_tokens.weight
    return other


def with_layer_of(base):
    other = tiny_llama(2).float()
    other.model.layers[1] = base.model.layers[0]
    return other


def with_memory_of(base, change):
    other = tiny_llama(2).float()
    other.lm_head.weight = nn.Parameter(change(base.lm_head.weight.data))
    return other


def with_buffer_of(base):
    other = tiny_llama(2).float()
    other.model.rotary_emb.inv_freq = base.model.rotary_emb.inv_freq
    return other


def with_state_of(base):
    other = tiny_llama(2).float()
    other.load_state_dict(base.state_dict(), assign=True)
    return other


SHARED = {
    "LoRA": adapted,
    "LoRA, trained": lambda base: trained(adapted(base)),
    "LoRA, disabled": lambda base: disabled(adapted(base)),
    "IA3": partial(adapted, kind="IA3Config"),
    "layers to be saved": partial(adapted, modules_to_save=["lm_head"]),
    "prompt tuning": prompted,
    "prefix tuning": partial(prompted, kind="PrefixTuningConfig"),
    "a wrapper": wrapped,
    "tied embeddings": tied,
    "a layer of both": with_layer_of,
    "the same memory": partial(with_memory_of, change=lambda weight: weight),
    "a view": partial(with_memory_of, change=lambda weight: weight.view(-1)[32:].view(319, 32)),
    "a buffer": with_buffer_of,
    "weights that were assigned": with_state_of,
    "a shallow copy": copy.copy,
}


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("way", ["safe, risky", "risky, safe"])
def test_models_that_share_memory_are_refused_by_name(make, way, tokenizer):
    base = tiny_llama(1).float()
    models = [base, make(base)]
    reason = r"the models share memory, \S+ of the safe one with \S+ of the risky one|holds an adap"
    with pytest.raises(ValueError, match=reason):
        ModelPair(*(models if way == "safe, risky" else models[::-1]), tokenizer)


def test_views_of_one_memory_are_refused_and_parts_of_it_are_not(tokenizer):
    """Weights of one file lie side by side in one memory."""
    safe, risky = tiny_llama(1).float(), tiny_llama(2).float()
    memory = torch.randn(700, 32)
    safe.lm_head.weight = nn.Parameter(memory[:320])
    for start, is_shared in ((319, True), (320, False)):
        risky.lm_head.weight = nn.Parameter(memory[start : start + 320])
        if is_shared:
            with pytest.raises(
                ValueError, match=r"lm_head\.weight of the safe one with lm_head\.w"
            ):
                ModelPair(safe, risky, tokenizer)
        else:
            assert verify(generate(pair := ModelPair(safe, risky, tokenizer)).ledger, pair)


ADAPTED = {
    "LoRA": adapted,
    "LoRA, disabled": lambda base: disabled(adapted(base)),
    "the adapted base": lambda base: adapted(base).get_base_model(),
    "the adapted base, disabled": lambda base: disabled(adapted(base)).get_base_model(),
    "IA3": lambda base: adapted(base, "IA3Config").get_base_model(),
    "layers to be saved": lambda base: adapted(base, modules_to_save=["lm_head"]).get_base_model(),
    "single tokens": lambda base: adapted(base, trainable_token_indices=[3]).get_base_model(),
    "DoRA": lambda base: adapted(base, use_dora=True).get_base_model(),
    "prompt tuning": prompted,
    "of transformers": injected,
    "merged, but not unloaded": lambda base: (m := adapted(base), m.merge_adapter(), m)[2],
}


@pytest.mark.parametrize("make", ADAPTED.values(), ids=ADAPTED)
def test_an_adapter_in_the_safe_model_is_refused_by_name(make, tokenizer):
    with pytest.raises(ValueError, match=r"the safe model holds an adapter, peft\.\S+ at "):
        ModelPair(make(tiny_llama(1).float()), tiny_llama(2).float(), tokenizer)


RISKY = {
    "LoRA": lambda base: trained(adapted(base)),
    "IA3": lambda base: trained(adapted(base, "IA3Config")),
    "injected": injected,
    "merged": lambda base: trained(adapted(base)).merge_and_unload(),
}


@pytest.mark.parametrize("make", RISKY.values(), ids=RISKY)
def test_an_adapter_of_a_copy_is_the_risky_model(make, tokenizer):
    base = tiny_llama(1).float()
    risky = make(copy.deepcopy(base))
    pair = ModelPair(base, risky, tokenizer)
    assert verify(generate(pair).ledger, pair)
    tokens = torch.tensor([pair.encode(TEXT)])
    plain = {}
    for name, rule in (("safe", SafeOnly()), ("risky", RiskyOnly(compared=False))):
        with torch.inference_mode():
            plain[name] = pair.models[name](tokens).logits[0, -1].double().log_softmax(-1)
        (score,) = Decoder(pair, rule).score(TEXT, [[7]])
        assert score.token_log_probs[0] == pytest.approx(plain[name][7].item(), abs=1e-4)
    assert (plain["safe"] - plain["risky"]).abs().max() > 0.01


def test_a_tuned_prompt_is_refused_by_name(tokenizer):
    base = tiny_llama(1).float()
    with pytest.raises(ValueError, match=r"the risky model .* tokens have logits of \d+ positions"):
        ModelPair(base, prompted(copy.deepcopy(base)), tokenizer)


def test_a_model_without_its_adapter_is_safe_again(tokenizer):
    base = tiny_llama(1).float()
    unloaded = adapted(base).unload()
    pair = ModelPair(unloaded, tiny_llama(2).float(), tokenizer)
    assert verify(generate(pair).ledger, pair)


def copied(tokenizer):
    base = tiny_llama(1).float()
    return ModelPair(base, copy.deepcopy(base), tokenizer)


def merged_in_place(tokenizer):
    base = tiny_llama(1).float()
    return ModelPair(base, trained(adapted(base)).merge_and_unload(), tokenizer)


@pytest.mark.parametrize(
    "make",
    [lambda tokenizer: ModelPair(*[tiny_llama(1)] * 2, tokenizer), copied, merged_in_place],
    ids=["object", "copy", "merged in place"],
)
def test_one_model_twice_is_taken_with_one_warning(make, tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        pair = make(tokenizer)
    (line,) = caplog.messages
    assert line.startswith("the safe and the risky model are the same one: p* is p_s")
    result = generate(pair)
    assert result.ledger.spent == 0.0 and verify(result.ledger, pair)


def test_one_folder_twice_is_taken_with_one_warning(pair_folders, caplog):
    with caplog.at_level(logging.WARNING):
        ModelPair.from_pretrained(pair_folders[0], pair_folders[0])
    (line,) = caplog.messages
    assert line.startswith("the safe and the risky model are the same one")


def test_what_harms_nothing_may_be_shared(tokenizer):
    """Config objects, modules without weights, and a safe model that many pairs have."""
    safe, risky = tiny_llama(1).float(), tiny_llama(2).float()
    risky.config = safe.config
    risky.model.layers[0].mlp.act_fn = safe.model.layers[0].mlp.act_fn
    for other in (risky, tiny_llama(3).float()):
        pair = ModelPair(safe, other, tokenizer)
        assert verify(generate(pair).ledger, pair)


# Changes after the pair was made: what is done to a model, and what the refusal says of it.


def embeddings_resized(model):
    model.resize_token_embeddings(352, mean_resizing=False)


def weights_loaded(model, **settings):
    model.load_state_dict(tiny_llama(9).float().state_dict(), **settings)


def stepped(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()


def looks(module, *given):
    """A hook, or a pre-hook, that changes nothing."""


@torch.no_grad()
def doubled(tensor):
    """In place; `.data`, through which adapters are merged, counts no versions."""
    tensor.mul_(2.0)


CHANGES = {
    "half": (lambda m: m.half(), r"\S+ is float16, it was float32"),
    "bfloat16": (lambda m: m.bfloat16(), r"\S+ is bfloat16, it was float32"),
    "to float64": (lambda m: m.to(torch.float64), r"\S+ is float64, it was float32"),
    "one layer": (lambda m: m.lm_head.double(), r"lm_head.weight is float64, it was float32"),
    "to a device": (lambda m: m.to("meta"), r"\S+ is meta, it was cpu"),
    "embeddings": (embeddings_resized, "its module lm_head is another one"),
    "rows of a weight": (
        lambda m: setattr(m.lm_head.weight, "data", torch.ones(352, 32)),
        r"lm_head.weight is \(352, 32\), it was \(320, 32\)",
    ),
    "weights loaded": (weights_loaded, r"\S+ was replaced or written to"),
    "weights assigned": (partial(weights_loaded, assign=True), r"\S+ was replaced or written to"),
    "an optimizer's step": (stepped, r"\S+ was replaced or written to"),
    "an adapter added": (injected, r"its module \S+ is another one"),
    "an adapter around it": (adapted, r"its module \S+ is another one"),
    "an adapter merged": (
        lambda m: trained(adapted(m)).merge_and_unload(),
        r"model.layers.0.self_attn.q_proj.weight was written to",
    ),
    "a layer replaced": (
        lambda m: setattr(m, "lm_head", nn.Linear(32, 320)),
        "its module lm_head is another one",
    ),
    "an activation replaced": (
        lambda m: setattr(m.model.layers[0].mlp, "act_fn", nn.ReLU()),
        r"its module model.layers.0.mlp.act_fn is another one",
    ),
    "a layer left out": (lambda m: m.model.layers.pop(1), r"its module \S+ is another one"),
    "a layer parametrized": (
        lambda m: nn.utils.parametrizations.weight_norm(m.lm_head),
        r"its module \S+ is another one",
    ),
    "a bias": (
        lambda m: setattr(m.lm_head, "bias", nn.Parameter(torch.ones(320))),
        r"lm_head.bias is new",
    ),
    "a weight": (lambda m: doubled(m.lm_head.weight), r"lm_head.weight was replaced or written"),
    "a few numbers": (
        lambda m: doubled(m.model.embed_tokens.weight[5:6]),
        r"model.embed_tokens.weight was replaced or written to",
    ),
    "a weight's data": (lambda m: doubled(m.lm_head.weight.data), "lm_head.weight was written to"),
    "a layer's data": (
        lambda m: doubled(m.model.layers[1].mlp.up_proj.weight.data),
        r"model.layers.1.mlp.up_proj.weight was written to",
    ),
    "other data": (
        lambda m: setattr(m.lm_head.weight, "data", m.lm_head.weight.data.clone()),
        "lm_head.weight was replaced or written to",
    ),
    "rotary frequencies": (
        lambda m: doubled(m.model.rotary_emb.inv_freq),
        r"model.rotary_emb.inv_freq was replaced or written to",
    ),
    "a hook on the whole model": (
        lambda m: m.register_forward_hook(looks),
        "_forward_hooks is looks, it was none",
    ),
    "a hook on the output layer": (
        lambda m: m.lm_head.register_forward_hook(looks),
        "lm_head._forward_hooks is looks, it was none",
    ),
    "a pre-hook on attention": (
        lambda m: m.model.layers[1].self_attn.register_forward_pre_hook(looks),
        "model.layers.1.self_attn._forward_pre_hooks is looks, it was none",
    ),
    "a forward replaced": (
        lambda m: setattr(m.model.layers[0].mlp, "forward", m.model.layers[1].mlp.forward),
        "model.layers.0.mlp.forward is LlamaMLP.forward, it was none",
    ),
    "a number of a module": (
        lambda m: setattr(m.model.norm, "variance_epsilon", 5.0),
        r"model.norm.variance_epsilon is 5.0, it was 1e-06",
    ),
    "a switch of a module": (
        lambda m: setattr(m.model.layers[0].self_attn, "is_causal", False),
        r"model.layers.0.self_attn.is_causal is False, it was True",
    ),
    "a config": (
        lambda m: setattr(m.config, "rms_norm_eps", 5.0),
        r"LlamaConfig.rms_norm_eps is 5.0, it was 1e-06",
    ),
}
CALLS = {
    "generate": lambda pair, ledger: generate(pair),
    "stream": lambda pair, ledger: next(
        Decoder(pair, Anchored(k=1.0)).stream(TEXT, max_new_tokens=4)
    ),
    "score": lambda pair, ledger: Decoder(pair, Anchored(k=1.0)).score(TEXT, " of"),
    "ratios": lambda pair, ledger: Decoder(pair, Anchored(k=1.0)).prompt_ratios(TEXT),
    "bytes": lambda pair, ledger: Decoder(pair, Anchored(k=1.0), level="byte").generate(
        TEXT, max_new_bytes=4
    ),
    "verify": lambda pair, ledger: verify(ledger, pair),
    "divergences": lambda pair, ledger: with_divergences(ledger, pair),
}


@pytest.mark.parametrize("name", ["safe", "risky"])
@pytest.mark.parametrize(("change", "says"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_has_changed_is_refused_by_name(change, says, name, tokenizer):
    pair = ModelPair(tiny_llama(1).float(), tiny_llama(2).float(), tokenizer)
    generate(pair)
    change(pair.models[name])
    reason = f"the {name} model has changed since the ModelPair was made: (?:{says})"
    with pytest.raises(ValueError, match=reason):
        generate(pair)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_public_call_asks(call, tokenizer):
    pair = ModelPair(tiny_llama(1).float(), tiny_llama(2).float(), tokenizer)
    ledger = generate(pair).ledger
    doubled(pair.risky.lm_head.weight)
    with pytest.raises(ValueError, match="the risky model has changed since the ModelPair was mad"):
        call(pair, ledger)


@pytest.mark.parametrize("make", [tiny_gpt2, partial(tiny_family, "llama")], ids=["gpt2", "llama"])
@pytest.mark.parametrize("change", [lambda m: m.train(), lambda m: m.get_submodule(LAST).train()])
def test_a_model_in_training_mode_is_evaluated_again(make, change, tokenizer, caplog):
    pair = ModelPair(make(seed=1).float(), make(seed=2).float(), tokenizer)
    expected = generate(pair)
    for name in ("safe", "risky"):
        change(pair.models[name])
        with caplog.at_level(logging.WARNING):
            assert generate(pair) == expected
        assert caplog.messages == [f"the {name} model was in training mode: set to evaluation"]
        caplog.clear()


LAST = "lm_head"


def test_between_pieces_modes_and_writes_are_asked(tokenizer):
    pair = ModelPair(tiny_gpt2(1).float(), tiny_gpt2(2).float(), tokenizer)
    decoder = Decoder(pair, Anchored(k=1.0))
    expected = list(decoder.stream(TEXT, max_new_tokens=4))
    stream = decoder.stream(TEXT, max_new_tokens=4)
    pieces = []
    for piece in stream:
        pieces.append(piece)
        pair.risky.train()
    assert pieces == expected
    stream = decoder.stream(TEXT, max_new_tokens=4)
    next(stream)
    doubled(pair.safe.lm_head.weight)
    with pytest.raises(ValueError, match=r"the safe model has changed .* was written to"):
        next(stream)


def test_a_copy_of_a_pair_is_a_pair(pair):
    other = copy.deepcopy(pair)
    assert generate(other) == generate(pair)
    doubled(other.safe.lm_head.weight)
    with pytest.raises(ValueError, match="the safe model has changed"):
        generate(other)
    assert generate(pair)


class Halves(torch.Tensor):
    """A weight of two parts, as quantized and distributed ones are."""

    @staticmethod
    def __new__(cls, first, second):
        shape = (len(first) + len(second), *first.shape[1:])
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=first.dtype)

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default,):
            return cls(args[0].first, args[0].second)
        raise NotImplementedError(func)


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.ones(4, 4)


ODD_WEIGHTS = {
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "empty": lambda: torch.empty(0),
    "sparse": lambda: torch.ones(4, 4).to_sparse(),
    "expanded": lambda: torch.ones(1, 4).expand(4, 4),
    "transposed": lambda: torch.ones(4, 300).t(),
    "integers": lambda: torch.ones(4, dtype=torch.int32),
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "quantized": lambda: torch.empty(4, dtype=torch.uint4),
    "parts": lambda: Halves(torch.ones(2, 4), torch.ones(2, 4)),
    "inference": made_in_inference_mode,
}
HAVE_NO_ADDRESS = ("meta", "empty", "sparse")


@pytest.mark.parametrize("kind", ODD_WEIGHTS)
def test_weights_of_any_kind_can_be_asked(kind):
    models = [nn.Module(), nn.Module()]
    weights = [nn.Parameter(ODD_WEIGHTS[kind](), requires_grad=False) for _ in range(3)]
    for model, weight in zip(models, weights, strict=False):
        model.register_parameter("weight", weight)
    state = ModelState(models[0], "safe")
    state.check()
    check_apart(*models)
    models[1].weight = models[0].weight
    with pytest.raises(ValueError, match="share memory, weight"):
        check_apart(*models)
    models[0].weight = weights[2]
    if kind not in HAVE_NO_ADDRESS:
        with pytest.raises(ValueError, match="the safe model has changed"):
            state.check()


def test_an_adapter_that_is_switched_is_refused(tokenizer):
    risky = trained(adapted(tiny_llama(2).float()))
    pair = ModelPair(tiny_llama(1).float(), risky, tokenizer)
    expected = generate(pair)
    with risky.disable_adapter(), pytest.raises(ValueError, match="_disable_adapters is True"):
        generate(pair)
    assert generate(pair) == expected


def test_what_calls_of_transformers_write_to_a_model_is_no_change(tokenizer, tmp_path):
    """Hooks for hidden states, the longest text that dynamic rotary embeddings have read, what a
    saved config names, a setting of training."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    safe = tiny_llama(1, rope_parameters=rope).float()
    pair = ModelPair(safe, tiny_llama(2).float(), tokenizer)
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
