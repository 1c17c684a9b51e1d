"""Random pairs of next-token logits of every kind that decoding meets, and some it should not."""

from collections.abc import Callable

import pytest
import torch
from logit_kinds import random_budgets, random_logits
from torch import Tensor

LogitPairs = Callable[[str, int, int, torch.Generator], tuple[Tensor, Tensor]]


@pytest.fixture(scope="session")
def logit_pairs() -> LogitPairs:
    """kind, num_rows, vocab_size, generator -> risky and safe logits, (num_rows, vocab_size)."""
    return random_logits


@pytest.fixture(scope="session")
def budgets() -> Callable[[int, torch.Generator], Tensor]:
    """num_rows, generator -> budgets from 1e-6 to 50 nats, log-uniform, a tenth of them 0."""
    return random_budgets
