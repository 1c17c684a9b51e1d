"""The decoding benchmark: rows for every engine, the bytes that a step reads, refused settings."""

import math

import torch

from anchored.tools.bench.decode import BenchDecodeConfig, decode_rows, run, step_bytes
from anchored.tools.bench.random_inputs import random_pair

SMALL = BenchDecodeConfig(
    safe="tiny", risky="tiny", batch_sizes=(1, 2), vocab_size=64, prompt_tokens=4, new_tokens=4
)


def test_every_engine_has_a_row_for_every_batch_size():
    rows = list(decode_rows(SMALL))
    engines = ["risky_alone", "safe_only", "anchored", "anchored_inf"]
    assert [(row.batch_size, row.engine) for row in rows] == [
        (b, e) for b in (1, 2) for e in engines
    ]
    for row in rows:
        assert row.first_token_s > 0 and row.peak_bytes > 0 and math.isfinite(row.over_bandwidth)
    assert all(row.over_risky == 1 for row in rows if row.engine == "risky_alone")


def test_the_table_names_what_was_measured(capsys):
    assert run(SMALL) == 0
    header, titles, *rows = capsys.readouterr().out.splitlines()
    assert "tiny + tiny, V = 64, float32 on cpu" in header and "x risky alone" in titles
    assert len(rows) == 8


def test_a_step_reads_all_weights_but_the_embedding_table():
    pair = random_pair("tiny", "tiny", vocab_size=64, context_length=8, dtype=torch.bfloat16)
    num_weights = sum(p.numel() for p in pair.safe.parameters())
    assert step_bytes(pair.safe) == 2 * (num_weights - 64 * 128)
    assert pair.safe.lm_head.weight.data_ptr() != pair.safe.get_input_embeddings().weight.data_ptr()
