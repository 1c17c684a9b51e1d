"""Tasks that processes share: each is done once, and what a dead process was at is done again."""

from contextlib import contextmanager
from functools import partial

import pytest

from anchored.durable_files import locked
from anchored.eval.experiments import steps
from anchored.eval.experiments.steps import Steps, Task, share


def tasks_of(folder, done):
    def work(name):
        done.append(name)
        (folder / name).touch()

    return [Task(name, folder / name, partial(work, name)) for name in "abc"]


def test_what_another_process_is_at_is_left_to_it_and_done_when_it_has_ended(tmp_path):
    done = []
    with locked(tmp_path / "locks" / "b", waits=False):
        share(tasks_of(tmp_path, done), tmp_path / "locks", waits=False)
        assert done == ["a", "c"]
    share(tasks_of(tmp_path, done), tmp_path / "locks")
    assert done == ["a", "c", "b"]


def test_what_is_done_is_not_done_again_be_it_found_out_under_the_lock(tmp_path, monkeypatch):
    @contextmanager
    def just_done(path, **_):
        (tmp_path / "a").touch()  # by a process that released the lock a moment ago
        yield True

    monkeypatch.setattr(steps, "locked", just_done)
    share([Task("a", tmp_path / "a", lambda: pytest.fail("done again"))], tmp_path / "locks")


def test_steps_run_once_and_again_where_they_were_interrupted(tmp_path):
    ran = []
    (tmp_path / "steps.json.partial-1f").touch()  # of a process that begins at the same time
    with pytest.raises(FileNotFoundError):
        Steps(tmp_path, {"a": 1}, owner="quickstart").run("one", (tmp_path / "gone" / "b").mkdir)
    (tmp_path / "left").touch()
    for names in (["one"], ["one", "two"]):
        steps = Steps(tmp_path, {"a": 1}, owner="quickstart")
        for name in names:
            steps.run(name, partial(ran.append, name))
    assert ran == list(steps.seconds) == ["one", "two"]


def test_a_record_that_no_quickstart_wrote_is_refused(tmp_path):
    for content in ("{", '{"settings": {}, "steps": {"one": 3}}'):
        (tmp_path / "steps.json").write_text(content)
        with pytest.raises(ValueError, match=r"steps.json is not what a quickstart writes"):
            Steps(tmp_path, {"a": 1}, owner="quickstart")
        assert (tmp_path / "steps.json").read_text() == content
