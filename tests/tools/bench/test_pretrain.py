"""The training benchmark: real runs of a tiny model, one for each lever."""

import pytest
from training_runs import train

from anchored.tools.bench import pretrain
from anchored.tools.bench.pretrain import BASELINE, BenchPretrainConfig, run
from anchored.tools.quickstart.preset import PRESETS

CHANGED = f"""
base = "{PRESETS}/smoke/stage1.toml"
job = {{ needs_gpu = true }}
model = {{ tokenizer = "missing" }}
checkpoint = {{ interval_minutes = 5.0 }}
heldout = {{ sources = [{{ name = "missing", path = "missing" }}] }}
"""
"""A run's config, of which all that is not there or would take time is replaced."""


@pytest.mark.slow
def test_every_lever_has_a_row_next_to_the_configuration(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(pretrain, "launch", train)
    file = tmp_path / "changed.toml"
    file.write_text(CHANGED)
    chosen = ("twice the batch",)
    settings = {"rounds": 2, "steps": 3, "skipped_steps": 1, "vocab_size": 300}
    assert run(BenchPretrainConfig(config=file, levers=chosen, **settings)) == 0
    _, titles, *rows = capfd.readouterr().out.splitlines()
    assert "tokens/s a GPU" in titles and "peak GiB" in titles
    assert [row[:20].strip() for row in rows] == [BASELINE, *chosen]
    for row in rows:  # the same tokens in the same steps: the same loss
        *_, mfu, peak, loss, difference = row.split()
        assert (mfu, peak) == ("-", "-") and float(loss) > 5
        assert abs(float(difference)) < 1e-4
