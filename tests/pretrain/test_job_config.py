"""The config of a run: defaults, file, arguments, and one clear line for every mistake."""

import pytest

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_config import DataSource
from anchored.wrong_words import Refused


def load(tmp_path, text, *arguments):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_job_config(["--job.config_file", str(path), *arguments])


def test_file_goes_over_defaults_and_arguments_over_the_file(tmp_path):
    text = "[training]\nsteps = 7\nseq_len = 128\n[data]\nseed = 4\n[[data.sources]]\n"
    text += 'name = "a"\npath = "x/a"\nweight = 2\n'
    config = load(tmp_path, text, "--training.steps", "9")
    assert (config.training.steps, config.training.seq_len) == (9, 128)
    assert config.data.sources == (DataSource(name="a", path="x/a", weight=2),)
    assert (config.data.seed, config.data.weight_unit) == (4, "tokens")
    assert (config.model.name, config.activation_checkpoint.mode) == ("tinycomma", "none")
    assert (config.checkpoint.folder, config.checkpoint.keep_latest_k) == ("checkpoint", 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nstps = 7\n", r"unknown config key training\.stps \(did you mean steps\?\)$"),
        ("[data]\n[[data.sources]]\nname = 'a'\n", r"data\.sources\[0\]\.path is missing$"),
        ("[job]\nverbose = 1\n", r"job\.verbose must be true or false, got 1$"),
        ("[checkpoint]\nkeep_latest_k = 1\n", r"keep_latest_k must be 0 \(all\) or at least 2"),
        ("[checkpoint]\nkeep_moments = true\n", r"needs checkpoint\.initial_load_path"),
        ("[training]\nseq_len = 0\n", r"training\.seq_len must be positive, got 0$"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, text)
    assert "\n" not in str(error.value)


MIXTURE = """
shards_folder = "shards"
seq_len = 8
tokens_per_step = 16
max_epochs = 4
stages = [{ name = "one", tokens = 9.0, seed = 5 }, { name = "two", tokens = 9.0, seed = 6 }]

[[sources]]
name = "a"
dataset = "d"
revision = "1"
weights = { one = 0.25, two = 1.0 }
"""


def test_a_run_may_name_a_stage_of_a_mixture_next_to_its_file(tmp_path):
    (tmp_path / "mixture.toml").write_text(MIXTURE)
    (tmp_path / "base.toml").write_text('[data]\nmixture = "mixture.toml"\nstage = "one"\n')
    (tmp_path / "deeper").mkdir()
    data = load(tmp_path / "deeper", 'base = "../base.toml"\n[data]\nmax_epochs = 2\n').data
    assert data.sources == (DataSource(name="a", path="shards/a", weight=0.25),)
    assert (data.seed, data.max_epochs, data.weight_unit) == (5, 2, "tokens")
    with pytest.raises(ValueError, match="the mixture has no stage three; known: one, two"):
        load(tmp_path, '[data]\nmixture = "mixture.toml"\nstage = "three"\n')


def test_a_missing_file_is_named_and_an_unknown_argument_is_a_wrong_word(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config file no/such\.toml does not exist"):
        load_job_config(["--job.config_file=no/such.toml"])
    with pytest.raises(
        Refused, match=r"^there is no option --training\.stps; anchored\.pretrain --h"
    ):
        load(tmp_path, "", "--training.stps", "3")
