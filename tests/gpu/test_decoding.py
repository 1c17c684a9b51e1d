"""Whole decoders on a GPU: batches, ledgers, drafts, bytes, and how often the host waits."""

import copy
import warnings

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, verify
from anchored.decode.decoder import choose_level
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.rules.rule import takes_passage
from anchored.decode.settings import SamplingConfig
from anchored.tools.bench.decode import bench_rules
from anchored.tools.bench.inputs import random_pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

KL, MAX = Anchored(k=0.5), Anchored(k=0.5, divergence="max")
RULES = pytest.mark.parametrize("rule", [KL, MAX], ids=["kl", "max"])
BYTE_PROMPT = b"It's the keeper's"
MOST_BYTE_WAITS = 6
"""Most waits of the host for a byte of one row: five were counted, six leave one for a boundary."""
NUM_COUNTED = 16
"""Tokens or bytes over which waits are counted."""
LATER = 100
"""Positions of batches whose waits are counted: more than are reached."""


DEVICE = torch.device("cuda", 0)
VOCAB_SIZE = 2048
PROMPT_LENGTHS = (3, 17, 40) * 3
"""Unlike, and more than rows, so that requests join and leave."""


def made(dtype: torch.dtype) -> ModelPair:
    """A pair of random weights on the device."""
    shape = {"vocab_size": VOCAB_SIZE, "context_length": 128, "dtype": dtype}
    return on_device(random_pair("tiny", "small", **shape))


def on_device(pair: ModelPair) -> ModelPair:
    safe, risky = (copy.deepcopy(model).to(DEVICE) for model in pair.models.values())
    return ModelPair(safe, risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


def generated(pair, rule, batch_size, speculate="off"):
    decoder = Decoder(pair, rule, level="token", batch_size=batch_size, speculate=speculate)
    return decoder.generate(prompts(), max_new_tokens=12, seed=list(range(len(PROMPT_LENGTHS))))


def num_equal(results, others) -> int:
    return sum(one.token_ids == other.token_ids for one, other in zip(results, others, strict=True))


@RULES
def test_tokens_do_not_depend_on_the_batch_and_ledgers_verify(rule):
    """In float64; a replay by both models agrees with the first ledger."""
    pair = made(torch.float64)
    alone, together = (generated(pair, rule, batch_size) for batch_size in (1, 2))
    assert num_equal(alone, together) == len(PROMPT_LENGTHS)
    assert all(result.ledger.certified for result in together)
    assert all(result.ledger.is_within_bound for result in together)
    report = verify(together[0].ledger, pair)
    assert report.is_ok, report


@RULES
def test_drafted_tokens_are_the_plain_ones_and_ledgers_verify(rule):
    """Float32 models, so one request of all may meet a boundary that rounding decides."""
    pair = made(torch.float32)
    plain = generated(pair, rule, 2)
    drafted = generated(pair, rule, 2, 3)
    assert num_equal(plain, drafted) >= len(plain) - 1
    for result in drafted:
        report = verify(result.ledger, pair)
        assert report.is_ok, report


def word_pair() -> ModelPair:
    """Models of 40 words that end texts here and there; two stop tokens are merged."""
    safe, risky = (tiny_llama(seed, vocab_size=40) for seed in (1, 2))
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 0.5
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe, risky, word_tokenizer(40))


CALLS = {
    "clipped": (MAX, {}),
    "drafted": (KL, {"speculate": 3}),
    "truncated": (KL, {"top_p": 0.9, "top_k": 20, "min_p": 0.01}),
    "greedy": (KL, {"temperature": 0.0}),
    "the safe model alone": (SafeOnly(), {}),
    "both models": (RiskyOnly(), {}),
}
METHODS = bench_rules(k=0.5, horizon=4, passages=["t5 t6 t7 t8 t9"], words=["t5", "t6", "t9"])
WORDS = [[5, 6, 7], [8, 9], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        *(pytest.param(*call, id=name) for name, call in CALLS.items()),
        *(pytest.param(rule, {}, id=n) for n, rule in METHODS.items()),
    ],
)
def test_every_call_gives_the_ledgers_and_the_scores_of_the_cpu(rule, settings):
    """Float64 models; both projections use their budgets up to 1e-5."""
    pairs = word_pair(), on_device(word_pair())
    asked = {"passages": "t5 t7 t9"} if takes_passage(rule) else {}
    sampling = {"temperature": 1.0, "repetition_penalty": 1.3} | settings
    drafts = sampling.pop("speculate", "off")
    expected, actual = (
        Decoder(pair, rule, batch_size=2, speculate=drafts).generate(
            WORDS, max_new_tokens=4, seed=[0, 1, 2], **asked, **sampling
        )
        for pair in pairs
    )
    for ours, plain in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.error) == (plain.token_ids, "")
        assert ours.ledger.certified == plain.ledger.certified
        for left, right in zip(ours.ledger.steps, plain.ledger.steps, strict=True):
            assert left.accepted == right.accepted
            for figure in ("budget", "spend", "weight", "log_prob", "safe_log_prob"):
                assert getattr(left, figure) == pytest.approx(getattr(right, figure), abs=2e-4)
    report = verify(actual[0].ledger, pairs[1])
    assert report.is_ok, report
    given = [result.token_ids for result in expected]
    scores = [Decoder(pair, rule).score(WORDS, given, **asked) for pair in pairs]
    for ours, plain in zip(*scores, strict=True):
        assert ours.token_log_probs == pytest.approx(plain.token_log_probs, abs=2e-4)


def test_bytes_are_those_of_the_cpu_and_their_spends_cover_the_divergence():
    """The Triton projection of 257 symbols; verification counts the divergence anew."""
    settings = {"max_new_bytes": 12, "seed": 3}
    on_cpu, there = tiny_byte_pair(), on_device(tiny_byte_pair())
    (expected,), (actual,) = (
        Decoder(pair, KL, level="byte").generate([list(BYTE_PROMPT)], **settings)
        for pair in (on_cpu, there)
    )
    assert actual.token_ids == expected.token_ids
    assert actual.ledger.certified and actual.ledger.is_within_bound
    report = verify(actual.ledger, there)
    assert report.is_ok, report


def opened_batch(pair: ModelPair, level_name: str, prompts: list[list[int]]) -> PairedBatch:
    """A batch that has read its prompts and drawn once."""
    level = choose_level(pair, level_name)
    rule = Anchored(k=0.3, debt="none").open(level)
    batch = PairedBatch(level, rule, SamplingConfig(), num_rows=len(prompts), max_length=2 * LATER)
    requests = [
        Request(prompt_token_ids=prompt, max_new_tokens=LATER, seed=index, index=index)
        for index, prompt in enumerate(prompts)
    ]
    batch.admit(requests)
    batch.step()
    return batch


def num_waits(work, num_times: int) -> int:
    """How often the host waited for the device in so many calls, as torch counts it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(num_times):
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in caught)


def test_the_host_waits_at_most_twice_for_a_token():
    """Once for what was drawn; a GPU's kernels are allowed twice."""
    batch = opened_batch(made(torch.float32), "token", prompts()[:2])
    assert 1 <= num_waits(batch.step, NUM_COUNTED) / NUM_COUNTED <= 2


def test_the_host_waits_a_few_times_for_a_byte():
    """Trees of tokens lie on the host: distributions are copied to it, and what was drawn."""
    pair = on_device(tiny_byte_pair())
    batch = opened_batch(pair, "byte", [list(BYTE_PROMPT)])
    assert 1 <= num_waits(batch.step, NUM_COUNTED) / NUM_COUNTED <= MOST_BYTE_WAITS
