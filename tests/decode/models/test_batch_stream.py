"""Left-padded batches: read in chunks, and once."""

import torch
from tiny_models import tiny_llama

from anchored.decode.models.stream import BatchStream

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14]]


def read(num_rows: int = 3):
    stream = BatchStream(tiny_llama(1).eval(), num_rows, vocab_size=320)
    return stream, stream.read(PROMPTS, [0, 1, 2])


def test_chunks_give_what_one_forward_gives(monkeypatch):
    _, whole = read()
    monkeypatch.setattr("anchored.decode.models.stream.CHUNK_LOGITS", 3 * 320 * 2)
    _, chunked = read()
    assert (whole.num_forwards, chunked.num_forwards) == (1, 4)
    torch.testing.assert_close(chunked.logits, whole.logits)
    assert [len(row) for row in chunked.token_log_probs] == [6, 1, 0]
    for actual, expected in zip(chunked.token_log_probs, whole.token_log_probs, strict=True):
        torch.testing.assert_close(actual, expected)
