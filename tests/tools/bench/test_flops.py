"""The cost model: its terms by hand, and a table row for every pair of lengths."""

import torch

from anchored.tools.bench.flops import (
    FLOPS_PER_LOGIT,
    NUM_PASSES,
    BenchFlopsConfig,
    num_matrix_weights,
    run,
    token_cost,
)
from anchored.tools.bench.random_inputs import random_pair


def test_the_terms_are_those_of_the_paper():
    pair = random_pair("tiny", "small", vocab_size=64, context_length=8, dtype=torch.float32)
    cost = token_cost(pair, prompt_tokens=6, new_tokens=3)
    weights = num_matrix_weights(pair.safe) + num_matrix_weights(pair.risky)
    assert cost.steps == 2 * weights and cost.prompt == 2 * cost.steps
    assert cost.debt == 2 * 64 * FLOPS_PER_LOGIT * 6 / 3
    assert cost.projection == 2 * 64 * FLOPS_PER_LOGIT * NUM_PASSES
    assert cost.total == cost.steps + cost.prompt + cost.debt + cost.projection


def test_the_embedding_table_is_not_multiplied_with():
    pair = random_pair("tiny", "tiny", vocab_size=64, context_length=8, dtype=torch.float32)
    layers = 2 * (4 * 128 * 128 + 3 * 128 * 352 + 2 * 128)
    assert num_matrix_weights(pair.safe) == layers + 128 + 64 * 128  # final norm, output layer


def test_every_pair_of_lengths_has_a_row(capsys):
    config = BenchFlopsConfig(
        safe="tiny", risky="tiny", vocab_size=64, prompt_tokens=(3, 5), new_tokens=(2, 4)
    )
    assert run(config) == 0
    _, titles, *rows = capsys.readouterr().out.splitlines()
    assert "GFLOP/s" in titles and [row.split()[0] for row in rows] == ["3", "3", "5", "5"]
