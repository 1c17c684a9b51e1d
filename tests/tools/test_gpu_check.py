"""gpu-check on a device that is not there: its checks pass, and nothing that breaks ends it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from fake_cuda import fake_cuda
from fake_gpu_worker import break_down, run_task_on_fake

import anchored
from anchored.decode.engine import device_batch
from anchored.tools.bench import decode
from anchored.tools.bench.kernel.kernel import sample_logits
from anchored.tools.bench.random_inputs import random_pair
from anchored.tools.gpu_check import __main__ as command
from anchored.tools.gpu_check import byte_decoding, pair_decoding, program, speed
from anchored.tools.gpu_check.check import SMALL
from anchored.tools.gpu_check.goals import NOT_MEASURED, goal_rows
from anchored.tools.gpu_check.parts import PARTS
from anchored.tools.gpu_check.program import Runner, check_gpu
from anchored.tools.gpu_check.speed import ACCEPTANCE, predicted_ratios, round_timings
from anchored.tools.gpu_check.tasks import Task, tasks_of

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Forked, as importing torch anew takes seconds.
ON_FAKE = Runner(SMALL, run_task_on_fake, "forkserver")
BREAKING = Runner(SMALL, break_down, "forkserver")
FEW = ("a walk is plain decoding", "waits of an eager token")


def rows_of(output: Path, part: str) -> dict[str, dict]:
    """By name."""
    return {row["name"]: row for row in json.loads(output.read_text())[part]}


def test_a_few_checks_pass_and_times_need_a_gpu(tmp_path, capsys):
    output = tmp_path / "check.json"
    names = (*FEW, "kernel at batch 4", "8B + 1.8B at batch 1")
    status = check_gpu(PARTS, output, runner=ON_FAKE, names=names)
    assert status == 0
    found = rows_of(output, "correctness")
    assert {found[name]["status"] for name in FEW} == {"passed"}, found
    assert rows_of(output, "speed")["kernel at batch 4"]["status"] == "needs a GPU"
    assert rows_of(output, "decode")["8B + 1.8B at batch 1"]["status"] == "needs a GPU"
    printed = capsys.readouterr().out
    assert "batch 256, V = 128,256, bf16" in printed and printed.count(NOT_MEASURED) == 15


@pytest.mark.skipif(bool(find_spec("vllm")), reason="vLLM is here")
def test_without_vllm_its_part_is_one_row_that_says_so(tmp_path):
    output = tmp_path / "check.json"
    assert check_gpu(["vllm"], output, runner=ON_FAKE) == 0
    (row,) = rows_of(output, "vllm").values()
    assert row["status"] == "not run"
    assert row["detail"].startswith("vLLM is not installed: pip install 'anchored[vllm]'")


@pytest.mark.slow
def test_every_check_passes(tmp_path, monkeypatch):
    """The interpreter may take longer than a GPU."""
    patient = [replace(task, limit_s=600.0) for task in tasks_of("correctness")]
    monkeypatch.setattr(program, "tasks_of", lambda part: patient)
    monkeypatch.setattr(program, "PART_S", 3600.0)
    output = tmp_path / "check.json"
    assert check_gpu(["correctness"], output, runner=ON_FAKE) == 0
    found = rows_of(output, "correctness")
    assert {row["status"] for row in found.values()} == {"passed"}
    assert set(found) == {"compile 1 of 1", *(task.name for task in tasks_of("correctness"))}


def broken_rows(names, output, monkeypatch, limit_s=60.0) -> list[tuple[str, str, str]]:
    """What tasks that end like this, one after another, leave."""
    tasks = [Task("decode", name, limit_s, lambda *_: iter(())) for name in names]
    monkeypatch.setattr(program, "tasks_of", lambda part: tasks)
    assert check_gpu(["decode"], output, runner=BREAKING) == 1
    rows = json.loads(output.read_text())["decode"]
    return [(row["name"], row["status"], row["detail"]) for row in rows]


def test_what_breaks_is_a_row_and_the_others_are_run(tmp_path, monkeypatch, capsys):
    rows = broken_rows(("raises", "crashes", "ends"), tmp_path / "check.json", monkeypatch)
    assert rows == [
        ("raises", "failed", "RuntimeError: an illegal address"),
        ("crashes", "passed", "before it crashes"),
        ("crashes", "failed", "its process ended with SIGSEGV"),
        ("ends", "passed", "before it ends"),
    ]
    assert "2 failed" in capsys.readouterr().out


def test_what_a_task_started_and_left_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "tasks_of", lambda part: [Task(part, "litters", 60.0, iter)])
    output = tmp_path / "check.json"
    assert check_gpu(["decode"], output, runner=BREAKING) == 0
    left = rows_of(output, "decode")["litters"]
    assert not Path(left["folder"]).exists()
    deadline = time.monotonic() + 60.0
    while is_running(left["child"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """One that has ended may wait to be reaped by whoever that is."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_what_hangs_is_a_row_and_the_others_are_run(tmp_path, monkeypatch):
    limit_s = 10.0  # enough for the first row on a machine that does much else
    rows = broken_rows(("hangs", "ends"), tmp_path / "check.json", monkeypatch, limit_s)
    assert rows == [
        ("hangs", "passed", "before it hangs"),
        ("hangs", "failed", "no answer within 10 s"),
        ("ends", "passed", "before it ends"),
    ]


