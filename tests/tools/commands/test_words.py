"""Options of every command: repeats, paths, help, names of configs."""

from pathlib import Path

import pytest
from command_line import refused, run

from anchored.configs.config_file import CONFIGS, find_config
from anchored.tools.cli import COMMANDS, options_class
from anchored.tools.commands.generate import GenerateConfig
from anchored.tools.commands.training.decontaminate import DecontaminateConfig
from anchored.tools.commands.training.plan import PlanConfig
from anchored.tools.commands.words import options_of, parse
from anchored.wrong_words import Refused

CLASSES = {name: options_class(name) for name in COMMANDS if name != "lm-eval"}


def test_every_option_of_every_command_has_a_name_of_its_own_and_is_described():
    for name, kind in CLASSES.items():
        options = list(options_of(kind))
        assert len({option.flag for option in options}) == len(options), name
        assert [option.flag for option in options if not option.about] == [], name


def test_flat_options_and_switches_keep_the_defaults_of_the_others(pair_words):
    words = ["--prompt", "a", "--prompt", "b", "--no-chat", "--max_new_tokens", "3", "--k", "2"]
    config = parse(GenerateConfig, "generate", [*pair_words, *words])
    assert config.prompt == ("a", "b") and not config.chat and config.max_new_tokens == 3
    assert (config.rule.k, config.rule.debt) == (2.0, "top")
    serve = parse(CLASSES["serve"], "serve", [*pair_words, "--bank", "3"])
    assert (serve.rule.rule, serve.rule.bank) == ("pathwise", 3.0)


def test_options_take_all_values_a_home_folder_is_expanded_and_no_path_is_empty(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["--source", "s", "--output", "~/out", "--input=~/a", "~/b", "--against", "~"]
    config = parse(DecontaminateConfig, "decontaminate", [*words, "--against=/"])
    assert config.output == tmp_path / "out" and config.input == (tmp_path / "a", tmp_path / "b")
    assert config.against == (tmp_path, Path("/"))
    assert PlanConfig().config  # a default, which other values replace
    assert parse(PlanConfig, "plan", ["--config", str(tmp_path)]).config == (tmp_path,)
    with pytest.raises(Refused, match="--output: must not be empty"):
        parse(PlanConfig, "plan", ["--output", ""])


def test_configs_of_the_package_have_names(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # not a checkout, as after an installation
    file = CONFIGS / "eval" / "quickstart-methods.toml"
    names = ["quickstart-methods", "quickstart-methods.toml", "eval/quickstart-methods"]
    for name in [*names, "configs/eval/quickstart-methods.toml", str(file)]:
        assert find_config(Path(name)) == file
    (tmp_path / "quickstart-methods.toml").write_text("")
    assert find_config(Path("quickstart-methods.toml")) == Path("quickstart-methods.toml")
    err = refused(capsys, "sweep", "quickstart-method", "--dry-run")
    assert "there is no file quickstart-method; the package has quickstart-methods" in err


def test_the_packages_configs_are_listed_by_names_that_find_them(capsys):
    for name, config in (("sweep", "quickstart-methods"), ("plan", "common_pile")):
        out, _ = run(capsys, name, "--list")
        listed = dict(line.split(maxsplit=1) for line in out.splitlines())
        assert all(find_config(Path(file)).is_file() for file in listed) and config in listed
        assert not {"token", "byte", "prompts"} & listed.keys() and all(listed.values())


@pytest.mark.parametrize("columns", [80, 300])
def test_every_command_has_help_with_an_example_as_wide_as_the_terminal(
    capsys, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in CLASSES:
        out, _ = run(capsys, *name.split(), "--help")
        assert " ".join(out.split()).count(f"anchored {name}") >= 2, name
        wide = [line for line in out.splitlines() if len(line) > min(columns, 100)]
        assert all(line.startswith("  --") for line in wide), name  # names of an option's values
        assert "None" not in out, name  # an option without a default is optional, in words
