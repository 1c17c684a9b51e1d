"""The environment record: plain JSON, and honest about what is absent."""

import json
import subprocess

import torch

from anchored import environment
from anchored.environment import environment_record


def test_record_is_json_names_the_versions_in_use_and_null_for_absent_packages(monkeypatch):
    monkeypatch.setattr(environment, "_PACKAGES", ("numpy", "no-such-package-here"))
    record = json.loads(json.dumps(environment_record()))
    assert record["packages"]["torch"] == torch.__version__
    assert record["packages"]["numpy"] and record["packages"]["no-such-package-here"] is None
    assert len(record["devices"]) == torch.cuda.device_count()
    assert record["num_cpus"] >= 1


def test_commit_and_local_changes_are_recorded(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    nowhere = {"git_commit": None, "has_local_changes": None}
    assert environment._git_state(tmp_path) == nowhere
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
