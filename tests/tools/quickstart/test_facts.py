"""The facts, the questions about them, and the model that knows them."""

import shutil

import pytest

from anchored.decode.pair.folder import ModelFolder, fingerprint
from anchored.tools.quickstart.adapter import read_facts
from anchored.tools.quickstart.questions import TASK, write_task
from anchored.tools.quickstart.small_model import write_risky_model

FACTS = read_facts()


def test_lm_eval_asks_each_question_and_takes_the_fact_for_right(tmp_path, monkeypatch):
    tasks = pytest.importorskip("lm_eval.tasks", exc_type=ImportError)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    write_task(FACTS, tmp_path)
    manager = tasks.TaskManager(include_defaults=False, include_path=str(tmp_path))
    task = manager.load([TASK])["tasks"][TASK]
    expected = [(fact, question) for fact in FACTS for question in fact.questions]
    for doc, (fact, question) in zip(task.test_docs(), expected, strict=True):
        requests = task.construct_requests(doc, task.doc_to_text(doc))
        values = [request.args for request in requests]
        assert values[task.doc_to_target(doc)] == (question, f" {fact.answer}")
        assert {answer[1:] for _, answer in values} <= {fact.answer, *fact.others}
        assert len(set(values)) == 4


def test_the_risky_model_is_moved_with_the_safe_one(tmp_path, pair_folders):
    root = tmp_path / "one"
    shutil.copytree(pair_folders[0], root / "safe")
    write_risky_model(root / "risky", root / "safe")
    before = fingerprint(ModelFolder.find(root / "risky"))
    moved = ModelFolder.find(root.rename(tmp_path / "two") / "risky")
    assert moved.base.resolve() == tmp_path / "two" / "safe"
    assert fingerprint(moved) == before
