"""`anchored serve` before it serves: which pair, where, and to whom."""

import socket

import pytest
from command_line import run

from anchored import Pathwise
from anchored.tools.commands.serving import ServeConfig


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


def test_a_port_in_use_is_said_before_models_are_loaded(pair_words, capsys, monkeypatch):
    monkeypatch.setattr(ServeConfig, "load", lambda self: pytest.fail("models were loaded"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        _, err = run(capsys, "serve", *pair_words, "--port", port, status=1)
    assert err == f"anchored serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
