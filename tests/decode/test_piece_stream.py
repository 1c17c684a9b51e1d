"""A stream gives its ledger once its last piece is drawn."""

import pytest

from anchored import Anchored, Decoder, verify

PROMPT = "the keeper of the lamp"
SETTINGS = {"max_new_tokens": 12, "temperature": 1.2, "seed": 3}


@pytest.mark.parametrize("changes", [{}, {"speculate": 3}, {"level": "byte"}], ids=str)
def test_an_exhausted_stream_has_the_ledger_of_generate_and_no_other_has_one(pair, changes):
    pieces = Decoder(pair, Anchored(k=0.5), **changes).stream(PROMPT, **SETTINGS)
    drawn = []
    for _ in range(3):
        with pytest.raises(RuntimeError, match="has its ledger after the last piece"):
            _ = pieces.ledger
        drawn.append(next(pieces))
    drawn += pieces
    # Another decoder: this one would remember the bytes of the prompt, and count less work.
    (generated,) = Decoder(pair, Anchored(k=0.5), **changes).generate(PROMPT, **SETTINGS)
    ledger = pieces.ledger
    assert ledger == generated.ledger
    assert [piece.spend for piece in drawn] == [step.spend for step in ledger.steps]
    assert "".join(piece.text for piece in drawn) == generated.text
    assert verify(ledger, pair).is_ok
    assert list(pieces) == []
