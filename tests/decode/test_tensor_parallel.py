"""A risky model split over two processes gives the tokens of one process, in both of them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anchored import ModelPair

SCRIPT = Path(__file__).parent / "split_generation.py"


def tokens_of_one_process(folders) -> list[list[int]]:
    spec = importlib.util.spec_from_file_location("split_generation", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.tokens(*map(str, folders), tp_size=1)


@pytest.mark.slow
def test_two_processes_give_the_tokens_of_one(pair_folders, tmp_path):
    out = tmp_path / "tokens"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, str(SCRIPT), *map(str, pair_folders), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        timeout=300,
    )
    expected = tokens_of_one_process(pair_folders)
    for rank in range(2):
        assert json.loads(out.with_suffix(f".{rank}").read_text()) == expected


def test_a_split_needs_as_many_processes(pair_folders):
    with pytest.raises(ValueError, match=r"tp_size 2 needs torchrun --nproc-per-node 2, .* 1"):
        ModelPair.from_pretrained(*pair_folders, tp_size=2)


def test_a_split_chooses_its_own_devices(pair_folders):
    with pytest.raises(ValueError, match="tp_size gives each process its own device"):
        ModelPair.from_pretrained(*pair_folders, tp_size=2, device="cpu")
