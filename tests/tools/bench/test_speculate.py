"""The speculation benchmark: counts, acceptance beside its law, changed tokens."""

import pytest

from anchored import Anchored
from anchored.tools.bench.options import BenchSpeculateConfig
from anchored.tools.bench.speculate import RISKY_ALONE, flips_per_1000, measured_acceptance, run

SMALL = BenchSpeculateConfig(ks=(0.5,), drafts=("2", "auto"), num_prompts=1, new_tokens=6, runs=1)


@pytest.mark.filterwarnings("ignore:prefix debt")
def test_every_draft_length_has_a_row_beside_the_risky_model_alone(capsys):
    assert run(SMALL) == 0
    header, titles, *lines = capsys.readouterr().out.splitlines()
    assert "tiny + small, V = 2048, auto on cpu" in header and "fwd/tok" in titles
    assert lines[0].startswith(RISKY_ALONE)
    off, two, auto = (line.split() for line in lines[1:])
    assert [off[:2], two[:2], auto[:2]] == [["off", "0.5"], ["2", "0.5"], ["auto", "0.5"]]
    assert int(two[2]) < int(off[2]) <= 5
    assert off[-1] == two[-1] == auto[-1] == "0.0"  # the same tokens


def test_acceptance_agrees_with_what_the_laws_say(pair):
    """Six standard errors: a false alarm of less than 1e-6."""
    texts = ["the keeper of the lamp", "import math", "salt and rain", "wrote every wave"] * 4
    found = measured_acceptance(pair, Anchored(k=0.8), [pair.encode(text) for text in texts], 20)
    assert found.num_steps > 100 and 0.3 < found.expected < 0.99
    assert abs(found.observed - found.expected) < 6 * found.error


def test_flips_are_counted_up_to_the_first_difference():
    plain = [[5, 6, 7, 8], [5, 6], [9]]
    assert flips_per_1000(plain, plain) == 0.0
    assert flips_per_1000(plain, [[5, 6, 1, 2, 3], [5, 6], [9]]) == 1000.0 / 6
    assert flips_per_1000(plain, [[5, 6, 7], [5, 6], [9]]) == 1000.0 / 7
