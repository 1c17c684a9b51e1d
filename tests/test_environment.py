"""The environment record: plain JSON, and honest about what is absent."""

import json
import runpy
import shutil
import subprocess

import torch

from anchored import environment
from anchored.environment import environment_record


def test_record_is_json_and_names_the_versions_in_use():
    record = json.loads(json.dumps(environment_record()))
    assert record["packages"]["torch"] == torch.__version__ and record["packages"]["numpy"]
    assert len(record["devices"]) == torch.cuda.device_count() and record["num_cpus"] >= 1


def test_commit_and_local_changes_are_those_of_the_folder_of_the_code(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    def state() -> list:
        record = runpy.run_path(str(file))["environment_record"]()
        return [record["git_commit"], record["has_local_changes"]]

    file = shutil.copy(environment.__file__, tmp_path / "code.py")
    assert state() == [None, None]
    git("init", "--quiet")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "untracked").write_text("a run's output")
    commit, is_changed = state()
    assert len(commit) == 40 and is_changed is False
    file.write_text(file.read_text() + "# changed\n")
    assert state() == [commit, True]
