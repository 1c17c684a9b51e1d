"""What holds for the options of every command: repeats, paths, names of configs."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from command_line import refused

from anchored.configs.config_file import CONFIGS, find_config
from anchored.decode.rules.registry import BudgetOptions, DebtOptions
from anchored.tools.cli import COMMANDS, options_class
from anchored.tools.commands.option_help import described
from anchored.tools.commands.training.decontaminate import DecontaminateConfig
from anchored.tools.commands.training.plan import PlanConfig
from anchored.tools.commands.training.tokenize import TokenizeConfig
from anchored.tools.commands.words import gather, option_values, parse
from anchored.wrong_words import Refused

CLASSES = {name: options_class(command) for name, command in COMMANDS.items() if name != "lm-eval"}


@pytest.mark.parametrize("name", CLASSES)
def test_no_option_of_any_command_keeps_only_the_last_of_two_values(name):
    options = {**option_values(CLASSES[name]), "--between": "one"}
    for flag, values in option_values(CLASSES[name]).items():
        words = [flag, "a", "--between", "x", "--" + flag[2:].replace("-", "_"), "b"]
        if values == "several":
            assert gather(options, words) == [flag, "a", "b", "--between", "x"]
            assert gather(options, [flag, "a", f"{flag}=b"]) == [flag, "a", "b"]
        elif values == "one an occurrence":
            assert gather(options, words) == words
        else:
            with pytest.raises(Refused, match=f"{flag} is given twice, and takes one value"):
                gather(options, words)


@pytest.mark.parametrize("name", CLASSES)
def test_every_option_of_any_command_says_what_it_is(name):
    kinds = [CLASSES[name]]
    for kind in kinds:
        hints = get_type_hints(kind)
        kinds += filter(is_dataclass, hints.values())
        assert [option for option in hints if not described(kind, option)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_options_of_a_budget_have_one_owner(name):
    """Every command that has one of them has all, with their types, defaults and help."""
    kinds = [CLASSES[name]]
    names = {field.name for field in fields(BudgetOptions)}
    for kind in kinds:
        hints = get_type_hints(kind)
        kinds += filter(is_dataclass, hints.values())
        if "divergence" in hints:
            assert issubclass(kind, BudgetOptions), kind
        if "debt_window" in hints:  # a budget may be a judge's, in dollars
            assert issubclass(kind, DebtOptions), kind
        if issubclass(kind, BudgetOptions):
            assert not names & vars(kind).get("__annotations__", {}).keys(), kind


def test_options_take_all_values_and_their_defaults_are_replaced(tmp_path):
    file = str(tmp_path)
    words = ["--source", "s", "--output", "o", "--input", "i"]
    both = ["--against", file, *words, "--against", "/"]
    assert parse(DecontaminateConfig, "decontaminate", both).against == (tmp_path, Path("/"))
    together = ["--against", file, "/", *words]
    assert parse(DecontaminateConfig, "decontaminate", together).against == (tmp_path, Path("/"))
    more = ["--tokenizer", "t", "--licenses", "CC0", *words, "--licenses", "MIT"]
    assert parse(TokenizeConfig, "tokenize", more).licenses == ("CC0", "MIT")
    assert PlanConfig().config  # a default, which what is given replaces
    plan = parse(PlanConfig, "plan", ["--config", file, "--config=/"])
    assert plan.config == (tmp_path, Path("/"))


def test_a_home_folder_is_expanded_and_no_path_is_empty(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["--source", "s", "--output", "~/out", "--input=~/a", "~/b", "--against", "/"]
    config = parse(DecontaminateConfig, "decontaminate", words)
    assert config.output == tmp_path / "out" and config.input == (tmp_path / "a", tmp_path / "b")
    with pytest.raises(Refused, match="--output must not be empty"):
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
    # Found, and read: what is missing is the run that its paths name.
    err = refused(capsys, "sweep", "quickstart-methods")
    assert "prompts: there is no file or folder" in err
    assert f"nor {tmp_path}/runs/quickstart/prompts.jsonl" in err


def test_a_name_of_several_configs_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("anchored.configs.config_file.CONFIGS", tmp_path / "configs")
    for folder in ("a", "b"):
        (tmp_path / "configs" / folder).mkdir(parents=True)
        (tmp_path / "configs" / folder / "same.toml").write_text("")
    with pytest.raises(ValueError, match=r"may be any of configs/a/same.toml, configs/b/same.toml"):
        find_config(Path("same"))
