"""Scores of many continuations at once: horizons, prompts that are read once."""

import math

import pytest

from anchored import Anchored, Decoder, Pathwise
from anchored.decode.streams.row_stream import RowStream

PROMPTS = ["the keeper of", "Nine tides", "the keeper of", "the keeper of"]
CONTINUATIONS = [" the lamp", " ago, the harbour bell", " salt", " every wave into a ledger"]


@pytest.mark.parametrize("rule", [Anchored(k=1.0, budget="global"), Pathwise(bank=2.0)], ids=str)
def test_continuations_of_other_horizons_are_scored_together(pair, rule):
    decoder = Decoder(pair, rule, batch_size=3)
    lengths = [len(pair.encode_continuation(text)) + 2 for text in CONTINUATIONS]
    together = decoder.score(PROMPTS, CONTINUATIONS, horizon=lengths)
    for prompt, text, horizon, score in zip(PROMPTS, CONTINUATIONS, lengths, together, strict=True):
        (alone,) = decoder.score(prompt, text, horizon=horizon)
        assert (score.horizon, score.K) == (horizon, alone.K)
        assert score.token_log_probs == pytest.approx(alone.token_log_probs, abs=1e-9)
    with pytest.raises(ValueError, match="horizon must be >= 1, got 0"):
        decoder.score("a", "b", horizon=0)
    with pytest.raises(ValueError, match="has 2 tokens, the horizon is 1"):
        decoder.score(["a", "b"], [[5], [5, 6]], horizon=[1, 1])


def test_equal_prompts_of_a_batch_are_read_once(pair, monkeypatch):
    read = []
    original_read = RowStream.read

    def counted(stream, prompts, rows):
        read.append([pair.tokenizer.decode(p, skip_special_tokens=True) for p in prompts])
        return original_read(stream, prompts, rows)

    monkeypatch.setattr(RowStream, "read", counted)
    Decoder(pair, Anchored(k=0.5)).score(PROMPTS, CONTINUATIONS)
    assert len(read) == 2 and all(
        sorted(texts) == ["Nine tides", "the keeper of"] for texts in read
    )


def test_the_last_token_of_a_text_may_come_after_the_context(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    (score,) = decoder.score([[5] * 120], [[6] * 9])
    assert len(score.token_log_probs) == 9
    with pytest.raises(ValueError, match="exceeds the pair's context of 128"):
        decoder.score([5] * 120, [6] * 10)


@pytest.mark.parametrize("rule", [Anchored(k=0.3, debt="none"), Pathwise()], ids=lambda r: r.name)
def test_exactly_the_likeliest_token_is_greedy(pair, rule):
    tokens = [[token] for token in range(3, pair.vocab_size)]
    decoder = Decoder(pair, rule, batch_size=64)
    scores = decoder.score([PROMPTS[0]] * len(tokens), tokens)
    likeliest = max(range(len(tokens)), key=lambda place: scores[place].log_prob)
    assert [place for place, score in enumerate(scores) if score.is_greedy] == [likeliest]


def test_what_follows_a_token_that_cannot_be_drawn_gives_nothing_back(pair):
    """Its text is infinitely unlikely, so its account is closed."""
    decoder = Decoder(pair, Pathwise(k=1.0, bank=2.0, debt="none"))
    (drawn,) = decoder.generate(PROMPTS[0], max_new_tokens=6, top_k=8, temperature=1.0)
    (score,) = decoder.score(PROMPTS[0], drawn.token_ids, top_k=8, repetition_penalty=1.1)
    assert score.spends == pytest.approx([s.spend for s in drawn.ledger.steps], abs=1e-8)
    other = next(token for token in range(3, 320) if token not in drawn.token_ids)
    tokens = [*drawn.token_ids[:2], other, *drawn.token_ids[2:5]]
    (score,) = decoder.score(PROMPTS[0], tokens, top_k=8, repetition_penalty=1.1)
    assert score.log_prob == -math.inf and score.token_log_probs[2] == -math.inf
    assert score.spends[:2] == pytest.approx([s.spend for s in drawn.ledger.steps[:2]], abs=1e-8)
    assert score.spends[2:] == [0.0] * 4 and not score.error


@pytest.mark.parametrize("level", ["token", "byte"])
def test_an_empty_continuation_has_the_probability_one(pair, level):
    decoder = Decoder(pair, Anchored(k=1.0), level=level)
    empty, some = decoder.score(["salt", "salt"], ["", " and"])
    assert empty.log_prob == 0.0 == empty.spend and empty.is_greedy and not empty.error
    (alone,) = decoder.score("salt", " and", horizon=empty.horizon)
    assert some.log_prob == pytest.approx(alone.log_prob, abs=1e-6)
