"""The environment record: plain JSON, and honest about what is absent."""

import json
import subprocess

import torch

from anchored.eval import environment
from anchored.eval.environment import environment_record


def test_record_is_json_and_names_the_versions_in_use():
    record = json.loads(json.dumps(environment_record()))
    assert record["packages"]["torch"] == torch.__version__
    assert len(record["devices"]) == torch.cuda.device_count()
    assert record["num_cpus"] >= 1


def test_absent_packages_are_null(monkeypatch):
    monkeypatch.setattr(environment, "_PACKAGES", ("numpy", "no-such-package-here"))
    assert environment_record()["packages"]["no-such-package-here"] is None


def test_commit_and_local_changes_are_recorded(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "untracked").write_text("a run's output")
    state = environment._git_state(tmp_path)
    assert len(state["git_commit"]) == 40
    assert state["has_local_changes"] is False
    (tmp_path / "file").write_text("two")
    assert environment._git_state(tmp_path)["has_local_changes"] is True
    # An installed copy inside somebody else's checkout is not at that commit.
    (tmp_path / "inside").mkdir()
    assert environment._git_state(tmp_path / "inside")["git_commit"] is None


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path):
    assert environment._git_state(tmp_path) == {"git_commit": None, "has_local_changes": None}
