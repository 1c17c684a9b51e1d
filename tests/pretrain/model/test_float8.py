"""Matrix products in float8 by torchao, whose values any machine can compute."""

from importlib.util import find_spec

import pytest
from training_runs import losses, train


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchao") is None, reason="pip install torchao")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_run_in_float8_rounds_products_of_its_layers_and_learns(
    finished, write_config, tmp_path, recipe
):
    float8 = {"recipe_name": recipe, "filter_fqns": ["output"], "emulate": True}
    settings = {"model": {"converters": ["quantize.linear.float8"]}}
    settings["quantize"] = {"linear": {"float8": float8}}
    train(write_config(tmp_path / "run", **settings), num_processes=2)
    ours, exact = losses(tmp_path / "run"), losses(finished)
    # float8 rounds to four significant bits, so the same weights give almost the same loss.
    assert 1e-6 < abs(ours[0] - exact[0]) < 0.05
    assert ours[-1] == pytest.approx(exact[-1], abs=0.1) and ours[-1] < ours[0] - 0.5
