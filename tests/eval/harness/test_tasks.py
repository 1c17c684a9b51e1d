"""lm-eval on local tasks: registration, accuracy by hand, no network, clear errors."""

import json
import socket
import sys

import pytest
from local_tasks import MULTIPLE_CHOICE, QUESTIONS, write_task

from anchored import Anchored, Decoder
from anchored.eval.harness.model import AnchoredLM
from anchored.eval.harness.tasks import register_model, task_figures

pytest.importorskip("lm_eval")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Holds "bells", a multiple-choice task over QUESTIONS, which is read without the network."""

    def refuse(*_):
        raise AssertionError("a local task must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    write_task(tmp_path, "bells", MULTIPLE_CHOICE)
    return tmp_path


def share_right(decoder, per_byte):
    num_right = 0
    for question in QUESTIONS:
        # Each continuation by itself: its horizon is its length.
        scores = [
            decoder.score(question["text"], f" {choice}")[0].log_prob
            / (len(choice.encode()) if per_byte else 1)
            for choice in question["choices"]
        ]
        num_right += scores.index(max(scores)) == question["answer"]
    return num_right / len(QUESTIONS)


def test_accuracy_is_that_of_the_scores(pair, folder):
    decoder = Decoder(pair, Anchored(k=1.0))
    figures = task_figures(AnchoredLM(decoder), "bells", folder)
    assert figures["acc"] == pytest.approx(share_right(decoder, per_byte=False))
    assert figures["acc_norm"] == pytest.approx(share_right(decoder, per_byte=True))
    assert figures["acc_stderr"] >= 0
    assert json.loads(json.dumps(figures)) == figures


def test_the_model_is_found_by_name_after_registration():
    from lm_eval.api.registry import get_model

    register_model()
    register_model()
    assert get_model("anchored") is AnchoredLM
    assert get_model("hf") is not None  # the built-in ones are still there


def test_a_missing_lm_eval_is_named_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models", None)
    with pytest.raises(ModuleNotFoundError, match=r"lm-eval is not installed.*anchored\[eval\]"):
        register_model()
