"""gpu-check runs to its end without a GPU too: what needs one is skipped, results are saved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anchored
from anchored.tools.bench.kernel import sample_logits
from anchored.tools.bench.random_inputs import random_pair
from anchored.tools.gpu_check import speed
from anchored.tools.gpu_check.decoding_checks import (
    attention_checks,
    byte_checks,
    engine_checks,
    opened_batch,
)
from anchored.tools.gpu_check.projection_checks import projection_checks
from anchored.tools.gpu_check.speed import (
    ACCEPTANCE,
    predicted_ratios,
    round_timings,
    step_times_ms,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_engine_checks_pass_here():
    checks = list(engine_checks(DEVICE))
    assert len(checks) == 8 and not any(check.passed is False for check in checks), checks
    # A captured step needs CUDA; the same step without a graph is tested in tests/decode.
    assert sum(check.passed is None for check in checks) == (0 if DEVICE.type == "cuda" else 4)


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_attention_check_passes_here():
    (check,) = attention_checks(DEVICE)
    assert check.passed, check


@pytest.mark.slow  # trains two tokenizers
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # discarded lanes divide by zero
def test_byte_checks_pass_or_are_skipped_here():
    checks = list(byte_checks(DEVICE))
    assert [check.passed for check in checks[:2]] == [True, True], checks
    assert checks[2].passed is (True if DEVICE.type == "cuda" else None)


@pytest.mark.slow
def test_a_batch_for_the_speed_of_bytes_draws_them_here():
    batch = opened_batch(DEVICE, batch_size=2, dtype=torch.float32, num_bytes=3)
    finished = [state for _ in range(3) for state in batch.step()]
    assert [len(state.steps) for state in finished] == [3, 3]


def test_a_bare_checkout_runs_to_its_end(tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "anchored").symlink_to(Path(anchored.__file__).parent)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    additions = {
        "PYTHONPATH": str(tmp_path / "path"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    output = tmp_path / "check.json"
    result = subprocess.run(
        [sys.executable, "-m", "anchored.tools.gpu_check", "--output", str(output)],
        env=environment | additions,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    record = json.loads(output.read_text())
    statuses = [row["status"] for row in record["correctness"]]
    assert set(statuses) == {"passed", "skipped"} and statuses.count("passed") == 5
    assert all(row["status"] == "skipped: not measured on a GPU" for row in record["speed"])


@pytest.mark.gpu
def test_kernel_timings_have_a_row_for_every_size_and_divergence(monkeypatch):
    monkeypatch.setattr(speed, "TARGET_US", {1: 12.0, 4: 14.0})
    timings = list(speed.kernel_timings(DEVICE))
    assert [(t.batch_size, t.divergence) for t in timings] == [
        (batch_size, divergence) for batch_size in (1, 4) for divergence in ("kl", "max")
    ]


@pytest.mark.gpu
def test_round_timings_have_a_row_for_every_batch_and_draft_length():
    pair = random_pair("tiny", "small", vocab_size=2048, device="cuda")
    timings = list(round_timings(pair, (1, 4)))
    assert [t.batch_size for t in timings] == [1] * 5 + [4] * 5
    assert all(t.step_ms > 0 and t.walk_us > 0 for t in timings)


def test_predictions_are_those_of_the_acceptance():
    """Of a step of 2 drafts that takes 1.5 risky steps."""
    for k, ratio in predicted_ratios(2, 1.5, 1.0).items():
        kept = ACCEPTANCE[k]
        assert ratio == pytest.approx((1 + kept + kept**2) / 1.5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_step_is_timed_where_there_is_no_graph_too(monkeypatch):
    monkeypatch.setattr(speed, "PROMPT_TOKENS", 16)
    monkeypatch.setattr(speed, "NUM_TIMED", 1)
    pair = random_pair("tiny", "tiny", vocab_size=1024, dtype=torch.float32, device=str(DEVICE))
    assert step_times_ms(pair, 1, 3)[0] > 0.0


def test_sample_logits_are_the_same_every_time():
    config = speed.BenchKernelConfig(vocab_size=100)
    first, again = (sample_logits(config, 2) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # discarded lanes divide by zero
def test_every_check_passes_or_is_skipped():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checks = list(projection_checks(device, num_replays=100))
    assert len(checks) == 10
    for check in checks:
        assert check.passed is not False, f"{check.name}: {check.detail}"
    num_skipped = sum(check.passed is None for check in checks)
    assert num_skipped == (0 if device.type == "cuda" else 1)
