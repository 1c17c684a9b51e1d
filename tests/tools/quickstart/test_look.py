"""The first look: texts of both models and the pair, what is recited, and what is proved."""

import math
import re

import pytest
from tiny_models import tiny_llama

from anchored import Decoder, ModelPair, Pathwise, RiskyOnly, SafeOnly
from anchored.tools.quickstart import look
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

NO_BRACKETS = str.maketrans("", "", "[]")


def test_the_texts_are_those_of_generate_and_the_line_is_what_the_ledger_proves(tokenizer, capsys):
    models = [tiny_llama(seed, max_position_embeddings=512) for seed in (1, 2)]
    pair, works = ModelPair(*models, tokenizer), read_works()
    look.show(pair, works)
    shown = capsys.readouterr().out
    wrapped = "".join(shown.translate(NO_BRACKETS).split())
    (work,) = cut_prompts(works[look.WORK :][:1])
    options = {"max_new_tokens": look.NUM_TOKENS, "temperature": 0.7, "seed": 1}
    for rule in (RiskyOnly(compared=False), SafeOnly(), Pathwise(k=1.0, bank=20.0)):
        (result,) = Decoder(pair, rule).generate(work.prompt, **options)
        assert "".join(result.text.translate(NO_BRACKETS).split()) in wrapped
    ledger = result.ledger
    assert f"spent {ledger.spent:.1f} of {ledger.header.bound:.1f} nats" in shown
    (most,) = re.findall(r"with a chance of at most (\S+)\.$", shown)
    decoder = Decoder(pair, SafeOnly())
    ids = decoder.level.encode_continuation(work.reference)[: look.NUM_TOKENS]
    (score,) = decoder.score([work.prompt], [ids], temperature=0.7, repetition_penalty=1.1)
    assert math.log(float(most)) == pytest.approx(score.log_prob + ledger.header.bound, abs=0.1)
