"""The environment record: which code a result is of, and whether it is what was committed."""

import runpy
import shutil
import subprocess

from anchored import environment


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
