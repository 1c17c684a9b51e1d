"""A risky model split over two processes gives the tokens of one process, in both of them."""

import json

import pytest
import split_generation
from forked_program import start_ranks


@pytest.mark.slow
def test_two_processes_give_the_tokens_of_one(pair_folders, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folders, out = [str(folder) for folder in pair_folders], tmp_path / "tokens"
    for program in start_ranks("split_generation", [*folders, str(out)], out, 2):
        program.wait_for_success()
    expected = split_generation.tokens(*folders, tp_size=1)
    for rank in range(2):
        assert json.loads(out.with_suffix(f".{rank}").read_text()) == expected
