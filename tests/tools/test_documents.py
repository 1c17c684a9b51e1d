"""Cutting, comparing and splitting documents."""

from hypothesis import given
from hypothesis import strategies as st

from anchored.tools.quickstart.documents import (
    SPAN_WORDS,
    Document,
    SpanIndex,
    cut_documents,
    is_held_out,
)

PARAGRAPHS = st.lists(st.text(alphabet="ab ", min_size=1, max_size=30), min_size=1, max_size=12)


def cut(text: str, *, min_chars: int = 1, max_chars: int = 40) -> list[Document]:
    document = Document(id="a", text=text)
    return list(cut_documents([document], min_chars=min_chars, max_chars=max_chars))


@given(paragraphs=PARAGRAPHS)
def test_cutting_keeps_every_word_in_order(paragraphs):
    text = "\n\n".join(paragraphs)
    words = [word for piece in cut(text) for word in piece.text.split()]
    assert words == text.split()


@given(paragraphs=PARAGRAPHS)
def test_pieces_are_short_and_free_of_blank_edges(paragraphs):
    for piece in cut("\n\n\n".join(paragraphs)):
        assert len(piece.text) <= 40
        assert piece.text == piece.text.strip("\n")
        assert "\n\n\n" not in piece.text


def test_a_document_that_fits_keeps_its_name_and_a_cut_one_is_numbered():
    assert [d.id for d in cut("one\n\ntwo")] == ["a"]
    assert [d.id for d in cut("one\n\ntwo", max_chars=5)] == ["a#0", "a#1"]


def test_short_pieces_are_dropped():
    assert [d.text for d in cut("tiny\n\n" + "x" * 30, min_chars=10, max_chars=31)] == ["x" * 30]


def test_indentation_survives_and_trailing_spaces_go():
    assert cut("def f():  \n\n    pass\t\n")[0].text == "def f():\n\n    pass"


def test_overlap_is_the_share_of_spans_seen_before():
    words = [f"w{i}" for i in range(2 * SPAN_WORDS)]
    index = SpanIndex()
    index.add(" ".join(words[: SPAN_WORDS + 1]))  # two spans of the nine below
    assert index.overlap_fraction(" ".join(words)) == 2 / (SPAN_WORDS + 1)


def test_overlap_ignores_case_layout_and_punctuation():
    index = SpanIndex()
    index.add("One, two; three\nfour (five) six seven. Eight")
    assert index.overlap_fraction("one two three four five six seven eight") == 1.0


def test_a_text_shorter_than_a_span_overlaps_nothing():
    index = SpanIndex()
    index.add("a b c")
    assert index.overlap_fraction("a b c") == 0.0


def test_the_split_depends_on_the_text_alone_and_has_the_stated_size():
    documents = [Document(id=str(i), text=f"text {i}") for i in range(4000)]
    held_out = sum(is_held_out(document, 0.05) for document in documents)
    assert 130 <= held_out <= 270  # 200 expected, standard deviation 13.8: five of them
    renamed = [Document(id="other", text=document.text) for document in documents]
    assert [is_held_out(d, 0.05) for d in renamed] == [is_held_out(d, 0.05) for d in documents]
