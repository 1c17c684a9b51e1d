"""Decoding on a CUDA device that is not there: what CUDA would refuse, and tokens as on the CPU."""

import pytest
from fake_cuda import fake_cuda
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, verify
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.levels.level import TokenLevel
from anchored.decode.settings import SamplingConfig
from anchored.tools.bench.decode import bench_rules

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE_NATS = 5e-5
"""Float32 models; both projections use their budgets up to 1e-5."""

VOCAB_SIZE = 40
KL, MAX = Anchored(k=0.5), Anchored(k=0.5, divergence="max")
PROMPTS = [[5, 6, 7], [8, 9], [3, 4, 5, 6], [11], [12, 13, 14]]
FIGURES = ("budget", "spend", "weight", "log_prob", "safe_log_prob")


@pytest.fixture
def device():
    with fake_cuda(num_processors=1) as device:
        yield device


def word_pair(place: str) -> ModelPair:
    """Float32 models of 40 words that end texts here and there; two stop tokens are merged."""
    safe, risky = (tiny_llama(seed, vocab_size=VOCAB_SIZE).float() for seed in (1, 2))
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 0.5
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe.to(place), risky.to(place), word_tokenizer(VOCAB_SIZE))


def generated(pair, rule, prompts, *, batch_size, speculate="off", **settings):
    settings = {
        "max_new_tokens": 4,
        "temperature": 1.0,
        "seed": list(range(len(prompts))),
    } | settings
    decoder = Decoder(pair, rule, batch_size=batch_size, speculate=speculate)
    return decoder.generate(prompts, **settings)


def assert_same(expected, actual) -> None:
    for ours, plain in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.text) == (plain.token_ids, plain.text)
        assert (ours.finish_reason, ours.error) == (plain.finish_reason, plain.error)
        assert ours.ledger.certified and ours.ledger.is_within_bound
        assert ours.ledger.header.bound == pytest.approx(plain.ledger.header.bound, abs=1e-4)
        for left, right in zip(ours.ledger.steps, plain.ledger.steps, strict=True):
            assert (left.step, left.accepted) == (right.step, right.accepted)
            for figure in FIGURES:
                error = abs(getattr(left, figure) - getattr(right, figure))
                assert error < TOLERANCE_NATS * max(1, left.step), figure


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rule", "num_prompts", "drafts"),
    [(MAX, 1, "off"), (KL, 2, 3)],
)
def test_tokens_and_ledgers_are_those_of_the_cpu(device, rule, num_prompts, drafts):
    asked = PROMPTS[:num_prompts]
    expected = generated(word_pair("cpu"), rule, asked, batch_size=num_prompts)
    pair = word_pair("cuda")
    actual = generated(pair, rule, asked, batch_size=num_prompts, speculate=drafts)
    assert_same(expected, actual)
    assert device.launches["projection_kernel"] > 0
    assert num_prompts > 1 or verify(actual[0].ledger, pair).is_ok


CALLS = {
    "truncated": (KL, {"top_p": 0.9, "top_k": 20, "min_p": 0.01}),
    "greedy": (KL, {"temperature": 0.0}),
    "the safe model alone": (SafeOnly(), {}),
    "the risky model beside it": (RiskyOnly(), {}),
    "the risky model alone": (RiskyOnly(compared=False), {}),
}


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("rule", "settings"), CALLS.values(), ids=CALLS)
def test_calls_that_need_the_host_give_the_tokens_of_the_cpu(rule, settings):
    expected, actual = (
        generated(word_pair(place), rule, PROMPTS[:2], batch_size=2, **settings)
        for place in ("cpu", "cuda")
    )
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    assert not any(result.error for result in actual)


METHODS = bench_rules(k=0.5, horizon=4, passages=["t5 t6 t7 t8 t9"], words=["t5", "t6", "t9"])


@pytest.mark.slow
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rule", METHODS.values(), ids=METHODS)
def test_every_method_gives_the_tokens_of_the_cpu_and_verifies(rule):
    reads_a_passage = any(reading.takes_passage for reading in rule.streams.values())
    asked = {"passages": "t5 t7 t9"} if reads_a_passage else {}
    pairs = [word_pair(place) for place in ("cpu", "cuda")]
    expected, actual = (
        generated(pair, rule, PROMPTS[:2], batch_size=2, repetition_penalty=1.3, **asked)
        for pair in pairs
    )
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    assert all(verify(result.ledger, pairs[1]).is_ok for result in actual)


@pytest.mark.usefixtures("device")
def test_scores_are_those_of_the_cpu():
    expected, actual = (
        Decoder(word_pair(place), KL).score(PROMPTS[:2], [[5, 9], [7, 6, 4]])
        for place in ("cpu", "cuda")
    )
    for ours, plain in zip(actual, expected, strict=True):
        assert ours.token_log_probs == pytest.approx(plain.token_log_probs, abs=TOLERANCE_NATS)
        assert ours.spends == pytest.approx(plain.spends, abs=TOLERANCE_NATS)


def asked(num_rows: int) -> list[Request]:
    return [
        Request(prompt_token_ids=PROMPTS[row], max_new_tokens=20, seed=row, index=row)
        for row in range(num_rows)
    ]


@pytest.mark.parametrize("num_rows", [1, 2])
def test_an_eager_token_waits_once_and_a_prompt_for_its_debt(device, num_rows):
    level, sampling = TokenLevel(word_pair("cuda")), SamplingConfig(temperature=1.0)
    batch = PairedBatch(level, KL, sampling, num_rows=2, max_length=40)
    with device.counted() as waits:
        batch.admit(asked(num_rows))
    assert waits.total() <= 5 * 2, waits
    batch.step()
    with device.counted() as waits:
        for _ in range(3):
            batch.step()
    assert waits.total() == 3
