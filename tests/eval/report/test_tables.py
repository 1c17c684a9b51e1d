"""Tables of results: marks and notes, bounds, escapes, and the statistics over seeds they show."""

import math

from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.report.tables import (
    SETTING_COLUMN,
    Column,
    at_most,
    html_table,
    latex_table_of_parts,
    markdown_table,
    terminal_table,
)
from anchored.eval.statistics import over_seeds

NCR = Column("ncr", "NCR")


def test_an_ncr_over_fewer_metrics_than_all_is_marked_and_the_mark_explained():
    figure = {"mean": 0.9, "std": 0.02, "num_seeds": 3}
    rows = [{"ncr": {**figure, "num_metrics": number}} for number in (6, 4)]
    rows.append({"ncr": {"mean": None, "std": None, "num_seeds": 1, "num_metrics": 0}})
    assert terminal_table(rows, [NCR]).splitlines()[2:] == [
        "0.900 (0.020)",
        "0.900 (0.020) [4 of 6]",
        "- [0 of 6]",
        "mean (standard deviation) over 3 seeds",
        "[n of 6]: over metrics in which the risky model copies more",
    ]
    assert len(terminal_table(rows[:1], [NCR]).splitlines()) == 4
    few = [{"ncr": {**over_seeds([0.9]), "num_metrics": 6, "num_texts": 30, "num_all_texts": 40}}]
    assert terminal_table(few, [NCR]).splitlines()[2:] == [
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


def test_every_cell_is_escaped_and_what_is_unknown_is_a_dash_in_every_form_of_table():
    columns = [SETTING_COLUMN, NCR]
    latex = latex_table_of_parts([("p_s", [{"setting": r"\input{a^~}", "ncr": 1.0}])], columns)
    assert r"\textbackslash{}input\{a\textasciicircum{}\textasciitilde{}\} & 1.000 \\" in latex
    assert r"\multicolumn{2}{l}{\textit{p\_s}} \\" in latex
    markdown = markdown_table([{"setting": "KL(p|q)", "ncr": math.nan}], columns)
    assert "| KL(p\\|q) | - |" in markdown
    html = html_table([{"setting": "<b>&", "ncr": over_seeds([0.9, 0.92, 0.94])}], columns)
    assert "<tr><td>&lt;b&gt;&amp;</td><td>0.920 (0.020)</td></tr>" in html
    assert html.endswith("mean (standard deviation) over 3 seeds</p>")
