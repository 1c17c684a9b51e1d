"""Documents: read from files without importing them, cut, compared and split."""

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.tools.quickstart.documents import (
    SPAN_WORDS,
    Document,
    SpanIndex,
    code,
    cut_documents,
    docstrings,
    help_topics,
    is_held_out,
    package_modules,
    stdlib_modules,
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


MODULE = '''\
"""Module text."""
import sys; sys.exit("imported")


class Kettle:
    """Boils.

        Slowly.
    Then fast.
    """

    async def pour(self):
        "Pours."
        return "not a docstring"
'''


@pytest.fixture
def modules(tmp_path):
    path = tmp_path / "kettle.py"
    path.write_text(MODULE)
    return [("Lib/kettle.py", path)]


def test_docstrings_are_dedented_and_named_by_module_and_definition(modules):
    assert {d.id: d.text for d in docstrings(modules)} == {
        "Lib/kettle.py:module": "Module text.",
        "Lib/kettle.py:Kettle": "Boils.\n\n    Slowly.\nThen fast.",
        "Lib/kettle.py:Kettle.pour": "Pours.",
    }


def test_code_holds_everything_but_the_docstrings(modules):
    (document,) = code(modules)
    assert document.id == "Lib/kettle.py"
    assert [line for line in document.text.splitlines() if line] == [
        'import sys; sys.exit("imported")',
        "class Kettle:",
        "    async def pour(self):",
        '        return "not a docstring"',
    ]


def test_statements_on_the_line_of_a_docstring_stay(tmp_path):
    path = tmp_path / "one_line.py"
    path.write_text('def f(): "Text."; return 1\n\n\ndef g():\n    "Text."; return 2\n')
    (document,) = code([("one_line.py", path)])
    assert document.text == "def f(): ...; return 1\n\n\ndef g():\n    ...; return 2\n"


def test_a_body_that_was_only_a_docstring_still_parses(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text('class Empty:\n    """Text,\n    more."""\n')
    (document,) = code([("empty.py", path)])
    assert document.text == "class Empty:\n    ...\n\n"


def test_a_form_feed_does_not_shift_the_cut(tmp_path):
    path = tmp_path / "feed.py"
    path.write_text('x = 1\n\x0c\ndef f():\n    """Text."""\n    return x\n')
    (document,) = code([("feed.py", path)])
    assert document.text == "x = 1\n\x0c\ndef f():\n\n    return x\n"


def test_the_code_of_the_standard_library_parses_and_has_no_docstring_left():
    modules = stdlib_modules()[:60]
    for document in code(modules):
        tree = ast.parse(document.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                assert ast.get_docstring(node) is None, document.id


def test_the_coding_line_of_a_file_is_honoured(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes('# -*- coding: latin-1 -*-\n"""Th\u00e9."""\n'.encode("latin-1"))
    assert [d.text for d in docstrings([("latin.py", path)])] == ["Th\u00e9."]


def test_stdlib_modules_exclude_tests_and_third_party_folders():
    names = [name for name, _ in stdlib_modules()]
    assert "Lib/json/decoder.py" in names
    assert not [n for n in names if {"test", "tests", "site-packages"} & set(n.split("/"))]
    assert not [n for n in names if "_sysconfigdata" in n]


def test_the_order_of_modules_does_not_depend_on_the_file_system(monkeypatch):
    modules, rglob = stdlib_modules(), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: reversed(list(rglob(self, pattern))))
    assert stdlib_modules() == modules
    assert modules != sorted(modules)


def test_reading_a_package_does_not_import_it():
    before = set(sys.modules)
    names = [name for name, _ in package_modules("pandas")]
    assert "pandas/core/frame.py" in names
    assert not [n for n in names if "tests" in n.split("/")]
    assert {name.partition(".")[0] for name in set(sys.modules) - before} <= {"email", "csv"}


def test_a_missing_package_is_named():
    with pytest.raises(FileNotFoundError, match="'no-such-package' is not installed"):
        package_modules("no-such-package")


def test_help_topics_are_plain_text_without_a_common_indent():
    topics = {document.id: document.text for document in help_topics()}
    assert topics["topic:assert"].startswith('The "assert" statement\n')
