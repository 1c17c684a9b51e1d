"""The bound on beginning with a reference: from the safe model's own probability of it."""

import math

import pytest
import torch
from byte_pairs import tiny_byte_pair

from anchored import Anchored, Decoder, RiskyOnly, SafeOnly, event_bound
from anchored.eval.copying.verbatim_bound import verbatim_bounds

PROMPTS = ["the keeper", "import"]
REFERENCES = [" of the lamp wrote every wave into a ledger", " math\n"]
SAMPLING = {"temperature": 0.9, "repetition_penalty": 1.2}


@pytest.mark.parametrize("divergence", ["kl", "max"])
def test_the_event_is_scored_by_the_safe_model_alone(pair, divergence):
    rule = Anchored(k=0.5, divergence=divergence, debt="none")
    results = Decoder(pair, rule).generate(PROMPTS, max_new_tokens=6, **SAMPLING)
    found = verbatim_bounds(pair, results, REFERENCES)
    for bound, prompt, reference in zip(found, PROMPTS, REFERENCES, strict=True):
        event = pair.encode_continuation(reference)[:6]  # of a text of 6 tokens
        log_prob, text = 0.0, pair.encode(prompt)
        for token_id in event:
            with torch.inference_mode():
                logits = pair.safe(torch.tensor([text])).logits[0, -1]
            logits, seen = logits.clone().double(), sorted(set(text))
            logits[seen] *= torch.where(logits[seen] > 0, 1 / 1.2, 1.2)
            log_prob += (logits / 0.9).log_softmax(-1)[token_id].item()
            text = [*text, token_id]
        assert bound.num_symbols == len(event)
        assert bound.safe_log_prob == pytest.approx(log_prob, abs=1e-4)
        assert bound.probability == event_bound(3.0, bound.safe_log_prob, divergence=divergence)
        assert math.exp(bound.safe_log_prob) <= bound.probability < 1.0


def test_it_holds_bytes_samples_and_rules_without_a_bound():
    pair = tiny_byte_pair()
    (result,) = Decoder(pair, SafeOnly()).generate(PROMPTS[:1], max_new_bytes=5)
    (bound,) = verbatim_bounds(pair, [result], REFERENCES[:1])
    assert (bound.num_symbols, bound.bound) == (5, 0.0)
    assert bound.probability == pytest.approx(math.exp(bound.safe_log_prob), rel=1e-2)
    (free,) = Decoder(pair, RiskyOnly()).generate(PROMPTS[:1], max_new_bytes=5)
    (none,) = verbatim_bounds(pair, [free], REFERENCES[:1])
    assert (none.bound, none.probability) == (math.inf, 1.0)


def test_what_does_not_fit_together_is_named(pair):
    decoder = Decoder(pair, SafeOnly())
    one, two = (decoder.generate(PROMPTS[:1], max_new_tokens=2, top_k=k)[0] for k in (0, 2))
    with pytest.raises(ValueError, match="got 1 generations and 2 references"):
        verbatim_bounds(pair, [one], REFERENCES)
    with pytest.raises(ValueError, match="of one level and one setting of warpers"):
        verbatim_bounds(pair, [one, two], REFERENCES)
    assert verbatim_bounds(pair, [], []) == []
