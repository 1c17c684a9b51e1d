"""The page on a run: complete, and safe whatever models, settings and works are called or wrote."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from browser import CHROMIUM, browser_page
from recorded_runs import HOSTILE, record_run

from anchored.eval.analysis.evaluated import judgement
from anchored.eval.analysis.recorded_run import RecordedRun
from anchored.eval.analysis.registry import ANALYSES, Analyses, analyses
from anchored.eval.analysis.run_report import run_report

VOID = {"meta", "img"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "a"),
    *("nav", "table", "thead", "tbody", "tr", "th", "td", "div", "figure", "img", "article"),
    *("section", "span", "mark", "u"),
}
PIXEL = b"\x89PNG of one pixel"


class Page(HTMLParser):
    """All tags with their attributes; the texts inside and outside the style sheet."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open_tags, self.texts, self.style = [], [], [], ""
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
        if self.open_tags[-1:] == ["style"]:
            self.style += data
        else:
            self.texts.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def report_on(folder, num_texts=2):
    run = RecordedRun(folder)
    return run_report(run, analyses(run), num_texts=num_texts)


def tables_on(folder):
    """Without analyses, whose pictures take longest."""
    return run_report(RecordedRun(folder), Analyses(), num_texts=0)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = record_run(tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", ""))
    (folder / "methods.png").write_bytes(PIXEL)
    return report_on(folder)


@pytest.fixture(scope="module")
def page(report):
    return Page(report.html())


def test_hostile_text_stays_text(report, page):
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "<script" not in report.html().lower() and "</script" not in report.html().lower()
    shown = "".join(page.texts)
    assert shown.count(HOSTILE) >= 8  # prompt, reference, title and text, of two prompts


def test_the_page_loads_nothing(report, page):
    addresses = [attrs["src"] for attrs in page.all("img")]
    addresses += [attrs["href"] for attrs in page.all("a")]
    assert all(re.match(r"#|data:image/(png|svg\+xml);base64,", each) for each in addresses)
    assert not re.search(r"@import|url\(|https?:", page.style)
    assert not page.all("link") and not page.all("script")


def test_the_policy_allows_the_style_sheet_and_no_more(page):
    (policy,) = [a["content"] for a in page.all("meta") if "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy.split("; ")[0] == "default-src 'none'"
    assert f"style-src 'sha256-{digest}'" in policy
    assert not [attrs for _, attrs in page.tags if "style" in attrs]  # which it would not allow


def test_every_analysis_has_its_picture_and_so_has_what_the_run_drew(page):
    pictures = [attrs["src"] for attrs in page.all("img")]
    assert len(pictures) == len(ANALYSES) + 1
    assert pictures[0] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    for source in pictures[1:]:
        assert base64.b64decode(source.partition(",")[2]).startswith(b"<?xml")


def test_every_link_has_its_place(page):
    places = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {attrs["href"].removeprefix("#") for attrs in page.all("a")} == places


def test_tokens_tell_what_they_spent(page):
    titles = [attrs["title"] for attrs in page.all("span") if "title" in attrs]
    assert len(titles) == 2 * 4 * 3  # prompts, settings, tokens
    figures = "spend 0.25, allowance 0.25, weight 0.5, log p*/p_s 0.5"
    assert sum(figures in title for title in titles) == 4
    assert [a.get("class") for a in page.all("span") if figures in a.get("title", "")] == ["s2"] * 4


def test_what_is_missing_is_said(report, page):
    assert list(report.not_measured) == ["speed"]
    assert "Not measured" in page.texts


def test_judges_stand_in_the_results_and_without_them_that_is_said(tmp_path):
    folder = record_run(tmp_path / "run")
    report = tables_on(folder)
    (results, *_) = report.sections
    titles = [column.title for column in results.columns]
    assert titles[8] == "bpb mixture" and titles[10:13] == ["fluency", "factuality", "win rate"]
    assert "| 4.00 (0.50) | 0.50 | 0.75 |" in report.markdown()
    for path in (folder / "evaluation").glob("*.json"):
        path.unlink()
    missing = analyses(RecordedRun(folder)).not_measured
    assert missing["win_rate"].startswith("no results of anchored judge win-rate are here")
    assert {"fluency", "factuality", "character_overlap", "copying_distribution"} <= set(missing)


def test_ncr_may_be_that_of_another_run_of_the_same_settings(tmp_path):
    books = record_run(tmp_path / "books", ledgers=False)
    path = books / "results.json"
    path.write_text(path.read_text().replace('"mean": 0.5', '"mean": 0.875'))
    own = RecordedRun(record_run(tmp_path / "bios"), ncr_of=RecordedRun(books))
    (results, *_) = run_report(own, Analyses(), num_texts=0).sections
    assert [row["ncr"].mean for row in results.rows] == [0.875] * 4
    assert results.rows[0]["minhash"].mean == 0.5 and "NCR is that of books" in results.note
    points = judgement("factuality", own).draw.args[0][""]
    assert [each.protection for each in points] == [0.875] * 4


def test_the_best_factuality_of_each_protected_method_is_a_table_of_its_own(tmp_path):
    folder = record_run(tmp_path / "run")
    path = folder / "results.json"
    results = json.loads(path.read_text())
    for row, method in zip(results["rows"], ["p_s", "Anchored", "Anchored", "p_r"], strict=True):
        row |= {"method": method, "ncr": {"mean": 0.8, "std": None, "num_metrics": 6}}
    results["methods"] = {name: {"is_swept": True} for name in ("p_s", "Anchored", "p_r")}
    path.write_text(json.dumps(results))
    judged = folder / "evaluation/factuality.json"
    own = json.loads(judged.read_text())
    own["settings"][2]["macro"]["mean"] = 0.75  # of k=1
    judged.write_text(json.dumps(own))
    (table,) = [own for own in tables_on(folder).sections if "by factuality" in own.title]
    assert [row["setting"] for row in table.rows] == ["p_s", "k=1", "p_r"]
    assert [row["fluency"] and row["fluency"].mean for row in table.rows] == [4.0, 4.0, None]


def test_tables_stand_in_markdown_and_latex_too(report):
    tables = [own for own in report.sections if own.rows]
    assert len(tables) == len(ANALYSES) + 1
    assert report.markdown().count("| :-- |") == len(tables)
    assert report.latex().count(r"\begin{tabular}") == len(tables)
    assert "| k=1 | 0.500 | 0.500 | 0.50 | 0.5 |" in report.markdown()
    assert r"k=2 </script><img onerror=alert(1) src=x>\$x\_\{\&\%" in report.latex()


def test_as_many_texts_as_asked_for(tmp_path):
    folder = record_run(tmp_path / "run", measured=False, ledgers=False)
    one = report_on(folder, num_texts=1)
    assert [record.title for record in one.records] == [HOSTILE]
    assert one.texts_note.startswith("1 of 2 prompts")
    assert "Texts" not in Page(report_on(folder, num_texts=0).html()).texts
    with pytest.raises(ValueError, match="at least 0, got -1"):
        report_on(folder, num_texts=-1)


def test_a_run_that_has_only_texts_gives_a_page(tmp_path):
    folder = record_run(tmp_path / "run", measured=False, ledgers=False)
    (folder / "prompts.jsonl").unlink()
    report = report_on(folder)
    assert {"results", "copying", "prompts", "ledgers"} <= set(report.not_measured)
    assert "(not recorded)" in Page(report.html()).texts


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
def test_a_browser_shows_all_of_it_and_refuses_and_loads_nothing(report, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(report.html(), encoding="utf-8")
    with browser_page(file, tmp_path / "profile") as page:
        assert page.messages == [] and page.requests == [file.as_uri()]
        pictures = page.value(
            "Array.from(document.images, i => i.complete && i.naturalWidth * i.width)"
        )
        # The picture that the run drew is no PNG; those of the analyses are there.
        assert len(pictures) == len(ANALYSES) + 1
        assert pictures[0] == 0 and all(width > 100 for width in pictures[1:])
        tooltips = page.value("Array.from(document.querySelectorAll('span[title]'), s => s.title)")
        assert len(tooltips) == 2 * 4 * 3 and "spend 0.25, allowance 0.25" in tooltips[4]
        look = "s => getComputedStyle(s)"
        marks = f"Array.from(document.querySelectorAll('article mark'), {look})"
        lines = page.value(f"{marks}.map(s => s.textDecorationLine)")
        assert lines == ["overline"] * 2 * 4  # one copied span in each text
        colours = f"Array.from(document.querySelectorAll('span.s2'), {look})"
        shades = page.value(f"{colours}.map(s => s.backgroundColor)")
        assert shades and not [shade for shade in shades if shade == "rgba(0, 0, 0, 0)"]
        assert HOSTILE in page.value("document.body.innerText")
        page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
def test_the_browser_would_tell_of_scripts_and_of_what_is_loaded(report, tmp_path):
    file = tmp_path / "report.html"
    hostile = '<script>document.title = "x"</script><img src="file:///none.png" onerror="x">'
    file.write_text(report.html().replace("</body>", f"{hostile}</body>"), encoding="utf-8")
    with browser_page(file, tmp_path / "profile") as page:
        told = "\n".join(page.messages)
        assert page.value("document.title") != "x"
    for what in ("inline script", "none.png", "inline event handler"):
        assert what in told
