"""The text that the safe model made here reads, and what is held out of it."""

import re

import pytest

from anchored.tools.quickstart.corpus import MIN_CHARS, Source, gather, read_sources

MAX_BYTES = 60_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Source]:
    folder = tmp_path_factory.mktemp("corpus")
    gather(folder, max_bytes=MAX_BYTES)
    return read_sources(folder)


def test_sources_hold_as_much_text_as_was_asked_and_say_where_it_is_from(sources):
    assert [source.name for source in sources] == ["docstrings", "topics"]
    for source in sources:
        size = sum(len(text.encode()) for text in (*source.texts, *source.heldout))
        assert MAX_BYTES <= size < 2 * MAX_BYTES
        assert min(map(len, source.texts)) >= MIN_CHARS
        assert re.fullmatch(r"\w+ 3\.\d+\.\d+\S*", source.revision)


def test_held_out_texts_are_the_same_ones_of_a_longer_corpus(sources, tmp_path, monkeypatch):
    held_out = {text for source in sources for text in source.heldout}
    assert held_out
    gather(tmp_path, max_bytes=2 * MAX_BYTES)
    longer = read_sources(tmp_path)
    assert held_out <= {text for source in longer for text in source.heldout}
    assert not held_out & {text for source in longer for text in source.texts}
    assert all(set(a.texts) <= set(b.texts) for a, b in zip(sources, longer, strict=True))
