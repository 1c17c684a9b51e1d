"""Steps run once, in order, for one set of settings."""

from functools import partial

import pytest

from anchored.eval.experiments.experiment import Steps as ExperimentSteps

Steps = partial(ExperimentSteps, owner="quickstart")


def test_finished_steps_are_not_run_again(tmp_path):
    ran = []
    Steps(tmp_path, "a").run("one", lambda: ran.append("one"))
    again = Steps(tmp_path, "a")
    again.run("one", lambda: ran.append("one again"))
    again.run("two", lambda: ran.append("two"))
    assert ran == ["one", "two"] and list(again.seconds) == ["one", "two"]


def test_an_interrupted_step_runs_again_in_the_same_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        Steps(tmp_path, "a").run("one", (tmp_path / "gone" / "corpus").mkdir)
    (tmp_path / "left").touch()
    Steps(tmp_path, "a").run("one", (tmp_path / "corpus").mkdir)
    assert (tmp_path / "corpus").exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"settings": "a"}', '{"seconds": 3}'])
def test_a_record_that_no_quickstart_wrote_is_refused(tmp_path, content):
    (tmp_path / "steps.json").write_text(content)
    with pytest.raises(ValueError, match=r"steps.json is not what a quickstart writes"):
        Steps(tmp_path, "a")
    assert (tmp_path / "steps.json").read_text() == content
