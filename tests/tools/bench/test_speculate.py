"""The speculation benchmark: counts, acceptance beside its law, the cost model."""

import pytest
import torch

from anchored import Anchored
from anchored.tools.bench.speculate import (
    BenchSpeculateConfig,
    Costs,
    _machine,
    flips_per_1000,
    measured_acceptance,
    predicted_ratio,
    run,
)

SMALL = BenchSpeculateConfig(
    ks=(0.5,), drafts=("2", "auto"), num_prompts=1, new_tokens=6, acceptance_prompts=1, runs=1
)


def test_every_draft_length_has_a_row(capsys):
    assert run(SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "float32 on cpu (not measured on a GPU), torch" in lines[0]
    assert "by 3 columns at once and by one" in lines[3]
    titles, *rows = (line.replace("no rest", "never").split() for line in lines[4:])
    assert titles[:2] == ["k", "draft"]
    assert [row[:2] for row in rows] == [
        [k, draft] for k in ("0.5", "p_r") for draft in ("never", "off", "2", "auto")
    ]
    never, off, two, *_ = (int(row[2]) for row in rows)
    assert never == off == 5 and two < 5


def test_a_gpu_is_named_in_the_header(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the GPU of {device}")
    assert _machine("cuda:1") == "cuda:1 (the GPU of cuda:1)"


def test_acceptance_agrees_with_what_the_laws_say(pair):
    """Six standard errors: a false alarm of less than 1e-6."""
    texts = ["the keeper of the lamp", "import math", "salt and rain", "wrote every wave"] * 4
    found = measured_acceptance(pair, Anchored(k=0.8), [pair.encode(text) for text in texts], 20)
    assert found.num_steps > 100 and 0.3 < found.expected < 0.99
    assert abs(found.observed - found.expected) < 6 * found.error


def test_the_cost_model_is_that_of_the_formula():
    costs = Costs(safe_s=0.2, risky_s={1: 1.0, 3: 1.1})
    expected = (1 + 0.8 + 0.64) * 1.2 / (1.1 + 0.2 * (2 + 0.64))
    assert predicted_ratio(costs, 2, 0.8) == pytest.approx(expected)


def test_flips_are_counted_up_to_the_first_difference():
    plain = [[5, 6, 7, 8], [5, 6], [9]]
    assert flips_per_1000(plain, plain) == 0.0
    assert flips_per_1000(plain, [[5, 6, 1, 2, 3], [5, 6], [9]]) == 1000.0 / 6
    assert flips_per_1000(plain, [[5, 6, 7], [5, 6], [9]]) == 1000.0 / 7
