"""Tables in text and Markdown, and the statistics over seeds that they show."""

import math

from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.report.tables import (
    SETTING_COLUMN,
    Column,
    at_most,
    bits_per_byte_column,
    html_table,
    latex_table_of_parts,
    markdown_table,
    terminal_table,
)
from anchored.eval.statistics import over_seeds

COLUMNS = [
    SETTING_COLUMN,
    Column("ncr", "NCR"),
    bits_per_byte_column("extra"),
    Column("count", "prompts"),
]
ROWS = [
    {"setting": "p_s", "ncr": 1.0, "bits_per_byte/extra": 2.41234, "count": 16},
    {"setting": "k = 0.5", "ncr": over_seeds([0.9, 0.92, 0.94]), "bits_per_byte/extra": None},
    {"setting": "p_r", "ncr": math.nan, "bits_per_byte/extra": over_seeds([2.0]), "count": 16},
]


def test_terminal_table_is_aligned_and_says_what_the_brackets_are():
    assert terminal_table(ROWS, COLUMNS).splitlines() == [
        "setting            NCR  bits per byte, extra  prompts",
        "-----------------------------------------------------",
        "p_s              1.000                 2.412       16",
        "k = 0.5  0.920 (0.020)                     -        -",
        "p_r                  -                 2.000       16",
        "mean (standard deviation) over 3 seeds",
    ]
    assert terminal_table(ROWS[:1], COLUMNS).count("\n") == 2  # single values have no note


def test_an_ncr_over_fewer_metrics_than_all_is_marked_and_the_mark_explained():
    figure = {"mean": 0.9, "std": 0.02, "num_seeds": 3}
    rows = [{"ncr": {**figure, "num_metrics": number}} for number in (6, 4)]
    rows.append({"ncr": {"mean": None, "std": None, "num_seeds": 1, "num_metrics": 0}})
    assert terminal_table(rows, COLUMNS[1:2]).splitlines()[2:] == [
        "0.900 (0.020)",
        "0.900 (0.020) [4 of 6]",
        "- [0 of 6]",
        "mean (standard deviation) over 3 seeds",
        "[n of 6]: over metrics in which the risky model copies more",
    ]
    assert len(terminal_table(rows[:1], COLUMNS[1:2]).splitlines()) == 4
    few = [{"ncr": {**over_seeds([0.9]), "num_metrics": 6, "num_texts": 30, "num_all_texts": 40}}]
    assert terminal_table(few, COLUMNS[1:2]).splitlines()[2:] == [
        "0.900 {30 of 40}",
        "{n of N}: over the texts that the setting and both models alone have",
    ]


@given(st.floats(0.0, 1.0))
def test_a_shown_bound_is_no_less_than_the_bound_and_little_more(chance):
    shown = at_most(chance)
    assert chance <= float(shown) <= 1.1 * chance + 5e-324  # the least that is not 0
    column = Column("recited", is_bound=True)
    assert shown in terminal_table([{"recited": chance}], [column]).split()


def test_a_bound_is_rounded_up_to_two_digits():
    assert [*map(at_most, (0.1, 0.7601, 1.42e-8, 0.0))] == ["0.1", "0.77", "1.5e-8", "0"]


def test_a_latex_table_has_rules_between_its_parts_and_escapes_what_is_special():
    first, last = ("Reference LMs", ROWS[:1]), ("Anchored Decoding", ROWS[2:])
    assert latex_table_of_parts([first, last], COLUMNS).splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"setting & NCR & bits per byte, extra & prompts \\",
        r"\midrule",
        r"\multicolumn{4}{l}{\textit{Reference LMs}} \\",
        r"\midrule",
        r"p\_s & 1.000 & 2.412 & 16 \\",
        r"\midrule",
        r"\multicolumn{4}{l}{\textit{Anchored Decoding}} \\",
        r"\midrule",
        r"p\_r & - & 2.000 & 16 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    command = latex_table_of_parts([("", [{"setting": r"\input{a^~}"}])], COLUMNS)
    assert r"\textbackslash{}input\{a\textasciicircum{}\textasciitilde{}\}" in command


def test_html_and_markdown_tables_have_every_cell_escaped_and_say_what_brackets_mean():
    assert "| KL(p\\|q) |" in markdown_table([{"setting": "KL(p|q)"}], [SETTING_COLUMN])
    html = html_table([*ROWS, {"setting": "<b>&"}], COLUMNS)
    assert "<tr><th>setting</th><th>NCR</th>" in html
    assert "<tr><td>&lt;b&gt;&amp;</td><td>-</td><td>-</td><td>-</td></tr>" in html
    assert html.endswith("mean (standard deviation) over 3 seeds</p>")
