"""Sums over intervals in the interpreter (or on a GPU) against torch and the definition."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.kernels.interval_sums import interval_log_sums

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's -inf - -inf


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_interval_sums_are_the_definition(seed, dtype):
    """Scores far apart, banned ones, empty intervals and terms without mass."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 1050, shape, generator=generator)

    scores = 300 * torch.randn(3, 1050, generator=generator, dtype=dtype)
    scores[:, draw(300)] = -torch.inf
    rows, shifts = draw(2, 2) % 3, torch.randn(2, 2, generator=generator, dtype=torch.float64)
    shifts[0, 1] = -torch.inf
    low, high = torch.stack([draw(2, 2, 3), draw(2, 2, 3)]).sort(0).values
    low[..., 0] = high[..., 0]
    low[..., 1], high[..., 1] = 0, 1050  # more than one block
    inputs = [scores, rows.int(), shifts, low.int(), high.int()]
    for backend in ("triton", "torch"):
        sums = interval_log_sums(*(x.to(DEVICE) for x in inputs), backend=backend).cpu()
        for text, symbol in itertools.product(range(2), range(3)):
            columns = zip(
                rows[text], shifts[text], low[text, :, symbol], high[text, :, symbol], strict=True
            )
            terms = torch.cat([scores[r, a:b].double() + shift for r, shift, a, b in columns])
            expected = terms.logsumexp(0).item() if len(terms) else -math.inf
            assert sums[text, symbol].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(4)}, r"scores must be \(N, V\)"),
        ({"rows": torch.zeros(2, 1, dtype=torch.int32)}, r"rows must be \(R, H\)"),
        ({"shifts": torch.zeros(1, 1)}, r"shifts must be \(1, 1\) float64"),
        ({"low": torch.zeros(1, 1, 2, dtype=torch.int64)}, "must be int32"),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(change, message):
    ends = torch.zeros(1, 1, 2, dtype=torch.int32)
    inputs = {
        "scores": torch.zeros(1, 4),
        "rows": torch.zeros(1, 1, dtype=torch.int32),
        "shifts": torch.zeros(1, 1, dtype=torch.float64),
        "low": ends,
        "high": ends,
    }
    with pytest.raises(ValueError, match=message):
        interval_log_sums(**{**inputs, **change})
