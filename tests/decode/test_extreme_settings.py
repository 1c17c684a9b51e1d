"""Settings and models at the ends of numbers: a request decodes within its bound or fails alone."""

import pytest
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, ModelPair, verify

PROMPTS = ["the keeper of the lamp", "salt"]


@pytest.fixture(scope="module")
def float32_pair(tokenizer) -> ModelPair:
    return ModelPair(tiny_llama(1).float(), tiny_llama(2, layers=3).float(), tokenizer)


@pytest.mark.parametrize("divergence", ["kl", "max"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-20},
        {"temperature": 1e-6},
        {"temperature": 1e300},
        {"repetition_penalty": 1e300},
    ],
    ids=str,
)
def test_what_is_still_a_distribution_decodes(float32_pair, settings, divergence):
    decoder = Decoder(float32_pair, Anchored(k=1.0, divergence=divergence))
    for result in decoder.generate(PROMPTS, max_new_tokens=5, **settings):
        assert result.ledger.certified and result.ledger.is_within_bound
        assert verify(result.ledger, float32_pair).is_ok


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-38}, {"temperature": 5e-324}, {"repetition_penalty": 1e-300}]
)
def test_what_overflows_fails_with_a_message(float32_pair, settings):
    results = Decoder(float32_pair, Anchored(k=1.0)).generate(PROMPTS, max_new_tokens=5, **settings)
    for result in results:
        assert result.error.endswith("the warped logits at step 0 are not finite")
        assert not result.ledger.certified
