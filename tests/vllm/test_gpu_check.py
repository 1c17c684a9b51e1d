"""The part of gpu-check that runs pairs inside vLLM, here on its CPU build."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import torch

from anchored.tools.gpu_check import pair_decoding, vllm_pair, vllm_soak
from anchored.tools.gpu_check.check import SMALL
from anchored.tools.gpu_check.tasks import task_named

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", vllm_pair.KINDS)
def test_tokens_are_the_decoders_and_ledgers_verify(kind):
    (row,) = task_named("vllm", kind).run(CPU, SMALL)
    assert row["status"] == "passed", row
    (event,) = [vllm_pair.KINDS[kind].event]
    assert row["detail"].startswith("12 of 12 equal") and event in row["detail"]


def test_short_requests_stay_within_their_bounds():
    """The soak: docs/results/vllm-soak.txt is one of a hundred thousand."""
    (row,) = task_named("vllm", "short requests").run(CPU, SMALL)
    assert row["status"] == "passed", row
    assert row["detail"].startswith("120 of 120 within their bounds")
    assert "120 of 120 ledgers verify" in row["detail"]


def test_what_was_overspent_is_counted_apart_from_the_engine():
    header = {"k": 0.5, "K": 1.0, "debt": 0.25}

    def ledger(*spends: float, **changes: float) -> SimpleNamespace:
        steps = [SimpleNamespace(step=i, spend=spend) for i, spend in enumerate(spends)]
        return SimpleNamespace(header=SimpleNamespace(**{**header, **changes}), steps=steps)

    assert vllm_soak.overspent(ledger(0.25, 0.5)) == 0
    assert vllm_soak.overspent(ledger(0.25, 0.5, 0.125)) == 0.125
    assert vllm_soak.overspent(ledger(0.5)) == 0.25  # ahead of its step
    assert vllm_soak.overspent(ledger(0.0, debt=float("inf"))) == 0
    assert vllm_soak.overspent(ledger(0.5, debt=float("inf"))) == 0.5


def test_times_are_taken_of_every_engine(monkeypatch):
    """On a CPU, where they mean nothing."""
    for name, value in {"PROMPT_TOKENS": 40, "NEW_TOKENS": 3}.items():
        monkeypatch.setattr(pair_decoding, name, value)
        monkeypatch.setattr(vllm_pair, name, value)
    monkeypatch.setattr(pair_decoding, "NUM_RUNS", 1)
    monkeypatch.setattr(vllm_pair, "TIMED_ENGINE", {**vllm_pair.TIMED_ENGINE, "block_size": 32})
    timings = list(vllm_pair.engine_timings(CPU, ("tiny", "tiny"), 64, (1, 2)))
    assert [(t.engine, t.batch_size) for t in timings] == [
        (engine, size) for engine in ("vLLM, risky alone", "vLLM", "ours") for size in (1, 2)
    ]
    assert [t.over_risky for t in timings[:2]] == [1.0, 1.0]
    assert all(t.tokens_per_s > 0.0 for t in timings)
