"""The lm-eval model from its arguments; processes that share its documents; a local task."""

import json
import logging
import socket

import pytest
import torch
from forked_program import start_ranks
from json_lines import read_json_lines
from local_tasks import GENERATION, MULTIPLE_CHOICE, PERPLEXITY, QUESTIONS, write_task

from anchored import Anchored, Decoder
from anchored.eval.harness.arguments import pair_arguments
from anchored.eval.harness.model import AnchoredLM
from anchored.eval.harness.tasks import register_model, task_figures

pytest.importorskip("lm_eval")

NAMES = {"safe": "a", "risky": "b", "k": 1.0}


def test_a_model_is_made_by_its_name_from_an_argument_string(pair_folders, tmp_path):
    from lm_eval.api.registry import get_model

    register_model()
    safe, risky = map(str, pair_folders)
    lm = get_model("anchored").create_from_arg_string(
        f"safe={safe},risky={risky},k=0.5,debt_window=3,seed=7,dtype=float64,risky_device=cpu,"
        "speculate=2,safe_attn_implementation=eager,level=token",
        {"batch_size": "4", "device": "cpu", "max_batch_size": None},
    )
    assert lm.decoder.rule == Anchored(k=0.5, debt_window=3)
    assert (lm.decoder.batch_size, lm.seed, lm.max_length) == (4, 7, 128)
    assert (lm.rank, lm.world_size) == (0, 1)
    assert lm.decoder.pair.dtype == torch.float64
    assert lm.decoder.generate("salt", max_new_tokens=4)[0].ledger.drafted > 0
    assert lm.decoder.pair.safe.config._attn_implementation == "eager"
    named = tmp_path / "pair.json"
    named.write_text(json.dumps({"schema": "anchored-pair/1", "safe": safe, "risky": risky}))
    as_bytes = AnchoredLM.create_from_arg_obj(
        {"pair": str(named), "k": 2, "level": "byte"}, {"device": "cpu"}
    )
    assert (as_bytes.decoder.rule.k, as_bytes.decoder.level.name) == (2, "byte")
    with pytest.raises(ValueError, match="settings of rule anchored"):
        AnchoredLM.create_from_arg_string("safe=a,risky=b,k=1,kk=2")


def options(given, defaults=None):
    return pair_arguments(NAMES | given, defaults or {})[0]


def test_what_the_command_passes_unasked_is_16_requests_at_once_on_the_cpu_with_a_line(
    monkeypatch, caplog
):
    """On a machine without CUDA; a batch size is that of the user."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    unasked = {name: getattr(EvaluatorConfig(), name) for name in ("batch_size", "device")}
    assert unasked == {"batch_size": 1, "device": "cuda:0"}
    with caplog.at_level(logging.WARNING):
        pair = options({}, unasked)
    assert (pair.batch_size, pair.device) == (16, "cpu")
    line = "there is no CUDA device here: the pair runs on the CPU, not on cuda:0"
    assert caplog.messages == [line]
    assert options({}, {"batch_size": "1"}).batch_size == 1  # --batch_size 1
    assert options({"batch_size": 1}, {"batch_size": 1}).batch_size == 1
    assert options({}, {"batch_size": "auto:4", "max_batch_size": 8}).batch_size == 8


TASKS = {"bells": MULTIPLE_CHOICE, "tides": GENERATION, "waves": PERPLEXITY}


def evaluated(folders, tasks, output, num_processes):
    """Every answer and every figure, once the processes have ended."""
    safe, risky = folders
    words = ["lm-eval", "run", "--model", "anchored", "--device", "cpu", "--log_samples"]
    words += ["--model_args", f"safe={safe},risky={risky},k=0.5,batch_size=2"]
    words += ["--include_path", str(tasks), "--tasks", *TASKS, "--output_path", str(output)]
    for program in start_ranks("anchored.tools.cli", words, output, num_processes):
        program.wait_for_success()
    (results,) = output.rglob("results_*.json")
    (file,) = output.rglob("samples_tides*.jsonl")
    # lm-eval repeats the last request of a process that has fewer than the others.
    answers = {line["doc_id"]: line["resps"][0][0] for line in read_json_lines(file)}
    return json.loads(results.read_text())["results"], answers


@pytest.mark.slow
def test_two_processes_give_what_one_gives(pair_folders, tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name, settings in TASKS.items():
        write_task(tmp_path, name, settings)
    one, texts = evaluated(pair_folders, tmp_path, tmp_path / "one", 1)
    two, texts_of_two = evaluated(pair_folders, tmp_path, tmp_path / "two", 2)
    assert texts == texts_of_two and len(texts) == 3
    assert one.keys() == two.keys() == TASKS.keys()
    for name, figures in one.items():
        assert two[name] == pytest.approx(figures, abs=1e-6), name


def test_each_process_has_another_device(monkeypatch, caplog):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    asked = {"device": "cuda:0"}
    for num_gpus, given, device in ((2, {}, "cuda:1"), (2, asked, "cuda:0"), (0, {}, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=num_gpus: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=num_gpus: count)
        assert options(given, asked).device == device
    assert not caplog.messages
    with pytest.raises(ValueError, match="risky_device_map needs one process"):
        options({"risky_device_map": "auto"}, asked)


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


def test_accuracy_on_a_local_task_is_that_of_the_scores_without_the_network(
    pair, tmp_path, monkeypatch
):
    def refuse(*_):
        raise AssertionError("a local task must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    write_task(tmp_path, "bells", MULTIPLE_CHOICE)
    decoder = Decoder(pair, Anchored(k=1.0))
    figures = task_figures(AnchoredLM(decoder), "bells", tmp_path)
    assert figures["acc"] == pytest.approx(share_right(decoder, per_byte=False))
    assert figures["acc_norm"] == pytest.approx(share_right(decoder, per_byte=True))
    assert figures["acc_stderr"] >= 0
    assert json.loads(json.dumps(figures)) == figures
