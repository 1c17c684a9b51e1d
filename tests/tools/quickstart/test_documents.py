"""Documents: read from files without importing them, cut, compared and split."""

import ast
import sys

import pytest

from anchored.tools.quickstart.documents import (
    SPAN_WORDS,
    Document,
    SpanIndex,
    code,
    cut_documents,
    is_held_out,
    package_modules,
    stdlib_modules,
)


def cut(text: str, *, min_chars: int = 1, max_chars: int = 40) -> list[Document]:
    document = Document(id="a", text=text)
    return list(cut_documents([document], min_chars=min_chars, max_chars=max_chars))


def test_overlap_is_the_share_of_spans_seen_before_whatever_their_layout():
    words = [f"w{i}" for i in range(2 * SPAN_WORDS)]
    index = SpanIndex()
    for text in (
        " ".join(words[: SPAN_WORDS + 1]),
        "One, two; three\nfour (five) six seven. Eight",
    ):
        index.add(text)
    assert index.overlap_fraction(" ".join(words)) == 2 / (SPAN_WORDS + 1)  # two spans of nine
    assert index.overlap_fraction("one two three four five six seven eight") == 1.0
    assert index.overlap_fraction("one two three") == 0.0  # shorter than a span


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
def module(tmp_path):
    """Make the only module that is read."""

    def make(text):
        path = tmp_path / "kettle.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return [("Lib/kettle.py", path)]

    return make


def test_code_holds_everything_but_the_docstrings(module):
    (document,) = code(module(MODULE))
    assert document.id == "Lib/kettle.py"
    assert [line for line in document.text.splitlines() if line] == [
        'import sys; sys.exit("imported")',
        "class Kettle:",
        "    async def pour(self):",
        '        return "not a docstring"',
    ]


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (  # statements on the line of a docstring stay
            'def f(): "Text."; return 1\n\n\ndef g():\n    "Text."; return 2\n',
            "def f(): ...; return 1\n\n\ndef g():\n    ...; return 2\n",
        ),
        # a body that was only a docstring still parses
        ('class Empty:\n    """Text,\n    more."""\n', "class Empty:\n    ...\n\n"),
        (  # a form feed does not shift the cut
            'x = 1\n\x0c\ndef f():\n    """Text."""\n    return x\n',
            "x = 1\n\x0c\ndef f():\n\n    return x\n",
        ),
    ],
)
def test_a_docstring_is_cut_out_where_it_stands(module, text, without):
    assert [document.text for document in code(module(text))] == [without]


@pytest.mark.slow
def test_the_code_of_the_standard_library_parses_and_has_no_docstring_left():
    for document in code(stdlib_modules()[:20]):
        tree = ast.parse(document.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                assert ast.get_docstring(node) is None, document.id


def test_reading_a_package_does_not_import_it():
    before = set(sys.modules)
    names = [name for name, _ in package_modules("pandas")]
    assert "pandas/core/frame.py" in names
    assert not [n for n in names if "tests" in n.split("/")]
    assert {name.partition(".")[0] for name in set(sys.modules) - before} <= {"email", "csv"}
    with pytest.raises(FileNotFoundError, match="'no-such-package' is not installed"):
        package_modules("no-such-package")
