"""The text that the safe model made here reads, and what is held out of it."""

import re

from anchored.tools.quickstart.corpus import MIN_CHARS, gather, read_sources

MAX_BYTES = 60_000


def test_sources_hold_what_was_asked_and_hold_out_the_same_texts_of_a_longer_corpus(tmp_path):
    for size in (MAX_BYTES, 2 * MAX_BYTES):
        gather(tmp_path / str(size), max_bytes=size)
    sources, longer = (read_sources(tmp_path / str(size)) for size in (MAX_BYTES, 2 * MAX_BYTES))
    assert [source.name for source in sources] == ["docstrings", "topics"]
    for source in sources:
        size = sum(len(text.encode()) for text in (*source.texts, *source.heldout))
        assert MAX_BYTES <= size < 2 * MAX_BYTES
        assert min(map(len, source.texts)) >= MIN_CHARS
        assert re.fullmatch(r"\w+ 3\.\d+\.\d+\S*", source.revision)
    held_out = {text for source in sources for text in source.heldout}
    assert held_out and held_out <= {text for source in longer for text in source.heldout}
    assert not held_out & {text for source in longer for text in source.texts}
    assert all(set(a.texts) <= set(b.texts) for a, b in zip(sources, longer, strict=True))
