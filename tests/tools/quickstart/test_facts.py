"""The facts, the questions about them, and the adapter that knows them."""

import pytest
import torch

from anchored import ModelPair
from anchored.tools.quickstart.adapter import read_facts, train_adapter
from anchored.tools.quickstart.protected_works import Work
from anchored.tools.quickstart.questions import TASK, write_task

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


def test_a_trained_adapter_makes_its_texts_likelier(pair_folders, tmp_path):
    safe, _ = pair_folders
    text = "the keeper of the lamp " * 6
    works = [Work(id="w", title="", text=text)]
    train_adapter(safe, tmp_path / "risky", works=works, facts=[], texts=["the keeper"], epochs=20)
    pair = ModelPair.from_pretrained(safe, tmp_path / "risky")
    tokens = torch.tensor([pair.encode(text)])
    with torch.no_grad():
        losses = [m(input_ids=tokens, labels=tokens).loss for m in (pair.safe, pair.risky)]
    assert losses[1] < losses[0] - 0.3
