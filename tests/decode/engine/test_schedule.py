"""Rows join and leave a full batch; what a request gets does not depend on the others."""

from tiny_models import word_prompts

from anchored import Anchored, Decoder
from anchored.decode.engine.paired_batch import PairedBatch


def test_the_batch_stays_full_while_requests_wait(ending_pair, monkeypatch):
    occupied: list[int] = []
    step = PairedBatch.step
    monkeypatch.setattr(
        PairedBatch, "step", lambda batch: (occupied.append(len(batch.active_rows)), step(batch))[1]
    )
    decoder = Decoder(ending_pair, Anchored(k=1.0, debt="none"), batch_size=4)
    results = decoder.generate(word_prompts(12), seed=range(12), max_new_tokens=20, temperature=1.0)
    lengths = [len(result.token_ids) for result in results]
    assert len(lengths) == 12 and set(occupied[: -max(lengths)]) == {4}
    assert sum(occupied) == sum(lengths)


def test_the_bar_shows_tokens_per_second(pair, capfd):
    Decoder(pair, Anchored(k=1.0)).generate(word_prompts(3), max_new_tokens=4, progress="pair")
    shown = capfd.readouterr().err
    assert "pair" in shown and "3/3" in shown and "tokens/s" in shown
