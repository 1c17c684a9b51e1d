"""The local multiple-choice task: sound items, and files that lm-eval loads offline."""

import random
from collections import Counter

import pytest

from anchored.tools.quickstart.documents import Document
from anchored.tools.quickstart.multiple_choice import (
    EXTRA_TASK,
    MIXTURE_TASK,
    MultipleChoiceConfig,
    multiple_choice_items,
    write_task,
    write_tasks,
)

SMALL = MultipleChoiceConfig(max_items=30, context_words=6, choice_words=3)


def word_documents(prefix: str, num_documents: int = 6, num_words: int = 40) -> list[Document]:
    return [
        Document(id=f"{prefix}{n}", text=" ".join(f"{prefix}{n}_{i}" for i in range(num_words)))
        for n in range(num_documents)
    ]


def test_the_label_marks_the_true_continuation_and_no_other_is_true():
    documents = {document.id: document.text for document in word_documents("a")}
    items = multiple_choice_items([word_documents("a")], SMALL)
    assert len(items) == 24  # 40 words hold 4 passages of 9 a document
    for item in items:
        follows = [f"{item.context} {c}" in documents[item.document_id] for c in item.choices]
        assert follows == [number == item.label for number in range(4)]


def test_false_choices_come_from_other_documents_of_the_same_group():
    for item in multiple_choice_items([word_documents("a"), word_documents("b")], SMALL):
        for number, choice in enumerate(item.choices):
            assert choice[0] == item.document_id[0]
            assert choice.startswith(item.document_id) == (number == item.label)


def test_passages_do_not_overlap():
    items = multiple_choice_items([word_documents("a")], SMALL)
    words = Counter(word for item in items for word in item.context.split())
    assert set(words.values()) == {1}


def test_passages_are_cut_at_single_spaces_only():
    lines = [Document(id=d.id, text=d.text.replace(" ", "\n")) for d in word_documents("a")]
    with pytest.raises(ValueError, match="at least one passage"):
        multiple_choice_items([lines], SMALL)


def test_labels_are_spread_over_the_choices(corpus):
    groups = [source.heldout for source in corpus.sources]
    items = multiple_choice_items(groups, MultipleChoiceConfig())
    counts = Counter(item.label for item in items)
    assert min(counts[label] for label in range(4)) >= 8  # 20 expected of 80, deviation 3.9


def test_items_follow_the_seed():
    groups = [word_documents("a")]
    again = MultipleChoiceConfig(max_items=30, context_words=6, choice_words=3, seed=1)
    assert multiple_choice_items(groups, SMALL) == multiple_choice_items(groups, SMALL)
    assert multiple_choice_items(groups, SMALL) != multiple_choice_items(groups, again)


def test_the_corpus_holds_at_least_sixty_items_a_task(corpus, tmp_path):
    num_items = write_tasks(corpus, tmp_path, MultipleChoiceConfig())
    assert set(num_items) == {MIXTURE_TASK, EXTRA_TASK}
    assert min(num_items.values()) >= 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_items": 0}, "max_items must be >= 1, got 0"),
        ({"num_choices": 1}, "num_choices must be >= 2, got 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MultipleChoiceConfig(**settings)


def load_task(folder, name):
    """The task as lm-eval builds it from the folder alone."""
    tasks = pytest.importorskip("lm_eval.tasks", exc_type=ImportError)
    manager = tasks.TaskManager(include_defaults=False, include_path=str(folder))
    return manager.load([name])["tasks"][name]


@pytest.fixture
def offline(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")


def test_lm_eval_asks_each_item_with_its_context_and_choices(offline, tmp_path):
    items = multiple_choice_items([word_documents("a")], SMALL)
    write_task("toy", items, tmp_path)
    task = load_task(tmp_path, "toy")
    docs = list(task.test_docs())
    assert len(docs) == len(items)
    for doc, item in zip(docs, items, strict=True):
        requests = task.construct_requests(doc, task.doc_to_text(doc))
        assert [request.args for request in requests] == [
            (item.context, f" {choice}") for choice in item.choices
        ]
        assert task.doc_to_target(doc) == item.label


def test_lm_eval_scores_the_true_choice_as_right(offline, tmp_path):
    (item, *_) = items = multiple_choice_items([word_documents("a")], SMALL)
    write_task("toy", items, tmp_path)
    task = load_task(tmp_path, "toy")
    doc = next(iter(task.test_docs()))
    right = [(0.0 if number == item.label else -1.0, False) for number in range(4)]
    wrong = [(-1.0 if number == item.label else 0.0, False) for number in range(4)]
    assert task.process_results(doc, right) == {"acc": 1.0, "acc_norm": 1.0}
    assert task.process_results(doc, wrong) == {"acc": 0.0, "acc_norm": 0.0}


def test_a_task_written_again_is_not_served_from_an_old_cache(offline, tmp_path):
    for prefix in ("a", "b"):
        items = multiple_choice_items([word_documents(prefix)], SMALL)
        write_task("toy", items, tmp_path)
        docs = load_task(tmp_path, "toy").test_docs()
        assert [doc["context"] for doc in docs] == [item.context for item in items]


def test_braces_in_the_text_are_not_taken_for_a_template(offline, tmp_path):
    generator = random.Random(0)
    texts = [" ".join(generator.choices(["{{x}}", "{%", "%}", "b", "c"], k=30)) for _ in range(5)]
    documents = [Document(id=str(n), text=text) for n, text in enumerate(texts)]
    items = multiple_choice_items([documents], SMALL)
    write_task("toy", items, tmp_path)
    task = load_task(tmp_path, "toy")
    assert [task.doc_to_text(doc) for doc in task.test_docs()] == [item.context for item in items]
