"""`anchored paper`: a rerun and the paper's tables."""

import json

import pytest

from anchored.eval.analysis import paper_table
from anchored.eval.analysis.evaluated import JUDGES
from anchored.eval.analysis.paper_table import PAIRS, Agreement, printed_rows, protected_rows
from anchored.eval.copying.metrics import METRICS
from anchored.eval.figures import style
from anchored.tools.cli import main

TOKEN_PAIR = PAIRS[0]


def record(folder, rows, judge, *, std=0.01):
    """A sweep's folder with these rows, and what a judge says of them."""

    def figure(mean, **more):
        return {"mean": mean, "std": std, "num_seeds": 3, **more}

    (folder / "generations").mkdir(parents=True)
    (folder / "evaluation").mkdir()
    (folder / "generations/p_s.jsonl").write_text('{"id": "a", "text": "a"}\n')
    results = {
        "schema": "anchored-sweep/1",
        "settings": {"safe": "S", "risky": "R"},
        "methods": {row["method"]: {"is_swept": row["method"] == "Anchored"} for row in rows},
        "rows": [
            {
                **{name: row[name] for name in ("setting", "method")},
                **{name: figure(row[name]) for name in METRICS},
                "ncr": figure(row["ncr"], num_metrics=6),
            }
            for row in rows
        ],
    }
    (folder / "results.json").write_text(json.dumps(results))
    name = {"fluency": "fluency", "factuality": "macro"}[judge]
    cells = {*JUDGES[judge].cells.values(), "num_failed_sentences", "num_failed_claims"}
    zeros = dict.fromkeys(cells, 0)
    judged = [{"setting": row["setting"], **zeros, name: figure(row[judge])} for row in rows]
    path = folder / f"evaluation/{judge}.json"
    path.write_text(json.dumps({"judge": judge, "settings": judged, "rows": []}))
    return folder


def paper(tmp_path, pair, books, bios):
    """What the command records, as JSON."""
    words = ["paper", pair, "--books", str(books), "--bios", str(bios)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--output", str(tmp_path / "out")])
    assert not ended.value.code
    return json.loads((tmp_path / "out/paper.json").read_text())


def cells(rows):
    return [cell for row in rows for cell in row.values() if isinstance(cell, dict)]


def test_the_paper_s_figures_differ_nowhere_from_the_paper(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "SUFFIXES", (".svg",))
    rows, pair = printed_rows(TOKEN_PAIR), TOKEN_PAIR
    books = record(tmp_path / "books", rows, "fluency")
    bios = record(tmp_path / "bios", rows, "factuality")
    recorded = paper(tmp_path, pair, books, bios)
    assert [row["setting"] for row in recorded["rows"]] == [row["setting"] for row in rows]
    assert len(rows) == 26 and len(cells(recorded["rows"])) == 26 * 9
    assert {cell["deviations"] for cell in cells(recorded["rows"])} == {0.0}
    protected = [c for c in cells(recorded["high_protection"]) if c["printed"] is not None]
    assert {cell["deviations"] for cell in protected} == {0.0}
    out = capsys.readouterr().out
    assert "| p_r | 0." in out and "not measured" not in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("paper.md", "paper.tex", "paper.json", "trade_offs.svg")
    }


def test_the_table_of_high_protection_follows_from_the_full_tables_but_for_five_cells():
    """One may be rounding: k = 1 is printed, and k = 1.5 has an NCR of 0.7513. The full table that
    is printed for the other pair is that of TinyComma, cell for cell."""
    tiny, comma = (f"llama4-scout+{safe}" for safe in ("tinycomma-1.8b", "comma-7b"))
    assert printed_rows(tiny) == printed_rows(comma)
    cells, others = [], {}
    for pair in PAIRS:
        for row in protected_rows(pair, printed_rows(pair)):
            judged = [row["factuality"], row["fluency"]]
            is_same = [each.deviations == 0 or each.rerun is each.printed for each in judged]
            cells.append((pair, row["method"]))
            if not all(is_same):
                others[cells[-1]] = row["setting"]
    assert len(cells) == 48 and others == {
        (tiny, "Anchored"): "Anchored, k=1.5",
        (comma, "Anchored"): "Anchored, k=1.5",
        **{(comma, method): method for method in ("p_s", "CP-Fuse", "TokenSwap")},
    }


def test_differences_are_in_the_rerun_s_deviations_and_what_it_lacks_is_a_dash(
    tmp_path, capsys, monkeypatch
):
    """Settings of the rerun that the paper's table lacks are named."""
    monkeypatch.setattr(paper_table, "drawn", lambda *_: [])
    changed = {
        "p_r": {"rouge1_ge_tau": 0.293},  # printed: 0.273
        "TokenSwap": {"fluency": 3.747},  # printed: 3.767
    }
    rows = [
        row | changed.get(row["setting"], {})
        for row in printed_rows(TOKEN_PAIR)
        if row["method"] in ("p_s", "p_r", "TokenSwap")
    ]
    mine = {**rows[-1], "setting": "Mine", "method": "Mine"}
    books = record(tmp_path / "books", [*rows, mine], "fluency", std=0.02)
    bios = record(tmp_path / "bios", rows, "factuality")
    (bios / "evaluation/factuality.json").unlink()
    by_setting = {row["setting"]: row for row in paper(tmp_path, TOKEN_PAIR, books, bios)["rows"]}
    deviations = [by_setting[s][name]["deviations"] for s, cell in changed.items() for name in cell]
    assert deviations == pytest.approx([1.0, -1.0])
    assert by_setting["CP-Fuse"]["ncr"]["found"] is None
    out = capsys.readouterr().out
    assert "0.293 (0.273, +1.0)" in out and "| CP-Fuse | - (" in out
    assert "Not in the paper's table: Mine" in out
    assert "The factuality was not measured: there is no factuality.json" in out


def test_a_difference_needs_both_figures_and_a_spread():
    assert Agreement({"mean": 0.5, "std": None}, 0.4).deviations is None  # of one seed
    assert Agreement({"mean": 0.4004, "std": None}, 0.4).deviations == 0.0  # the same, rounded
    assert Agreement({"mean": 0.5, "std": 0.1}, None).deviations is None