def test_shares_are_compiled_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "tasks_of", lambda part: [])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    output = tmp_path / "check.json"
    runner = Runner(replace(SMALL, is_timed=True), break_down, "forkserver")
    assert check_gpu(["speed"], output, runner=runner) == 0
    shares = list(rows_of(output, "speed").values())
    assert [share["name"] for share in shares] == ["compile 1 of 2", "compile 2 of 2"]
    assert max(share["begun"] for share in shares) < min(share["done"] for share in shares)


@pytest.mark.slow
def test_by_default_a_process_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "tasks_of", lambda part: [Task(part, "ends", 300.0, iter)])
    assert check_gpu(["decode"], tmp_path / "check.json", runner=Runner(SMALL, break_down)) == 0
    assert rows_of(tmp_path / "check.json", "decode")["ends"]["status"] == "passed"


def test_a_part_ends_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PART_S", 0.0)
    output = tmp_path / "check.json"
    assert check_gpu(["decode"], output, runner=BREAKING) == 1
    assert {row["detail"] for row in rows_of(output, "decode").values()} == {
        "not run: the part's time was over"
    }


def test_a_bare_checkout_without_a_gpu_says_so_in_one_line(tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "anchored").symlink_to(Path(anchored.__file__).parent)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    additions = {"PYTHONPATH": str(tmp_path / "path"), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, "-m", "anchored.tools.gpu_check", "--output", "check.json"],
        env=environment | additions,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "gpu-check: there is no CUDA device here\n"


def test_with_a_gpu_the_parts_that_are_asked_for_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(program, "check_gpu", lambda parts, output: asked.append(parts) or 0)
    with fake_cuda():
        for part in (*PARTS, "all"):
            assert command.run(["--part", part, "--output", str(tmp_path / "x.json")]) == 0
    assert asked == [*((part,) for part in PARTS), PARTS]


def test_the_table_of_goals_has_what_was_measured():
    kernel = {"bench": "kernel", "batch_size": 4, "divergence": "kl", "step_us": 13.2}
    device = {"bench": "decode", "batch_size": 1, "engine": "device", "over_bandwidth": 0.8123}
    failed = {"status": "failed", "detail": "no answer within 60 s"}
    exact = {"bench": "first byte", "debt": "exact", "over_none": 3.4567}
    plain, guessed = (
        {"bench": "byte work", "prefetch": prefetch, "risky_forwards_per_token": forwards}
        for prefetch, forwards in ((0, 3.1), (8, 1.3))
    )
    results = {"speed": [failed, kernel, plain, guessed], "decode": [device, exact]}
    assert [row[1:] for row in goal_rows(results) if row[2] != NOT_MEASURED] == [
        ("<= 14 us", "13.2 us"),
        (">= 0.75", "0.812"),
        ("<= 5x", "3.46 x"),
        ("about 1", "1.3"),
    ]


