"""One model alone: the other one does not run, and the ledger says so."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, word_tokenizer

from anchored import Decoder, ModelPair, RiskyOnly, SafeOnly, verify

ALONE = RiskyOnly(compared=False)
WORDS = 6
PROMPT = "t2 t3"


@pytest.fixture
def pair() -> ModelPair:
    models = (tiny_llama(seed, vocab_size=WORDS).double() for seed in (0, 1))
    return ModelPair(*models, word_tokenizer(WORDS))


def broken(model: torch.nn.Module) -> None:
    """Any forward of it raises."""

    def refuse(*_, **__):
        raise AssertionError("this model is not to run")

    model.forward = refuse
    model.model.forward = refuse


@pytest.mark.parametrize(("rule", "idle"), [(SafeOnly(), "risky"), (ALONE, "safe")], ids=str)
def test_the_other_model_never_runs(pair, rule, idle):
    expected = Decoder(pair, rule).generate([PROMPT, "t4"], max_new_tokens=8, temperature=1.0)
    broken(pair.models[idle])
    decoder = Decoder(pair, rule)
    results = decoder.generate([PROMPT, "t4"], max_new_tokens=8, temperature=1.0)
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    for result in results:
        assert getattr(result.ledger, f"{idle}_forwards") == 0
    (score,) = decoder.score([PROMPT], ["t3 t4"])
    assert not score.error


def test_another_token_or_a_made_up_log_probability_is_refused(pair):
    (result,) = Decoder(pair, ALONE).generate(PROMPT, max_new_tokens=6, temperature=1.0)
    ledger, step = result.ledger, result.ledger.steps[2]
    other = replace(step, token_id=5 - step.token_id)
    for forged in (other, replace(step, log_prob=-0.5), replace(step, safe_log_prob=-0.5)):
        steps = [*ledger.steps[:2], forged, *ledger.steps[3:]]
        assert not verify(replace(ledger, steps=steps), pair)


def test_bytes_of_one_model_alone():
    pair = deepcopy(tiny_byte_pair())
    broken(pair.safe)
    (result,) = Decoder(pair, ALONE, level="byte").generate("the keeper", max_new_bytes=8)
    assert len(result.token_ids) == 8 and result.ledger.safe_forwards == 0


def test_one_model_alone_does_not_speculate(pair):
    with pytest.raises(ValueError, match="the rule risky_only reads the risky model alone"):
        Decoder(pair, ALONE, speculate=2)
