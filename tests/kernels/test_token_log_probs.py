"""Token log-probabilities against their float64 definition, tiled and whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.kernels import reference
from anchored.kernels.token_log_probs import (
    COLUMNS_PER_TILE,
    ROWS_PER_TILE,
    hidden_token_log_probs,
    token_log_probs,
)

VOCAB_SIZES = [1, 2, 257, COLUMNS_PER_TILE - 1, COLUMNS_PER_TILE, COLUMNS_PER_TILE + 1, 9001]


def expected(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    return reference.log_softmax(logits).gather(-1, token_ids[..., None])[..., 0]


@given(
    vocab_size=st.sampled_from(VOCAB_SIZES),
    num_rows=st.integers(1, 4),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_logits_give_the_float64_log_probs(vocab_size, num_rows, scale, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype)
    token_ids = torch.randint(vocab_size, (num_rows,), generator=generator)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    tolerance = 8 * eps * max(1.0, logits.abs().max().item())
    actual = token_log_probs(logits, token_ids)
    torch.testing.assert_close(actual, expected(logits, token_ids), atol=tolerance, rtol=0)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, ROWS_PER_TILE + 3])
def test_hidden_states_give_the_log_probs_of_their_logits(vocab_size, has_bias, num_rows):
    generator = torch.Generator().manual_seed(vocab_size)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((num_rows, 5), (vocab_size, 5), (vocab_size,))
    )
    token_ids = torch.randint(vocab_size, (num_rows,), generator=generator)
    logits = hidden @ weight.T + (bias if has_bias else 0.0)
    actual = hidden_token_log_probs(hidden, weight, token_ids, bias if has_bias else None)
    torch.testing.assert_close(actual, expected(logits, token_ids), atol=1e-11, rtol=0)


def test_banned_tokens_have_no_probability_and_a_row_of_them_has_none():
    logits = torch.tensor([[0.0, -math.inf, 0.0]] * 2 + [[-math.inf] * 3])
    actual = token_log_probs(logits, torch.tensor([0, 1, 0])).tolist()
    assert actual == pytest.approx([-math.log(2), -math.inf, math.nan], abs=1e-6, nan_ok=True)


def test_a_whole_tile_of_banned_tokens_is_not_nan():
    bias = torch.full((2 * COLUMNS_PER_TILE,), -math.inf)
    bias[-1] = 3.0
    token_ids = torch.tensor([2 * COLUMNS_PER_TILE - 1])
    actual = hidden_token_log_probs(torch.zeros(1, 2), torch.zeros(len(bias), 2), token_ids, bias)
    assert actual.item() == 0.0


@pytest.mark.parametrize("entry", [math.nan, math.inf])
@pytest.mark.parametrize("index", [0, 1, COLUMNS_PER_TILE])
def test_logits_that_are_no_distribution_give_nan(entry, index):
    bias = torch.zeros(COLUMNS_PER_TILE + 1)
    bias[index] = entry
    token_ids = torch.tensor([1])
    assert token_log_probs(bias[None], token_ids).isnan().all()
    hidden, weight = torch.zeros(1, 2), torch.zeros(len(bias), 2)
    assert hidden_token_log_probs(hidden, weight, token_ids, bias).isnan().all()
