"""A stream has the ledger of what it has drawn, also one that is broken off; so have batches."""

import pytest

from anchored import Anchored, AnchoredError, Decoder, Ledger, verify
from anchored.decode.engine.request import RequestState
from anchored.decode.tokenizer.text import TextStream

PROMPT = "the keeper of the lamp"
SETTINGS = {"max_new_tokens": 12, "temperature": 1.2, "seed": 3}
DECODERS = [{}, {"speculate": 3}, {"level": "byte"}]


@pytest.mark.parametrize("changes", DECODERS, ids=str)
def test_an_exhausted_stream_has_the_ledger_of_generate(pair, changes):
    pieces = Decoder(pair, Anchored(k=0.5), **changes).stream(PROMPT, **SETTINGS)
    with pytest.raises(AnchoredError, match="has its ledger from the first piece on"):
        _ = pieces.ledger
    drawn = list(pieces)
    # Another decoder: this one would remember the bytes of the prompt, and count less work.
    (generated,) = Decoder(pair, Anchored(k=0.5), **changes).generate(PROMPT, **SETTINGS)
    ledger = pieces.ledger
    assert ledger == generated.ledger
    assert [piece.spend for piece in drawn] == [step.spend for step in ledger.steps]
    assert "".join(piece.text for piece in drawn) == generated.text
    assert verify(ledger, pair).is_ok
    assert list(pieces) == []


@pytest.mark.parametrize("changes", DECODERS, ids=str)
def test_a_stream_that_is_broken_off_has_the_ledger_of_what_was_drawn(pair, tmp_path, changes):
    pieces = Decoder(pair, Anchored(k=0.5), **changes).stream(PROMPT, **SETTINGS)
    drawn = [next(pieces) for _ in range(3)]
    pieces.close()
    assert list(pieces) == []
    generation, ledger = pieces.generation, pieces.ledger
    assert generation.finish_reason == ledger.finish_reason == "aborted" and ledger.certified
    assert generation.token_ids[:3] == [piece.token_id for piece in drawn]
    assert len(generation.pieces) == len(ledger.steps) < 48
    assert generation.text.startswith("".join(piece.text for piece in drawn))
    ledger.save(tmp_path / "ledger.jsonl")
    assert verify(Ledger.load(tmp_path / "ledger.jsonl"), pair).is_ok


@pytest.mark.parametrize("changes", DECODERS[:2], ids=str)
@pytest.mark.parametrize(
    ("owner", "name", "count", "is_after"),
    [
        (RequestState, "append", 4, True),
        (TextStream, "push", 4, True),
        (TextStream, "finish", 1, False),
    ],
)
def test_an_interrupt_anywhere_in_a_step_leaves_a_ledger_that_verifies(
    pair, monkeypatch, owner, name, count, is_after, changes
):
    """As Ctrl-C does."""
    method, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(1)
        result = method(*args, **kwargs) if is_after or len(calls) != count else None
        if len(calls) == count:
            raise KeyboardInterrupt
        return result

    pieces = Decoder(pair, Anchored(k=0.5), **changes).stream(PROMPT, **SETTINGS)
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(pieces)
    generation = pieces.generation
    assert 3 <= len(generation.token_ids) == len(generation.pieces)
    assert verify(generation.ledger, pair).is_ok, verify(generation.ledger, pair)
    assert list(pieces) == []


def test_generations_that_are_dropped_midway_have_ledgers_of_what_was_drawn(pair):
    prompts = [PROMPT, "salt", "import math"]
    decoder = Decoder(pair, Anchored(k=0.5), batch_size=2)
    results = decoder.generate_each(prompts, max_new_tokens=[2, 9, 9], seed=1)
    assert results.aborted == []
    taken, _ = next(results)
    results.close()
    assert list(results) == [] and taken == 0
    aborted = dict(results.aborted)
    assert taken not in aborted and aborted
    for index, generation in aborted.items():
        assert generation.finish_reason == "aborted"
        (whole,) = decoder.generate(prompts[index], max_new_tokens=9, seed=1)
        assert generation.token_ids == whole.token_ids[: len(generation.token_ids)]
        assert verify(generation.ledger, pair).is_ok
    assert dict(results.aborted) == aborted
