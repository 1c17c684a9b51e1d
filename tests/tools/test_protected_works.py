"""The protected works: sixteen, short, ASCII, distinct from each other and from the corpus."""

import re
from collections import Counter
from itertools import combinations

import pytest

from anchored.tools.quickstart.documents import SpanIndex
from anchored.tools.quickstart.protected_works import WORKS_FOLDER, read_works

WORKS = read_works()


def spans(text: str, num_words: int) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1)]


def test_there_are_sixteen_works_with_distinct_titles():
    assert len({work.title for work in WORKS}) == 16
    assert [work.id[:2] for work in WORKS] == [f"{number:02d}" for number in range(1, 17)]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.id)
def test_a_work_is_250_to_400_words_of_ascii(work):
    assert 250 <= len(work.body.split()) <= 400
    assert work.text.isascii()
    assert "\t" not in work.text


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.id)
def test_a_work_hardly_repeats_itself(work):
    repeated = [span for span, count in Counter(spans(work.text, 5)).items() if count > 1]
    assert repeated == []


def test_no_two_works_share_a_span_of_six_words():
    for one, other in combinations(WORKS, 2):
        assert not set(spans(one.text, 6)) & set(spans(other.text, 6)), (one.id, other.id)


def test_no_work_occurs_in_the_gathered_corpus(corpus):
    index = SpanIndex()
    for source in (*corpus.sources, corpus.extra):
        for document in (*source.documents, *source.heldout):
            index.add(document.text)
    assert {work.id: index.overlap_fraction(work.text) for work in WORKS} == {
        work.id: 0.0 for work in WORKS
    }


def test_the_dedication_lies_beside_the_works():
    assert "CC0 1.0" in (WORKS_FOLDER / "README.md").read_text()


@pytest.mark.parametrize("text", ["One line\nand another.\n\nMore.\n", "A title alone\n"])
def test_a_work_without_title_or_text_is_refused(tmp_path, text):
    (tmp_path / "01-bare.txt").write_text(text)
    with pytest.raises(ValueError, match=r"01-bare\.txt must be a title, a blank line and a text"):
        read_works(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no protected works"):
        read_works(tmp_path)
