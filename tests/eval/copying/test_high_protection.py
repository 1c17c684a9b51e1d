"""The high-protection table of the paper, recomputed from its full tables by `high_protection`."""

import json
import math

from anchored.eval.analysis.paper_table import PRINTED, printed_rows
from anchored.eval.copying.literal import high_protection

PAIRS = {(pair["safe"], pair["risky"]): pair for pair in PRINTED["pairs"].values()}
NAMES = dict(zip(PAIRS, PRINTED["pairs"], strict=True))
REPORTED = [(*name, method) for name, pair in PAIRS.items() for method in pair["reported"]]

ANCHORED = ("Anchored, k=1.5", 0.578, 4.455)
# Cells of the paper's table that do not follow from its full tables: what is printed, and
# what the full table of that pair gives (setting, factuality, fluency).
INCONSISTENT = {
    # Printed is k = 1; k = 1.5 is better in both and has NCR 0.7513 of the rounded figures, which
    # may lie on either side of 0.75 before rounding.
    ("TinyComma 1.8B", "Llama 4 Scout", "Anchored"): (["0.56", "4.43"], ANCHORED),
    # The full table printed for this pair is that of TinyComma, cell for cell.
    ("Comma 7B", "Llama 4 Scout", "p_s"): (["0.16", "4.1"], ("p_s", 0.088, 3.032)),
    ("Comma 7B", "Llama 4 Scout", "CP-Fuse"): (["0.37", "4.30"], ("CP-Fuse", 0.270, 3.969)),
    ("Comma 7B", "Llama 4 Scout", "TokenSwap"): (None, ("TokenSwap", 0.474, 3.751)),
    ("Comma 7B", "Llama 4 Scout", "Anchored"): (["0.56", "4.46"], ANCHORED),
}


def agrees(printed, figure):
    """Whether a figure of three decimals rounds to what is printed, half either way."""
    decimals = len(printed.partition(".")[2])
    return abs(float(printed) - figure) <= 0.5 * 10**-decimals + 1e-9


def test_every_cell_follows_from_the_full_table_or_is_known_not_to():
    assert len(PAIRS) == 6 and len(REPORTED) == 48
    for safe, risky, method in REPORTED:
        chosen = high_protection(printed_rows(NAMES[safe, risky]))[method]
        printed = PAIRS[safe, risky]["reported"][method]
        if (safe, risky, method) in INCONSISTENT:
            known, expected = INCONSISTENT[safe, risky, method]
            assert printed == known
            assert (chosen["setting"], chosen["factuality"], chosen["fluency"]) == expected
            assert printed is None or not all(map(agrees, printed, expected[1:]))
        elif printed is None:
            assert chosen is None
        else:
            assert agrees(printed[0], chosen["factuality"]), (safe, risky, method)
            assert agrees(printed[1], chosen["fluency"]), (safe, risky, method)


def test_one_full_table_is_printed_twice():
    assert {tuple(pair["reported"]) for pair in PAIRS.values()} == {
        ("p_s", "p_r", "System", "MemFree", "RCAD", "CP-Fuse", "TokenSwap", "Anchored")
    }
    tables = [json.dumps(pair["rows"]) for pair in PAIRS.values()]
    twice = [names for names, table in zip(PAIRS, tables, strict=True) if tables.count(table) > 1]
    assert twice == [("TinyComma 1.8B", "Llama 4 Scout"), ("Comma 7B", "Llama 4 Scout")]


def test_the_best_protected_row_of_each_method_is_chosen_whole():
    figures = [
        ("a", 0.9, 0.3, 5.0),
        ("a", 0.75, 0.4, 3.0),  # the threshold itself is protected
        ("a", 0.7499, 0.9, 4.0),
        ("b", 0.2, 0.9, 5.0),
        ("c", math.nan, 0.9, 5.0),  # what is not defined protects nobody
        ("d", 0.9, None, 5.0),  # and is taken last
        ("d", 0.8, 0.0, 5.0),
    ]
    names = ("method", "ncr", "factuality", "fluency")
    rows = [dict(zip(names, row, strict=True)) for row in figures]
    undefined = {"c": None, "d": rows[6]}
    assert high_protection(rows) == {"a": rows[1], "b": None, **undefined}
    assert high_protection(rows[:3], utility="fluency") == {"a": rows[0]}
