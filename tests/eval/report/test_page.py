"""The page on a run: complete, and safe whatever models, settings and works are called or wrote."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from browser import CHROMIUM, browser_page
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_runs import HOSTILE, record_run

from anchored.decode.ledger import LedgerStep
from anchored.eval.analysis.evaluated import judgement
from anchored.eval.analysis.recorded_run import RecordedRun
from anchored.eval.analysis.run_report import ANALYSES, run_report
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.report.page import Generation, SideBySideRecord, first_html
from anchored.eval.report.tables import markdown_table

VOID = {"meta", "img"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "a"),
    *("nav", "table", "thead", "tbody", "tr", "th", "td", "div", "figure", "img", "article"),
    *("section", "span", "mark", "u", "details", "summary", "progress"),
}
NO_SVG = b"<?xml of no picture"


class Page(HTMLParser):
    """All tags with their attributes, and texts with the tags that are open around each."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open_tags, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        self.texts.append((data, tuple(self.open_tags)))

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]

    def within(self, *tags):
        """Texts inside all of these tags."""
        return [text for text, around in self.texts if set(tags) <= set(around)]


def tables_on(folder, num_texts=0):
    return run_report(RecordedRun(folder), num_texts=num_texts)


def changed(path, change):
    """Rewrite a JSON file with what a function does to its content."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = record_run(tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", ""))
    (folder / "methods.svg").write_bytes(NO_SVG)
    return tables_on(folder, num_texts=2)


@pytest.fixture(scope="module")
def html(report):
    """Made once: it draws every picture."""
    return report.html()


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_hostile_text_stays_text(html, page):
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "<script" not in html.lower() and "</script" not in html.lower()
    assert "".join(page.within("body")).count(HOSTILE) >= 8  # four texts of each of two prompts


def test_the_page_loads_nothing_its_links_lead_somewhere_and_its_policy_says_so(page):
    links = [attrs["href"] for attrs in page.all("a")]
    addresses = links + [attrs["src"] for attrs in page.all("img")]
    assert all(re.match(r"#|data:image/svg\+xml;base64,", each) for each in addresses)
    assert {link.removeprefix("#") for link in links} == {
        attrs["id"] for _, attrs in page.tags if "id" in attrs
    }
    (style,) = page.within("style")
    assert not re.search(r"@import|url\(|https?:", style)
    assert "prefers-color-scheme: dark" in style
    (policy,) = [a["content"] for a in page.all("meta") if "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{digest}'" in policy
    assert not [attrs for _, attrs in page.tags if "style" in attrs]  # which it would not allow


def test_every_analysis_has_its_picture_its_table_and_its_figures_in_json(page, report):
    pictures = [base64.b64decode(a["src"].partition(",")[2]) for a in page.all("img")]
    assert len(pictures) == len(ANALYSES) + 1
    assert pictures[0] == NO_SVG and all(picture.startswith(b"<?xml") for picture in pictures)
    assert list(report.not_measured) == ["speed"]
    assert "Finding 1: yes. It holds: 1 of 2" in page.within("li")
    tables = [section for section in report.sections if section.rows]
    assert len(tables) == len(ANALYSES) + 1
    figures = json.loads(report.json(), parse_constant=pytest.fail)["tables"]
    assert [len(table["rows"]) for table in figures] == [len(section.rows) for section in tables]
    assert figures[0]["rows"][1]["ncr"]["mean"] == 0.5
    titles = [column.title for column in tables[0].columns]
    assert titles[10:13] == ["fluency", "factuality", "win rate"]
    assert "| 4.00 (0.50) | 0.50 | 0.75 |" in markdown_table(tables[0].rows, tables[0].columns)


@pytest.mark.parametrize(
    ("best", "ncr", "words", "headline", "first"),
    [
        ("k=1", 0.9, 2.0, "On these prompts, k=1 takes away 90.0% of", ["p_r", "k=1", "p_s"]),
        (None, 0.9, 2.0, "On these prompts, k=2 ", ["p_r", "k=2", "p_s"]),  # the last that protects
        (None, 0.7, 2.0, "On these prompts no budget has an NCR of 0.75", ["p_r", "p_s"]),
        (None, None, 2.0, "The risky model copies no more of these references", ["p_r", "p_s"]),
        ("k=1", 0.9, None, "", ["p_s", "k=1", "k=2", "p_r"]),  # without references
    ],
)
def test_a_page_begins_with_what_protects_and_shows_its_text_first(
    tmp_path, best, ncr, words, headline, first
):
    def change(results):
        results["recommended"] = best
        for row in results["rows"]:
            row["ncr"] |= {"mean": ncr}
            row["word_lcs"] = words and {"mean": words, "std": None, "num_seeds": 1}

    folder = record_run(tmp_path / "run", ledgers=False)
    changed(folder / "results.json", change)
    report = tables_on(folder, num_texts=1)
    assert report.headline.startswith(headline) and bool(report.headline) == bool(headline)
    assert [generation.text.setting.split()[0] for generation in report.records[0].first] == first
    assert len(report.verdicts) == (len(first) if headline else 0)


def test_a_page_may_lead_with_a_budget_of_any_rule_and_says_what_it_proves(tmp_path):
    def change(results):
        row = results["rows"][1]
        row |= {"k": None, "method": "Pathwise", "bound": 4.0, "recited": 2.25e-9}
        row["ncr"]["mean"] = 0.9

    folder = record_run(tmp_path / "run", ledgers=False)
    changed(folder / "results.json", change)
    report = tables_on(folder, num_texts=1)
    assert report.headline.endswith("to recite no reference with a chance of more than 2.3e-9.")
    assert [verdict.role for verdict in report.verdicts] == ["risky", "anchored", "safe"]
    assert report.records[0].first[1].role == "anchored"


def test_ncr_may_be_that_of_another_run_of_the_same_settings(tmp_path):
    books = record_run(tmp_path / "books", ledgers=False)
    path = books / "results.json"
    path.write_text(path.read_text().replace('"mean": 0.5', '"mean": 0.875'))
    recorded = RecordedRun(record_run(tmp_path / "bios"), ncr_of=RecordedRun(books))
    (results, *_) = run_report(recorded, num_texts=0).sections
    assert [row["ncr"]["mean"] for row in results.rows] == [0.875] * 4
    assert results.rows[0]["minhash"]["mean"] == 0.5 and "NCR is that of books" in results.note
    points = judgement("factuality", recorded).draw.args[0][""]
    assert [each.protection for each in points] == [0.875] * 4


def test_a_run_that_has_only_texts_gives_a_page_of_as_many_as_are_named(tmp_path):
    folder = record_run(tmp_path / "run", measured=False, ledgers=False)
    (folder / "prompts.jsonl").unlink()
    report = tables_on(folder, num_texts=1)
    assert [record.title for record in report.records] == ["a"] and report.sections == []
    assert report.texts_note.startswith("1 of the 2 prompts")
    assert {"results", "copying", "prompts", "ledgers", "fluency"} <= set(report.not_measured)
    only = "anchored evaluate --only win-rate"
    assert report.not_measured["win_rate"].endswith(f"evaluation/: {only}")
    assert "no ledger of the risky model alone" in report.not_measured["step_divergences"]
    assert "(not recorded)" in Page(report.html()).within("article")


def records_page(pieces=(), copied_spans=(), steps=(), copy_probability=None, **row):
    row["pieces"] = list(pieces)
    about = {"setting": "k = 1", "id": "T", "seed": 0, "prompt": "P", "reference": "R"}
    text = RecordedText(text="", row=row, **about)
    shown = {"copied_spans": copied_spans, "steps": steps, "copy_probability": copy_probability}
    return first_html(SideBySideRecord(first=[Generation(text=text, **shown)]))


@given(
    st.lists(st.tuples(st.text(alphabet="ab <>&\"'\n", max_size=4), st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=3),
)
@example([("unfold", True), ("ing", False), (" it", False)], [(2, 6)])  # from within a token
def test_copied_characters_are_marked_rejected_tokens_underlined_and_the_text_is_kept(
    pieces, spans
):
    characters = [(each, kept) for piece, kept in pieces for each in piece]
    copied = {i for start, length in spans for i in range(start, start + length)}
    page = Page(records_page(pieces=pieces, copied_spans=[(a, a + n) for a, n in spans]))
    text = "".join(each for each, _ in characters)
    assert "".join(page.within("article", "p")).startswith("P" + text)
    marked = [each for index, (each, _) in enumerate(characters) if index in copied]
    assert "".join(page.within("article", "mark")) == "".join(marked)
    underlined = [each for each, kept in characters if not kept and not each.isspace()]
    assert "".join(page.within("article", "u")) == "".join(underlined)


def test_tokens_are_colored_by_what_they_spent_and_the_text_tells_its_sum_and_its_proof():
    figures = ("spend", "budget", "weight", "log_prob", "safe_log_prob")
    steps = [
        LedgerStep(step=0, token_id=0, accepted=True, **dict(zip(figures, values, strict=True)))
        for values in ((0.0, 1.0, 0.0, -1.0, -1.0), (2.5, 3.0, 1.0, -0.5, None))
    ]
    pieces, row = [("a", True), ("b", False)], {"spent": 2.5, "bound": 4.0}
    row["copy_probability"] = 0.0674
    html = records_page(pieces=pieces, copied_spans=[(1, 2)], steps=steps, **row)
    assert "2 tokens, 1 by the risky model; spent 2.50 nats; bound 4.00 nats" in html
    assert "proved: begins with the reference with a chance of at most 0.068" in html
    assert '<span title="&#x27;a&#x27;: spend 0, allowance 1, weight 0, log p*/p_s 0">a<' in html
    assert '<span class="s5" title="&#x27;b&#x27;: spend 2.5, allowance 3, weight 1, ' in html
    assert 'log p*/p_s unknown"><mark><u>b</u></mark></span>' in html


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
def test_a_browser_shows_all_of_it_at_any_width_and_refuses_and_loads_nothing(html, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(html, encoding="utf-8")
    with browser_page(file.as_uri(), tmp_path / "profile") as page:
        assert page.messages == [] and page.requests == [file.as_uri()]
        pictures = page.value(
            "Array.from(document.images, i => i.complete && i.naturalWidth * i.width)"
        )
        # The picture that the run drew is no SVG; those of the analyses are there.
        assert pictures[0] == 0 and all(width > 100 for width in pictures[1:])
        colors = "Array.from(document.querySelectorAll('span.s2'), s => getComputedStyle(s))"
        shades = page.value(f"{colors}.map(s => s.backgroundColor)")
        assert shades and not [shade for shade in shades if shade == "rgba(0, 0, 0, 0)"]
        assert HOSTILE in page.value("document.body.innerText")
        for width in (360, 1400):
            page.resize(width)
            assert page.value("document.documentElement.scrollWidth") <= width
