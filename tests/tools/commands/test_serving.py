"""`anchored serve` before it serves: which pair, where, and to whom."""

import socket

import pytest
from command_line import run

from anchored import Pathwise
from anchored.tools.commands.serving import ServeConfig


def words(folders) -> list[str]:
    return ["serve", "--safe", str(folders[0]), "--risky", str(folders[1])]


def test_without_models_it_is_the_quickstarts_pair_or_says_what_makes_one(
    pair_folders, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    _, err = run(capsys, "serve", status=1)
    assert "anchored quickstart makes a pair" in err
    models = tmp_path / "runs/quickstart/models"
    models.mkdir(parents=True)
    for name, folder in zip(("safe", "risky"), pair_folders, strict=True):
        (models / name).symlink_to(folder)
    config = ServeConfig()
    assert {path.resolve() for path in config.locations.values()} == {*pair_folders}
    assert config.rule.make() == Pathwise(k=1.0, bank=20.0)


def test_a_port_in_use_is_said_before_models_are_loaded(pair_folders, capsys, monkeypatch):
    monkeypatch.setattr(ServeConfig, "load", lambda self: pytest.fail("models were loaded"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        _, err = run(capsys, *words(pair_folders), "--port", port, status=1)
    assert err == f"anchored serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--host", "0.0.0.0"], 2, "give an --api-key-file"),
        (["--max-length", "100000", "--port", "0"], 1, "--max-length must be <= 128"),
        (["--max-bank", "1"], 2, "bank 20 of the rule is above max_bank 1"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_line(pair_folders, capsys, more, status, message):
    _, err = run(capsys, *words(pair_folders), *more, status=status)
    assert message in " ".join(err.split())


VLLM = {
    ("--rule", "no_opt"): "in vLLM the rule must be Anchored(...) or Pathwise(...), got NoOpt(",
    ("--level", "byte"): "--engine vllm decodes tokens, got --level byte",
    ("--batch-size", "4"): "--batch-size is of --engine decoder: vLLM has --engine-args",
    ("--expose-logprobs",): "--expose-logprobs is of --engine decoder: vLLM tells those of p_s",
    ("--engine-args", "a=1", "a=2"): "--engine-args gives a twice: 1 and 2",
}


@pytest.mark.parametrize("more", VLLM, ids=" ".join)
def test_vllms_engine_takes_its_own_options_alone(pair_folders, capsys, more):
    _, err = run(capsys, *words(pair_folders), "--engine", "vllm", *more, status=2)
    assert VLLM[more] in err and err.count("\n") == 1
