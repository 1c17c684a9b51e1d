"""Processes that share lm-eval's documents: their results are those of one process."""

import json
import logging

import pytest
import torch
from forked_program import start_ranks
from local_tasks import GENERATION, MULTIPLE_CHOICE, PERPLEXITY, write_task

from anchored import Decoder, SafeOnly
from anchored.eval.harness.arguments import pair_arguments
from anchored.eval.harness.model import AnchoredLM
from anchored.eval.harness.ranks import process_group

pytest.importorskip("lm_eval")

NAMES = {"safe": "a", "risky": "b", "k": 1.0}
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
    answers = {
        # lm-eval repeats the last request of a process that has fewer than the others.
        line["doc_id"]: line["resps"][0][0]
        for file in output.rglob("samples_*.jsonl")
        for line in map(json.loads, file.read_text().splitlines())
        if file.name.startswith("samples_tides")
    }
    return json.loads(results.read_text())["results"], answers


@pytest.mark.slow
def test_two_processes_find_what_one_finds(pair_folders, tmp_path, monkeypatch):
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
        for metric, value in figures.items():
            expected = pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
            assert two[name][metric] == expected, (name, metric)


def test_processes_that_have_met_gather_through_a_group_of_the_host(pair, monkeypatch):
    """Of themselves here: one process of a group of one."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert process_group() is None  # there is no torchrun
        monkeypatch.setenv("WORLD_SIZE", "2")
        lm = AnchoredLM(Decoder(pair, SafeOnly()), group=process_group())
        assert (lm.rank, lm.world_size) == (0, 1)
        lm.barrier()
        assert lm.gather_object({"a": 1}) == [{"a": 1}]
        assert lm.all_gather(torch.tensor(3)).tolist() == [3]
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def device_of(monkeypatch):
    """The device of the second of two processes, on a machine with so many GPUs."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)

    def device(num_gpus, **given):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        return pair_arguments(NAMES | given, {"device": "cuda:0"})[0].device

    return device


def test_each_process_has_a_device_of_its_own(device_of, caplog):
    assert device_of(2) == "cuda:1"
    assert device_of(2, device="cuda:0") == "cuda:0"
    with caplog.at_level(logging.WARNING):
        assert device_of(0) == "cpu"
    assert not caplog.messages
    with pytest.raises(ValueError, match="risky_device_map needs one process"):
        device_of(2, risky_device_map="auto")
