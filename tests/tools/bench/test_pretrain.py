"""The training benchmark: real runs of a tiny model, one for each lever."""

import pytest
from training_runs import train

from anchored.tools.bench import pretrain
from anchored.tools.bench.pretrain import BASELINE, BenchPretrainConfig, levers, run

TINY = """
[job]
needs_gpu = true
[model]
flavor = "smoke"
tokenizer = "missing"
[training]
seq_len = 32
local_batch_size = 2
global_batch_size = 64
mixed_precision_param = "float32"
[optimizer]
implementation = "foreach"
[checkpoint]
interval_minutes = 5.0
[debug]
seed = 0
[loss]
chunk_tokens = 16
[[heldout.sources]]
name = "missing"
path = "missing"
[[data.sources]]
name = "missing"
path = "missing"
weight = 1.0
"""


@pytest.mark.slow
def test_every_lever_has_a_row_next_to_the_configuration(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(pretrain, "launch", train)
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
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


def test_levers_change_one_setting_each():
    changes = levers(16)
    assert changes["half the batch"] == {"training": {"local_batch_size": 8}}
    assert all(len(settings) == 1 for name, settings in changes.items() if name != "float8")
