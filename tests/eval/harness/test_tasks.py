"""lm-eval on local tasks: registration, accuracy by hand, no network, clear errors."""

import json
import socket
import sys

import pytest

from anchored import Anchored, Decoder, RiskyOnly, SafeOnly
from anchored.eval.harness.model import AnchoredLM
from anchored.eval.harness.tasks import local_task_results, register_model

pytest.importorskip("lm_eval")

QUESTIONS = [
    {"text": "the harbour bell rang nine times", "choices": ["twice", "in the rain"], "answer": 0},
    {"text": "no keeper wrote", "choices": ["salt", "of the lamp", "every wave"], "answer": 1},
    {"text": "two tides", "choices": ["ago", "a ledger", "into the harbour"], "answer": 2},
]


def write_task(folder, name):
    """A multiple-choice task over QUESTIONS; JSON is YAML too."""
    documents = folder / f"{name}.json"
    documents.write_text(json.dumps(QUESTIONS))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(documents)},
            "cache_dir": str(folder / ".cache"),
        },
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("acc", "acc_norm")
        ],
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a local task must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def folder(tmp_path):
    write_task(tmp_path, "bells")
    return tmp_path


def share_right(decoder, per_byte):
    num_right = 0
    for question in QUESTIONS:
        # Each continuation by itself: its horizon is its own length.
        scores = [
            decoder.score(question["text"], f" {choice}")[0].log_prob
            / (len(choice.encode()) if per_byte else 1)
            for choice in question["choices"]
        ]
        num_right += scores.index(max(scores)) == question["answer"]
    return num_right / len(QUESTIONS)


@pytest.mark.parametrize("rule", [SafeOnly(), Anchored(k=1.0), RiskyOnly()], ids=lambda r: r.name)
def test_accuracy_is_that_of_the_scores(pair, folder, rule, no_network):
    decoder = Decoder(pair, rule)
    results = local_task_results(AnchoredLM(decoder), folder, ["bells"])
    assert results["bells"]["acc"] == pytest.approx(share_right(decoder, per_byte=False))
    assert results["bells"]["acc_norm"] == pytest.approx(share_right(decoder, per_byte=True))
    assert results["bells"]["acc_stderr"] >= 0
    assert json.loads(json.dumps(results)) == results


def test_limit_takes_the_first_documents(pair, folder, no_network):
    lm = AnchoredLM(Decoder(pair, SafeOnly()))
    assert local_task_results(lm, folder, ["bells"], limit=2)["bells"]["sample_len"] == 2


def test_the_model_is_found_by_name_after_registration(pair_folders, folder, no_network):
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    register_model()
    register_model()
    assert get_model("anchored") is AnchoredLM
    register_model()  # also once the class is loaded
    assert get_model("hf") is not None  # the built-in ones are still there
    safe, risky = pair_folders
    evaluated = simple_evaluate(
        model="anchored",
        model_args=f"safe={safe},risky={risky},rule=anchored,k=1.0",
        tasks=["bells"],
        batch_size=2,
        device="cpu",
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    )
    assert 0 <= evaluated["results"]["bells"]["acc,none"] <= 1
    assert evaluated["config"]["batch_sizes"] == [2]


def test_what_the_command_passes_unasked_runs_16_requests_at_once_on_any_machine(
    pair_folders, folder, no_network
):
    """A batch size of 1 and cuda:0."""
    from lm_eval import simple_evaluate
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.tasks import TaskManager

    register_model()
    unasked = EvaluatorConfig()
    assert (unasked.batch_size, unasked.device) == (1, "cuda:0")
    evaluated = simple_evaluate(
        model="anchored",
        model_args=dict(zip(("safe", "risky"), pair_folders, strict=True)) | {"k": 1.0},
        tasks=["bells"],
        limit=1,
        batch_size=unasked.batch_size,
        device=unasked.device,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    )
    assert evaluated["config"]["batch_sizes"] == [16]


def test_a_task_that_is_not_in_the_folder_is_refused(pair, folder):
    lm = AnchoredLM(Decoder(pair, SafeOnly()))
    with pytest.raises(ValueError, match=r"no task \['hellaswag'\] in .*'bells'"):
        local_task_results(lm, folder, ["bells", "hellaswag"])


def test_a_missing_lm_eval_is_named_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models", None)
    with pytest.raises(ModuleNotFoundError, match=r"lm-eval is not installed.*anchored\[eval\]"):
        register_model()
