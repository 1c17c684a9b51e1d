"""What the caller has set around a call changes neither its results nor is it lost afterwards."""

import logging
from contextlib import ExitStack, contextmanager

import pytest
import torch
from tiny_models import tiny_gpt2, tiny_llama, train_tokenizer
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from anchored import Anchored, Decoder, ModelPair, verify, with_divergences
from anchored.decode import ambient
from anchored.decode.custom_generate import CustomGenerate
from anchored.decode.reference_decoder import anchored_decode, prefix_debt

TEXTS = ["the keeper of the lamp", "salt"]
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Doubling(TorchDispatchMode):
    """Adds up other products than asked for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        return (
            output * 2
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            else output
        )


class Rounding(TorchFunctionMode):
    """Rounds what softmax is taken of."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.log_softmax:
            args = (args[0].round(), *args[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def until_the_end(value, get, set_value):
    before = get()
    set_value(value)
    try:
        yield
    finally:
        set_value(before)


def default_dtype(dtype):
    return until_the_end(dtype, torch.get_default_dtype, torch.set_default_dtype)


@contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def precision(value):
    get, set_value = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return until_the_end(value, get, set_value)


def deterministic():
    get = torch.are_deterministic_algorithms_enabled
    return until_the_end(True, get, torch.use_deterministic_algorithms)


@contextmanager
def several():
    with ExitStack() as stack:
        for name in (
            "autocast",
            "default dtype bfloat16",
            "default device meta",
            "a dispatch mode",
        ):
            stack.enter_context(STATES[name]())
        yield


STATES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", torch.float16),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default device meta": lambda: default_device("meta"),
    "device meta": lambda: torch.device("meta"),
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "a dispatch mode": Doubling,
    "a function mode": Rounding,
    "matmul precision": lambda: precision("medium"),
    "deterministic": deterministic,
    "inference": torch.inference_mode,
    "no inference": lambda: torch.inference_mode(False),
    "no gradients": torch.no_grad,
    "several": several,
}


def torch_state():
    """All that the states above set."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        tuple(map(id, _get_current_function_mode_stack())),
        tuple(map(id, _get_current_dispatch_mode_stack())),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        len(torch_module._global_forward_hooks),
    )


TOKENIZER = train_tokenizer()
MODELS = {
    "lean": lambda: (tiny_llama(1).float(), tiny_llama(2, layers=3).float()),
    "modules": lambda: (tiny_gpt2(1).float(), tiny_gpt2(2).float()),
}


@pytest.fixture(scope="module", params=MODELS)
def models(request):
    return MODELS[request.param]()


def outcomes(models, state):
    """By public call, what it gives while the state is set; calls that take turns leave it."""
    made = {}

    def during(name, call):
        with state():
            before = torch_state()
            made[name] = call()
            assert torch_state() == before, name
        return made[name]

    pair = during("pair", lambda: ModelPair(*models, TOKENIZER))
    made["pair"] = pair.row_attention, pair.decodes_alone, pair.fingerprints
    decoder = during("decoder", lambda: Decoder(pair, Anchored(k=1.0)))
    made["decoder"] = decoder.level.name
    several = {"max_new_tokens": 6, "temperature": 0.9, "num_return_sequences": 2}
    results = during("generate", lambda: decoder.generate(TEXTS, **several))
    during("each", lambda: list(decoder.generate_each(TEXTS, **several)))
    ledger = results[0].ledger
    for name, call in {
        "speculate": lambda: Decoder(pair, Anchored(k=1.0), speculate=2).generate(TEXTS, **several),
        "bytes": lambda: Decoder(pair, Anchored(k=1.0), level="byte").generate(
            TEXTS[1], max_new_bytes=4
        ),
        "score": lambda: decoder.score(TEXTS, [" of rain", " and"]),
        "ratios": lambda: [
            ratios.tolist() for ratios in decoder.prompt_ratios(TEXTS).by_prompt.values()
        ],
        "divergences": lambda: with_divergences(ledger, pair),
    }.items():
        during(name, call)
    assert during("verify", lambda: verify(ledger, pair))
    stream = during("stream", lambda: decoder.stream(TEXTS[0], max_new_tokens=5))
    made["stream"] = [during(f"piece {index}", lambda: next(stream)) for index in range(5)]
    with state():
        custom = CustomGenerate(decoder, seed=3)
    inputs = TOKENIZER(TEXTS[0], return_tensors="pt")
    asked = {"do_sample": True, "max_new_tokens": 5, "pad_token_id": 1}
    made["custom"] = pair.risky.generate(
        **inputs, custom_generate=lambda *a, **b: inside(state, custom, a, b), **asked
    ).tolist()
    tokens = inputs["input_ids"][0].tolist()
    made["debt"] = during("debt", lambda: prefix_debt(models, tokens, [0, 1, 2]))
    steps = during(
        "reference",
        lambda: anchored_decode(models, tokens, K=4.0, max_new_tokens=3, key=7, stop_token_ids=[1]),
    )
    made["reference"] = [
        (step.token_id, step.spend, step.log_probs.tolist())
        for step in (during(f"step {index}", lambda: next(steps)) for index in range(2))
    ]
    return {name: value for name, value in made.items() if not name.startswith("step")}


def inside(state, call, args, kwargs):
    with state():
        return call(*args, **kwargs)


@pytest.fixture(scope="module")
def expected(models):
    return outcomes(models, ExitStack)


@pytest.mark.parametrize("name", STATES)
def test_a_state_around_a_call_changes_no_result(name, models, expected):
    results = outcomes(models, STATES[name])
    assert results.keys() == expected.keys()
    for call, value in results.items():
        assert value == expected[call], call


@pytest.mark.parametrize("name", STATES)
def test_a_state_between_pieces_and_after_errors_is_the_caller_s(name, models):
    pair = ModelPair(*models, TOKENIZER)
    decoder = Decoder(pair, Anchored(k=1.0))
    with STATES[name]():
        before = torch_state()
        each = decoder.generate_each(TEXTS, max_new_tokens=3)
        stream = decoder.stream(TEXTS[0], max_new_tokens=3)
        next(each), next(stream)
        assert torch_state() == before
        each.close()
        with pytest.raises(ValueError, match="temperature"):
            decoder.generate(TEXTS, temperature=-1.0)
        with pytest.raises(ValueError, match="two models"):
            raising = pair.safe.register_forward_pre_hook(fails)
            try:
                ModelPair(*models, TOKENIZER)
            finally:
                raising.remove()
        assert torch_state() == before


def fails(module, given):
    raise ValueError("two models")


def test_steps_that_a_default_dtype_cannot_count_have_the_same_budgets():
    """bfloat16 has no 257, float16 no 2,049: a step is a number that a budget follows from."""
    sizes = {"max_position_embeddings": 512}
    pair = ModelPair(tiny_llama(1, **sizes).float(), tiny_llama(2, **sizes).float(), TOKENIZER)
    decoder, several = Decoder(pair, Anchored(k=0.1)), {"max_new_tokens": 300, "temperature": 1.2}
    expected = decoder.generate(TEXTS * 4, **several)
    assert max(len(generation.token_ids) for generation in expected) > 257
    with default_dtype(torch.bfloat16):
        assert decoder.generate(TEXTS * 4, **several) == expected


def test_modes_that_see_nothing_are_named_once(models, caplog):
    ambient._say_unseen.cache_clear()
    pair = ModelPair(*models, TOKENIZER)
    with caplog.at_level(logging.WARNING), FlopCounterMode(display=False) as counter:
        stream = Decoder(pair, Anchored(k=1.0)).stream(TEXTS[0], max_new_tokens=3)
        assert len(list(stream)) == 3
    (line,) = caplog.messages
    assert line.startswith("FlopCounterMode sees nothing of what is computed here")
    assert counter.get_total_flops() == 0


def test_threads_that_overlap_share_one_plain_state():
    """The dtype is one for all threads: the last that leaves brings it back."""
    with default_dtype(torch.bfloat16):
        first, second = ambient.plain_torch(), ambient.plain_torch()
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.bfloat16


def test_a_hook_for_all_modules_is_refused_by_name(models):
    def halves(module, given, output):
        return output

    decoder = Decoder(ModelPair(*models, TOKENIZER), Anchored(k=1.0))
    handle = torch_module.register_module_forward_hook(halves)
    try:
        for call in (
            lambda: decoder.generate(TEXTS, max_new_tokens=2),
            lambda: ModelPair(*models, TOKENIZER),
        ):
            with pytest.raises(ValueError, match=r"a hook of all modules, .*halves.*remove"):
                call()
    finally:
        handle.remove()
    assert decoder.generate(TEXTS[0], max_new_tokens=2)[0].text is not None
