"""The benchmarks of pairs of random weights: rows for every engine and length, costs by hand."""

import math

import torch

from anchored.tools.bench import decode, flops
from anchored.tools.bench.flops import FLOPS_PER_LOGIT, NUM_PASSES, num_matrix_weights
from anchored.tools.bench.options import BenchDecodeConfig, BenchFlopsConfig
from anchored.tools.bench.random_inputs import random_pair

TINY = {"safe": "tiny", "risky": "tiny", "vocab_size": 64}


def test_every_engine_has_a_row_for_every_batch_size(capsys):
    config = BenchDecodeConfig(**TINY, batch_sizes=(1, 2), prompt_tokens=4, new_tokens=4)
    assert decode.run(config) == 0
    header, titles, *lines = capsys.readouterr().out.splitlines()
    assert "tiny + tiny, V = 64, float32 on cpu" in header and "x risky alone" in titles
    rows = [line.split() for line in lines]
    engines = ["risky_alone", "safe_only", "anchored", "anchored_inf"]
    assert [row[:2] for row in rows] == [[b, e] for b in "12" for e in engines]
    for _, engine, first_ms, _, _, over_risky, over_bandwidth, _, peak_gb in rows:
        assert float(first_ms) > 0 and float(peak_gb) > 0 and math.isfinite(float(over_bandwidth))
        assert engine != "risky_alone" or over_risky == "1.00"


def test_every_pair_of_lengths_has_a_cost(capsys):
    assert flops.run(BenchFlopsConfig(**TINY, prompt_tokens=(3, 5), new_tokens=(2, 4))) == 0
    _, titles, *rows = capsys.readouterr().out.splitlines()
    assert "GFLOP/s" in titles and [row.split()[0] for row in rows] == ["3", "3", "5", "5"]


def test_a_token_reads_and_multiplies_all_weights_but_the_embedding_table():
    pair = random_pair("tiny", "small", vocab_size=64, context_length=8, dtype=torch.bfloat16)
    layers = 2 * (4 * 128 * 128 + 3 * 128 * 352 + 2 * 128)
    weights = layers + 128 + 64 * 128  # final norm, output layer
    assert num_matrix_weights(pair.safe) == weights
    assert decode.step_bytes(pair.safe) == 2 * weights
    cost = flops.token_cost(pair, prompt_tokens=6, new_tokens=3)
    assert cost["steps"] == 2 * (weights + num_matrix_weights(pair.risky))
    assert cost["prompt"] == 2 * cost["steps"]
    assert cost["debt"] == 2 * 64 * FLOPS_PER_LOGIT * 6 / 3
    assert cost["projection"] == 2 * 64 * FLOPS_PER_LOGIT * NUM_PASSES
