"""Fingerprints of folders: what they cover, and where they are remembered."""

import json
import shutil
from pathlib import Path

import pytest

from anchored.decode.pair.folder import cache_folder, folder_fingerprint


@pytest.fixture
def folder(pair_folders, tmp_path) -> Path:
    return Path(shutil.copytree(pair_folders[0], tmp_path / "models" / "safe"))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANCHORED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fingerprints"


def test_a_fingerprint_is_remembered_in_a_cache(folder, cache):
    files = sorted(folder.parent.rglob("*"))
    known = folder_fingerprint(folder)
    assert sorted(folder.parent.rglob("*")) == files
    (record,) = cache.iterdir()
    assert json.loads(record.read_text())["folder"] == str(folder)
    record.write_text(record.read_text().replace(known, "remembered"))
    assert folder_fingerprint(folder) == "remembered"


@pytest.mark.parametrize("text", ["{ not json", "[]", "{}"])
def test_a_damaged_memory_of_a_fingerprint_is_made_anew(folder, cache, text):
    known = folder_fingerprint(folder)
    (record,) = cache.iterdir()
    record.write_text(text)
    assert folder_fingerprint(folder) == known
    assert json.loads(record.read_text())["sha256"] == known


def test_a_changed_file_is_read_again_but_no_second_copy_of_the_weights(folder, cache):
    known = folder_fingerprint(folder)
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert folder_fingerprint(folder) == known
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert folder_fingerprint(folder) != known


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("ANCHORED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "anchored"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "anchored"


def test_a_cache_that_cannot_be_written_is_one_warning(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANCHORED_CACHE", str(tmp_path / "file"))
    assert len(folder_fingerprint(folder)) == 64
    (line,) = caplog.messages
    assert line.startswith("fingerprint not cached, it is computed anew each time:")
