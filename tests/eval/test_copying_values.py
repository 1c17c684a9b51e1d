"""The six copying metrics: cases worked out by hand, and the reference's own.

A change after which these need other values raises `METRIC_SET`.
"""

import json
from pathlib import Path

import pytest
from copying_cases import HAND_CASES

from anchored.eval.copying import copying_score

VECTORS = Path(__file__).parents[3] / "shared/reference/metric_vectors.json"


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [case[1:] for case in HAND_CASES],
    ids=[case[0] for case in HAND_CASES],
)
def test_values_worked_out_by_hand(hypothesis, reference, expected):
    score = copying_score(hypothesis, reference)
    actual = {name: getattr(score, name) for name in expected}
    assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.skipif(not VECTORS.exists(), reason="shared/reference is not here")
def test_every_reference_vector_is_reproduced():
    renamed = {"jaccard_3word": "jaccard", "minhash_3word": "minhash"}
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
    assert cases
    for case in cases:
        score = copying_score(case["hypothesis"], case["reference"])
        for name, expected in case["expected"].items():
            actual = getattr(score, renamed.get(name, name))
            if name == "word_acs_spans":
                assert [list(span) for span in actual] == expected, case["id"]
            else:
                assert actual == pytest.approx(expected, abs=1e-12), (case["id"], name)
