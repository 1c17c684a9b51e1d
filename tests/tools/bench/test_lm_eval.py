"""The benchmark beside lm-eval's own models: a row for every kind of request, and one for all."""

import pytest

from anchored.tools.bench import lm_eval
from anchored.tools.bench.options import BenchLmEvalConfig

pytest.importorskip("lm_eval")

TINY = {"safe": "tiny", "risky": "tiny", "vocab_size": 64, "questions": 2, "texts": 2}


def test_every_kind_of_request_has_a_row(capsys):
    config = BenchLmEvalConfig(**TINY, context_tokens=6, choice_tokens=3, new_tokens=2, runs=1)
    assert lm_eval.run(config) == 0
    header, titles, *lines = capsys.readouterr().out.splitlines()
    assert "tiny + tiny, V = 64" in header and "processor seconds" in header
    assert "x hf both" in titles
    cells = [line.rsplit(maxsplit=5) for line in lines]
    assert [row[0].strip() for row in cells] == [
        *("choices of several tokens", "letters", "whole texts", "generations", "all")
    ]
    assert [int(row[1]) for row in cells] == [8, 8, 2, 2, 20]
    assert all(float(figure) > 0 for row in cells for figure in row[4:])


def test_settings_that_measure_nothing_are_refused():
    with pytest.raises(ValueError, match="questions must be >= 1, got 0"):
        BenchLmEvalConfig(questions=0)
