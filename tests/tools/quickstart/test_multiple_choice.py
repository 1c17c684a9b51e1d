"""The local multiple-choice task: sound items, and files that lm-eval loads offline."""

import random
from collections import Counter

import pytest

from anchored.tools.quickstart.documents import Document
from anchored.tools.quickstart.multiple_choice import (
    multiple_choice_items,
    write_task,
)


def small_items(*groups, seed=0):
    """Items of a few words."""
    return multiple_choice_items(groups, max_items=30, context_words=6, choice_words=3, seed=seed)


def word_documents(prefix: str, num_documents: int = 6, num_words: int = 40) -> list[Document]:
    return [
        Document(id=f"{prefix}{n}", text=" ".join(f"{prefix}{n}_{i}" for i in range(num_words)))
        for n in range(num_documents)
    ]


def test_the_label_marks_the_true_continuation_and_no_other_is_true():
    documents = {document.id: document.text for document in word_documents("a")}
    items = small_items(word_documents("a"))
    assert len(items) == 24  # 40 words hold 4 passages of 9 a document
    for item in items:
        follows = [f"{item.context} {c}" in documents[item.document_id] for c in item.choices]
        assert follows == [number == item.label for number in range(4)]


def test_false_choices_come_from_other_documents_of_the_same_group():
    for item in small_items(word_documents("a"), word_documents("b")):
        for number, choice in enumerate(item.choices):
            assert choice[0] == item.document_id[0]
            assert choice.startswith(item.document_id) == (number == item.label)


def test_passages_do_not_overlap():
    items = small_items(word_documents("a"))
    words = Counter(word for item in items for word in item.context.split())
    assert set(words.values()) == {1}


def test_passages_are_cut_at_single_spaces_only():
    lines = [Document(id=d.id, text=d.text.replace(" ", "\n")) for d in word_documents("a")]
    with pytest.raises(ValueError, match="at least one passage"):
        small_items(lines)


def test_items_follow_the_seed():
    items = small_items(word_documents("a"))
    assert items == small_items(word_documents("a")) != small_items(word_documents("a"), seed=1)


def load_task(folder, name):
    """The task as lm-eval builds it from the folder alone."""
    tasks = pytest.importorskip("lm_eval.tasks", exc_type=ImportError)
    manager = tasks.TaskManager(include_defaults=False, include_path=str(folder))
    return manager.load([name])["tasks"][name]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Write items as a task; it and its documents as lm-eval reads them, offline."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")

    def ask(items):
        write_task("toy", items, tmp_path)
        task = load_task(tmp_path, "toy")
        return task, list(task.test_docs())

    return ask


def test_lm_eval_asks_each_item_and_scores_its_true_choice_as_right(asked):
    items = small_items(word_documents("a"))
    task, docs = asked(items)
    for doc, item in zip(docs, items, strict=True):
        requests = task.construct_requests(doc, task.doc_to_text(doc))
        assert [request.args for request in requests] == [
            (item.context, f" {choice}") for choice in item.choices
        ]
        assert task.doc_to_target(doc) == item.label
    for is_right in (True, False):
        answers = [(0.0 if (i == items[0].label) == is_right else -1.0, False) for i in range(4)]
        scores = dict.fromkeys(("acc", "acc_norm"), float(is_right))
        assert task.process_results(docs[0], answers) == scores


def test_a_task_written_again_is_not_served_from_an_old_cache_nor_its_braces_filled(asked):
    generator = random.Random(0)
    texts = [" ".join(generator.choices(["{{x}}", "{%", "%}", "b", "c"], k=30)) for _ in range(5)]
    braces = [Document(id=str(n), text=text) for n, text in enumerate(texts)]
    for documents in (word_documents("a"), word_documents("b"), braces):
        items = small_items(documents)
        task, docs = asked(items)
        assert [task.doc_to_text(doc) for doc in docs] == [item.context for item in items]