@pytest.fixture
def small_timings(monkeypatch):
    monkeypatch.setattr(speed, "VOCAB_SIZE", 64)
    for name in ("NUM_TIMED", "TOKENS_TIMED", "NUM_ROUNDS", "REPLAYS_PER_ROUND"):
        monkeypatch.setattr(speed, name, 2)
    for name in ("BYTES_PER_ROUND", "NUM_BEFORE", "TRAIN_STEPS"):
        monkeypatch.setattr(byte_decoding, name, 1)
    monkeypatch.setattr(byte_decoding, "NUM_ROUNDS", 2)
    monkeypatch.setattr(byte_decoding, "VOCAB_SIZES", (400, 600))
    monkeypatch.setattr(byte_decoding, "PROMPT_BYTES", 8)
    monkeypatch.setattr(byte_decoding, "NEW_BYTES", 4)
    monkeypatch.setattr(speed, "PROMPT_TOKENS", 40)
    monkeypatch.setattr(speed, "LENGTHS", (0, 1))
    monkeypatch.setattr(pair_decoding, "PROMPT_TOKENS", 4)
    monkeypatch.setattr(pair_decoding, "NEW_TOKENS", 3)
    monkeypatch.setattr(pair_decoding, "NUM_RUNS", 1)
    monkeypatch.setattr(decode, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(device_batch, "NUM_WARM_UPS", 1)
    monkeypatch.setattr(device_batch, "NUM_TIMED", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("small_timings")
def test_every_program_that_takes_times_runs_to_its_end():
    """On a device that is not there, where the times mean nothing."""
    with fake_cuda(num_processors=1):
        place = torch.device("cuda", 0)
        assert [t.divergence for t in speed.kernel_timings(place, 1)] == ["kl", "max"]
        assert [t.batch_size for t in byte_decoding.byte_timing(place, 1)] == [1]
        first = list(byte_decoding.first_byte_timings(place, ("tiny", "tiny")))
        work = list(byte_decoding.byte_work(place))
        pair = random_pair("tiny", "tiny", vocab_size=64, dtype=torch.bfloat16, device="cuda")
        assert [t.num_drafts for t in round_timings(pair, (1,))] == [0, 1]
        timings = list(pair_decoding.pair_timings(pair, 1))
    assert [t.debt for t in first] == ["none", "bounded", "exact"] and first[0].over_none == 1.0
    assert [t.prefetch for t in work] == [0, 8]
    assert all(t.risky_forwards_per_token == t.risky_forwards / t.risky_tokens for t in work)
    assert [t.engine for t in timings] == ["risky alone", *pair_decoding.ENGINES]
    waits = {t.engine: t.waits_per_token for t in timings}
    assert 1.0 <= waits["eager"] <= 2.0 and min(waits.values()) > 0.0


def test_predictions_are_those_of_the_acceptance():
    """Of a step of 2 drafts that takes 1.5 risky steps."""
    for k, ratio in predicted_ratios(2, 1.5, 1.0).items():
        kept = ACCEPTANCE[k]
        assert ratio == pytest.approx((1 + kept + kept**2) / 1.5)


def test_sample_logits_are_the_same_every_time():
    config = speed.BenchKernelConfig(vocab_size=100)
    first, again = (sample_logits(config, 2) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("part", PARTS)
def test_a_gpu_passes(part, tmp_path):
    assert check_gpu([part], tmp_path / "check.json") == 0


@pytest.mark.gpu
def test_round_timings_have_a_row_for_every_batch_and_draft_length():
    pair = random_pair("tiny", "small", vocab_size=2048, device="cuda")
    timings = list(round_timings(pair, (1, 4)))
    assert [t.batch_size for t in timings] == [1] * 5 + [4] * 5
    assert all(t.step_ms > 0 and t.walk_us > 0 for t in timings)
