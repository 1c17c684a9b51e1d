"""Tasks that processes share: each is done once, and what a dead process was at is done again."""

import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest

from anchored.eval.experiments import sharing
from anchored.eval.experiments.sharing import Task, share

HOLDER = """
import sys, time
from pathlib import Path
from anchored.durable_files import locked
with locked(Path(sys.argv[1]), waits=False) as is_ours:
    print(is_ours, flush=True)
    time.sleep(600)
"""


def tasks_of(folder, done):
    def work(name):
        done.append(name)
        (folder / name).touch()

    return [Task(name, folder / name, partial(work, name)) for name in "abc"]


def test_what_another_process_is_at_is_left_to_it_until_it_is_killed(tmp_path):
    words, done = [sys.executable, "-c", HOLDER, str(tmp_path / "claims" / "b")], []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        share(tasks_of(tmp_path, done), tmp_path / "claims", waits=False)
        assert done == ["a", "c"]
        process.kill()
    share(tasks_of(tmp_path, done), tmp_path / "claims")
    assert done == ["a", "c", "b"]


def test_what_is_done_is_not_done_again_be_it_found_out_under_the_claim(tmp_path, monkeypatch):
    @contextmanager
    def just_done(path, **_):
        (tmp_path / "a").touch()  # by a process that gave back the claim a moment ago
        yield True

    monkeypatch.setattr(sharing, "locked", just_done)
    share([Task("a", tmp_path / "a", lambda: pytest.fail("done again"))], tmp_path / "claims")
