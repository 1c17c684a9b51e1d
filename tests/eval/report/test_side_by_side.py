"""The HTML page: well formed, complete, escaped, self-contained and marked where it should be."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.report.side_by_side import (
    Generation,
    SideBySideRecord,
    TokenSpend,
    side_by_side_page,
)

VOID = {"meta"}


class Page(HTMLParser):
    """Reads the texts of the page with the tags that are open around each."""

    def __init__(self, html):
        super().__init__()
        self.open_tags, self.texts = [], []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        self.texts.append((data, tuple(self.open_tags)))

    def marked(self, tag):
        """Texts of the articles inside `tag`."""
        return [text for text, tags in self.texts if tag in tags and "article" in tags]

    def body_texts(self):
        """Texts of the paragraphs of the articles."""
        return "".join(text for text, tags in self.texts if "article" in tags and "p" in tags)


def page_of(**generation):
    generation = Generation(**({"label": "k = 1", "pieces": []} | generation))
    record = SideBySideRecord(title="T", prompt="P", reference="R", columns=[generation])
    return side_by_side_page([record])


@pytest.mark.parametrize(
    ("pieces", "copied", "marked", "underlined"),
    [
        (
            [("the", True), (" old", False), (" clock", False), (" maker", True)],
            (4, 13),
            ["old", " ", "clock"],
            ["old", "clock"],
        ),
        # A span may begin inside a token.
        ([("unfold", True), ("ing", False)], (2, 8), ["fold", "in"], ["in", "g"]),
    ],
)
def test_copied_characters_are_highlighted_and_rejected_tokens_underlined(
    pieces, copied, marked, underlined
):
    page = Page(page_of(pieces=pieces, copied_spans=[copied]))
    assert (page.marked("mark"), page.marked("u")) == (marked, underlined)


@given(
    st.lists(st.tuples(st.text(alphabet="ab <>&\"'\n", max_size=4), st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=3),
)
def test_text_is_kept_letter_by_letter_and_the_page_stays_well_formed(pieces, spans):
    text = "".join(piece for piece, _ in pieces)
    inside = [(start, min(start + length, len(text))) for start, length in spans]
    copied = [(start, end) for start, end in inside if start < end]
    page = Page(page_of(pieces=pieces, copied_spans=copied))
    assert page.body_texts().startswith("PR" + text)
    highlighted = "".join(page.marked("mark"))
    assert len(highlighted) == len({i for start, end in copied for i in range(start, end)})


def test_every_text_is_escaped():
    attack = "<script>alert('x')</script>"
    record = SideBySideRecord(
        title=attack,
        prompt=attack,
        reference=attack,
        columns=[Generation(label=attack, pieces=[(attack, False)], finish_reason=attack)],
    )
    html = side_by_side_page([record], title=attack)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 9


def test_page_loads_nothing_and_has_both_colour_schemes():
    html = page_of(pieces=[("a", True)])
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html
    assert "color-scheme: light dark" in html


def test_spend_bound_and_ending_are_stated():
    pieces = [("a", True), ("b", False)]
    html = page_of(pieces=pieces, spent=1.25, bound=4.0, finish_reason="length")
    facts = "2 tokens, 1 by the risky model; spent 1.25 nats; bound 4.00 nats; ended by length"
    assert facts in html
    assert "no bound" in page_of(bound=float("inf"))
    assert "no bound" in page_of(bound=None)


def test_every_prompt_and_setting_is_on_the_page():
    columns = [Generation(label=f"k = {k}", pieces=[(f"text {k}", True)]) for k in (0.1, 0.5, 2)]
    html = side_by_side_page(
        [
            SideBySideRecord(title=f"work {i}", prompt=f"prompt {i}", reference="", columns=columns)
            for i in range(3)
        ]
    )
    assert html.count("<article") == html.count("<h3>k = 0.5</h3>") == 3
    for i in range(3):
        assert all(
            part in html for part in (f'href="#record-{i}"', f'id="record-{i}"', f"prompt {i}")
        )


def test_spans_outside_the_text_and_a_page_of_nothing_are_refused():
    with pytest.raises(ValueError, match=r"'k' must lie in \[0, 2\], got \[1, 3\]"):
        Generation(label="k", pieces=[("ab", True)], copied_spans=[(1, 3)])
    with pytest.raises(ValueError, match="at least one record, got none"):
        side_by_side_page([])


def test_what_the_bound_says_of_the_reference_stands_beside_the_text():
    assert "begins with the reference with p &lt;= 0.067" in page_of(copy_probability=0.0674)
    assert "begins with" not in page_of()


def test_tokens_are_coloured_by_what_they_spent_and_tell_it():
    tokens = [TokenSpend(0.0, 1.0, 0.0, -1.0, -1.0), TokenSpend(2.5, 3.0, 1.0, -0.5, None)]
    html = page_of(pieces=[("a", True), ("b", False)], copied_spans=[(1, 2)], tokens=tokens)
    assert '<span title="&#x27;a&#x27;: spend 0, allowance 1, weight 0, log p*/p_s 0">a<' in html
    assert '<span class="s5" title="&#x27;b&#x27;: spend 2.5, allowance 3, weight 1, ' in html
    assert 'log p*/p_s unknown"><mark><u>b</u></mark></span>' in html
    assert "Darker: the token spent more nats" in html
    with pytest.raises(ValueError, match="'k = 1' has 1 pieces and 2 tokens"):
        page_of(pieces=[("a", True)], tokens=tokens)
