"""Generation and scoring on tiny float64 pairs, whatever the models say.

Tests of a `case` hold at token and at byte level.
"""

import logging
import math
from dataclasses import dataclass, replace

import byte_pairs
import pytest
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama

from anchored import Anchored, AnchoredError, Decoder, ModelPair, Pathwise, RiskyOnly, verify

PROMPTS = [
    "the keeper of the lamp",
    "import math",
    "Nine tides ago, the harbour bell rang twice; nobody had pulled its rope.",
    "salt",
    "def area(radius):",
]


@dataclass(frozen=True)
class Case:
    """What is decoded, and how much of it."""

    pair: ModelPair
    prompts: list[str]
    length: dict[str, int]


@pytest.fixture(params=["token", "byte"])
def case(request, pair) -> Case:
    if request.param == "token":
        return Case(pair, PROMPTS, {"max_new_tokens": 8})
    return Case(tiny_byte_pair(), byte_pairs.PROMPTS, {"max_new_bytes": 8})


def test_symbols_and_debt_are_the_same_alone_and_in_any_batch(case):
    seeds, ks = [3, 1, 4, 1, 5], [0.0, 0.5, 1.0, 2.0, 50.0]
    decoder = Decoder(case.pair, Anchored(k=9.0), batch_size=3)
    together = decoder.generate(case.prompts, seed=seeds, k=ks, **case.length)
    for prompt, seed, k, result in zip(case.prompts, seeds, ks, together, strict=True):
        (alone,) = Decoder(case.pair, Anchored(k=k)).generate(prompt, seed=seed, **case.length)
        assert alone.token_ids == result.token_ids and alone.text == result.text
        assert alone.ledger.header.K == result.ledger.header.K
        assert alone.ledger.header.debt == pytest.approx(result.ledger.header.debt, abs=1e-9)


def test_greedy_decoding_ignores_seeds_certifies_nothing_and_warns_once(case, caplog):
    decoder = Decoder(case.pair, Anchored(k=0.5))
    with caplog.at_level(logging.WARNING):
        results = decoder.generate(case.prompts, temperature=0.0, **case.length)
    assert not any(result.ledger.certified for result in results)
    assert sum("temperature 0" in message for message in caplog.messages) == 1
    again = decoder.generate(case.prompts, temperature=0.0, seed=99, **case.length)
    assert [result.token_ids for result in results] == [result.token_ids for result in again]


def test_a_result_says_what_its_text_means_in_one_line(pair):
    decoder = Decoder(pair, Pathwise(k=0.5, bank=3))
    (result, *_) = decoder.generate(PROMPTS[0], max_new_tokens=4, num_return_sequences=3)
    bound = result.ledger.header.bound
    assert result.ledger.total_bound == 3 * bound > 0.0
    assert f"(in total {3 * bound:.4g})" in str(result)
    log_ratio = sum(step.log_prob - step.safe_log_prob for step in result.ledger.steps)
    times = f"{math.exp(log_ratio):.3g} times as likely as from the safe model"
    assert log_ratio != 0.0 and str(result).endswith(f", certified, {times}")
    assert str(result).startswith("K=5 (3 + k=0.5 x 4) debt=")


def test_a_row_with_nan_logits_fails_alone_and_the_request_that_joins_it_is_sound(tokenizer):
    broken = tiny_llama(2)
    (token, *_) = set(tokenizer("salt")["input_ids"]) - set(tokenizer("import math")["input_ids"])
    broken.model.embed_tokens.weight.data[token] = math.nan
    decoder, healthy = (
        Decoder(ModelPair(tiny_llama(1), risky, tokenizer), Anchored(k=1.0), batch_size=2)
        for risky in (broken, tiny_llama(2))
    )
    texts = ["salt salt salt salt", "import math import math import math", "import", "math"]
    failed, *others = decoder.generate(texts, max_new_tokens=4, top_k=3)
    assert failed.error.startswith("request 0: the risky model's logits over the prompt")
    assert failed.finish_reason == "error" and not failed.ledger.certified
    for text, result in zip(texts[1:], others, strict=True):
        (expected,) = healthy.generate(text, max_new_tokens=4, top_k=3)
        assert not result.error and result.token_ids == expected.token_ids
    pieces = decoder.stream("salt", max_new_tokens=3)
    with pytest.raises(AnchoredError, match="the risky model's logits"):
        list(pieces)
    assert not pieces.ledger.certified and pieces.ledger.finish_reason == "error"


def test_a_certified_text_has_a_temperature_that_its_dtype_can_verify(tokenizer):
    models, least = (tiny_llama(n, layers=n + 1).bfloat16() for n in (1, 2)), 0.094
    pair = ModelPair(*models, tokenizer)
    decoder, length = Decoder(pair, Anchored(k=1.0)), {"max_new_tokens": 2}
    with pytest.raises(ValueError, match=f"temperature must be at least {least:.2g} for a"):
        decoder.generate(PROMPTS[0], temperature=0.9 * least, **length)
    assert Decoder(pair, RiskyOnly()).generate(PROMPTS[0], temperature=1e-4, **length)
    (result,) = decoder.generate(PROMPTS[0], temperature=1.02 * least, **length)
    assert result.ledger.certified and verify(result.ledger, pair)
    sampling = result.ledger.header.sampling | {"temperature": 0.9 * least}
    forged = replace(result.ledger, header=replace(result.ledger.header, sampling=sampling))
    assert "temperature must be at least" in str(verify(forged, pair))


def test_a_k_next_to_a_rules_K_is_refused(pair):
    with pytest.raises(ValueError, match="has K=1 for a whole text"):
        Decoder(pair, Anchored(K=1.0)).generate(PROMPTS, max_new_tokens=5, k=50)
