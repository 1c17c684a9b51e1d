"""Which GPUs a sweep's processes have, and what does not fit on them."""

import os
from pathlib import Path

import pytest

from anchored.configs.config_file import from_table
from anchored.eval.experiments.placement import Placement

SPREAD = {"risky_device_map": "auto"}


@pytest.fixture
def gpus(monkeypatch):
    """A machine with as many GPUs, and the process that torchrun gave a number."""

    def machine(count, rank=None, visible=None):
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        for name, value in (("LOCAL_RANK", rank), ("CUDA_VISIBLE_DEVICES", visible)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    return machine


@pytest.mark.parametrize(
    ("num_gpus", "count", "rank", "visible", "expected"),
    [
        (1, 4, None, None, "0"),
        (1, 4, "3", None, "3"),
        (2, 4, "1", None, "2,3"),
        (2, 4, "1", "7,5,3,1", "3,1"),
        (1, 0, "1", None, None),
        (2, 4, "2", None, "refused"),
    ],
)
def test_a_process_sees_its_own_group(gpus, num_gpus, count, rank, visible, expected):
    gpus(count, rank, visible)
    placement = Placement(gpus=num_gpus, options=SPREAD if num_gpus > 1 else {})
    placement.take_gpus("cpu")
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    if expected == "refused":
        with pytest.raises(ValueError, match="the GPUs 4 to 5 of 4: start at most 2 with 2 each"):
            placement.take_gpus("cuda")
    else:
        placement.take_gpus("")
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"gpus": 0}, "gpus must be >= 1, got 0"),
        ({"gpus": 2}, "both models would lie on the first"),
        ({"gpu_memory": -1.0}, "gpu_memory must be >= 0"),
        ({"gpu": 2}, "unknown config key gpu"),
    ],
)
def test_what_cannot_be_is_one_line(table, words):
    with pytest.raises(ValueError, match=words) as error:
        from_table(Placement, table)
    assert "\n" not in str(error.value)


def folder(path: Path, num_bytes: int) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(bytes(num_bytes))
    return path


def test_a_pair_must_fit_on_the_gpus_of_a_process(tmp_path):
    safe, risky = folder(tmp_path / "safe", 10_000), folder(tmp_path / "risky", 190_000)

    def plan(**more):
        placement = Placement(gpu_memory=1.2e-4, **more)
        return placement.plan(placement.models(safe, risky, ""))

    shown = plan(gpus=2, options=SPREAD)
    assert shown.startswith("each process: 2 GPU(s), device = CUDA where there is one, risky_")
    with pytest.raises(ValueError, match=r"raise placement.gpus, or quantize the risky model"):
        plan()
    with pytest.raises(ValueError, match=r"unknown config key placement.options.risky_devic "):
        plan(options={"risky_devic": "cpu"})
    risky = Path("owner/risky")  # of a model on the Hub the size is not known
    assert "weights" not in plan()
