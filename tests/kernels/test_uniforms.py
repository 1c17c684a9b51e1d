"""Uniforms against the published Philox vectors, Triton's generator and the uniform density."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.kernels.sampler import philox, uniforms

# Known answers for philox4x32-10 from the Random123 distribution (kat_vectors).
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, words):
    actual = philox(torch.tensor(counter)[:, None], torch.tensor(key)[:, None])
    assert actual[:, 0].tolist() == words


def test_the_three_uniforms_are_the_top_53_bits_of_their_words():
    """A key's low and high word, and those of a block: two for each position."""
    drawn = uniforms(torch.tensor([(7 << 32) + 3]), torch.tensor([(5 << 32) + 6]))[0].tolist()
    counter = torch.tensor([[12, 13], [10, 10], [0, 0], [0, 0]])
    words = philox(counter, torch.tensor([[3], [7]]))
    first, second = words.T.tolist()
    pairs = [(first[0], first[1]), (first[2], first[3]), (second[0], second[1])]
    assert drawn == [((high << 32 | low) >> 11) / 2**53 for high, low in pairs]


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**40))
@settings(max_examples=30)
def test_a_draw_depends_on_its_seed_and_position_only(seed, position):
    seeds = torch.tensor([seed, 1, 2])
    positions = torch.tensor([[position, position + 1], [0, 1], [5, 6]])
    batch = uniforms(seeds, positions)
    assert batch.shape == (3, 2, 3)
    assert bool(((batch >= 0) & (batch < 1)).all())
    for step in range(2):
        assert torch.equal(batch[:, step], uniforms(seeds, positions[:, step]))
    assert torch.equal(batch[:1], uniforms(seeds[:1], positions[:1]))


def test_draws_are_uniform_and_uncorrelated():
    drawn = uniforms(torch.arange(200), torch.arange(500).expand(200, -1)).reshape(-1, 3)
    counts = torch.stack([torch.histc(column, 64, 0.0, 1.0) for column in drawn.T])
    expected = len(drawn) / 64
    chi_square = ((counts - expected) ** 2 / expected).sum(-1)
    # Fixed seed; 63 degrees of freedom: above 127.5 once in a million draws of a fair generator.
    assert chi_square.max() < 127.5
    correlation = torch.corrcoef(drawn.T).fill_diagonal_(0.0)
    assert correlation.abs().max() < 5.0 / len(drawn) ** 0.5
