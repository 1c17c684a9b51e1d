"""The config of a run: defaults, file, arguments, and one clear line for every mistake."""

import pytest

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_config import DataSource
from anchored.tools.commands.training.plan import COMMON_PILE
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
        (
            f"[data]\nmixture = '{COMMON_PILE}'\nstage = 'three'\n",
            r"has no stage three; known: stage1",
        ),
        ("[training]\nseq_len = 0\n", r"training\.seq_len must be positive, got 0$"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named_and_an_unknown_argument_is_a_wrong_word(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config file no/such\.toml does not exist"):
        load_job_config(["--job.config_file=no/such.toml"])
    with pytest.raises(
        Refused, match=r"^there is no option --training\.stps; anchored\.pretrain --h"
    ):
        load(tmp_path, "", "--training.stps", "3")
