"""The loader's benchmark: a row for each way to read, all of them the same tokens."""

from itertools import islice

import pytest
import torch

from anchored.tools.bench.pretrain.loader import (
    COPY,
    OURS,
    TORCH,
    BenchLoaderConfig,
    WindowDataset,
    random_plan,
)
from anchored.tools.cli import main

SMALL = {"sources": 3, "source_tokens": 700, "seq_len": 16, "batch_size": 4, "batches": 60}


def test_the_program_prints_a_table_without_wrong_tokens(capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    with pytest.raises(SystemExit) as status:
        main(["bench", "loader", *words, "--runs=1"])
    assert status.value.code == 0
    header, titles, *rows = capsys.readouterr().out.splitlines()
    assert "60 batches of 4 sequences of 16 tokens, 3 sources" in header
    assert "ratio" in titles and "other ids" in titles
    assert [row[:20].strip() for row in rows] == [COPY, TORCH, OURS]
    assert [row.split()[-1] for row in rows] == ["-", "0", "0"]


def test_the_copy_is_what_the_plan_says_beyond_the_end_of_a_source_too(tmp_path):
    plan = random_plan(tmp_path, BenchLoaderConfig(**SMALL))
    sequences = range(SMALL["batches"] * SMALL["batch_size"])
    ends = [place.start + 16 for place in map(plan.locate, sequences)]
    assert any(end >= 700 for end in ends)
    windows = WindowDataset(plan, len(sequences))
    for number, (inputs, labels) in enumerate(windows.batches(4)):
        rows = [torch.from_numpy(plan.tokens(4 * number + row).astype("int64")) for row in range(4)]
        assert torch.equal(inputs, torch.stack(rows)[:, :-1])
        assert torch.equal(labels, torch.stack(rows)[:, 1:])
    first = next(islice(windows, 1))
    assert torch.equal(first[0], next(windows.batches(4))[0][0])
