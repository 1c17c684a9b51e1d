"""Decode attention against float64: own lengths, groups of heads, spans, splits, odd strides."""

import math

import pytest
import torch

from anchored.kernels.decode_attention import decode_attention

# The interpreter of Triton 3.6 counts loops in arrays of one element, which numpy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKENDS = ["torch", "triton"]


def case(num_heads=4, num_kv_heads=2, num_columns=1, head_size=16, capacity=150, seed=0):
    """Storage of five rows of which three are read, in another order, with unlike lengths."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(3, num_heads, num_columns, head_size, generator=generator)
    key, value = (
        torch.randn(5, num_kv_heads, capacity, head_size, generator=generator) for _ in range(2)
    )
    starts = torch.tensor([0, capacity - num_columns, 64])
    return {
        "query": query.to(DEVICE),
        "key": key.to(DEVICE),
        "value": value.to(DEVICE),
        "positions": (starts[:, None] + torch.arange(num_columns)).to(DEVICE),
        "rows": torch.tensor([4, 0, 2]).to(DEVICE),
    }


def expected(query, key, value, positions, rows):
    """Query by query in float64, from the definition."""
    output = torch.empty_like(query, dtype=torch.float64)
    group = query.shape[1] // key.shape[1]
    for row, head, column in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        last = int(positions[row, column]) + 1
        keys = key[rows[row], head // group, :last].double()
        values = value[rows[row], head // group, :last].double()
        scores = keys @ query[row, head, column].double() / math.sqrt(query.shape[-1])
        output[row, head, column] = scores.softmax(0) @ values
    return output


SHAPES = [
    {},
    {"num_columns": 5},
    {"num_heads": 3, "num_kv_heads": 3, "head_size": 24},
    {"num_heads": 8, "num_kv_heads": 1, "num_columns": 3, "capacity": 67},
    {"capacity": 65, "head_size": 80},
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_query_sees_its_row_up_to_its_position(shape, backend):
    inputs = case(**shape)
    output = decode_attention(**inputs, backend=backend)
    torch.testing.assert_close(output.double(), expected(**inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 8])
def test_any_number_of_splits_gives_the_same(num_splits):
    inputs = case(num_columns=2)
    output = decode_attention(**inputs, num_splits=num_splits, backend="triton")
    torch.testing.assert_close(output.double(), expected(**inputs), rtol=1e-5, atol=1e-5)


def test_what_lies_behind_a_row_s_length_is_not_read():
    inputs = case()
    output = decode_attention(**inputs, num_splits=4, backend="triton")
    for row, position in zip(inputs["rows"], inputs["positions"][:, -1], strict=True):
        inputs["key"][row, :, position + 1 :] = math.nan
        inputs["value"][row, :, position + 1 :] = math.nan
    again = decode_attention(**inputs, num_splits=4, backend="triton")
    assert torch.equal(output, again)


def test_a_row_is_the_same_alone_and_in_a_batch():
    inputs = case(num_columns=2)
    batch = decode_attention(**inputs, num_splits=3, backend="triton")
    for row in range(3):
        one = {name: inputs[name][row : row + 1] for name in ("query", "positions", "rows")}
        alone = decode_attention(**{**inputs, **one}, num_splits=3, backend="triton")
        assert torch.equal(alone[0], batch[row])


def test_storage_may_be_a_view():
    inputs = case()
    wide = {name: torch.cat([inputs[name]] * 2, dim=1)[:, ::2] for name in ("key", "value")}
    output = decode_attention(**{**inputs, **wide}, backend="triton")
    torch.testing.assert_close(
        output.double(), expected(**{**inputs, **wide}), rtol=1e-5, atol=1e-5
    )


def test_bfloat16_sums_in_float32():
    inputs = {
        name: x.bfloat16() if x.is_floating_point() else x for name, x in case(capacity=140).items()
    }
    output = decode_attention(**inputs, num_splits=2, backend="triton")
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected(**inputs), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "backend must be one of auto, torch, triton, got 'cuda'"),
        ({"positions": torch.zeros(3, 2, dtype=torch.long)}, r"positions must be \(3, 1\)"),
        ({"value": torch.zeros(5, 2, 150, 8)}, "do not belong to one attention"),
        ({"query": torch.zeros(3, 3, 1, 16)}, "do not belong to one attention"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        decode_attention(**{**case(), **change})


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_behind_what_a_row_reads_does_not_spread(backend):
    inputs = case(num_columns=2)
    clean = decode_attention(**inputs, backend=backend)
    for row, storage_row in enumerate(inputs["rows"].tolist()):
        end = int(inputs["positions"][row, -1]) + 1
        inputs["key"][storage_row, :, end:] = torch.nan
        inputs["value"][storage_row, :, end:] = torch.nan
    assert torch.equal(decode_attention(**inputs, backend=backend), clean)
