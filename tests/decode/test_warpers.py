"""The repetition penalty by its definition, and what is copied."""

import pytest
import torch

from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers

PENALTY, TEMPERATURE = 1.3, 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_seen_tokens_are_pushed_down_as_they_are_defined(dtype):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 50, generator=generator).mul(4).to(dtype)
    logits[0, :5] = -torch.inf
    seen = torch.rand(3, 50, generator=generator) < 0.3
    config = SamplingConfig(temperature=TEMPERATURE, repetition_penalty=PENALTY)
    raw = logits.to(torch.float64 if dtype == torch.float64 else torch.float32)
    penalized = torch.where(raw > 0, raw / PENALTY, raw * PENALTY)
    expected = torch.where(seen, penalized, raw) / TEMPERATURE
    kept = logits.clone()
    assert torch.equal(Warpers(config, [0])(logits, seen), expected)
    assert torch.equal(logits, kept)


@pytest.mark.parametrize(
    ("temperature", "stops", "banned", "is_same"),
    [(1.0, [0], [], True), (0.7, [0], [], False), (1.0, [0, 1], [], False), (1.0, [0], [3], False)],
)
def test_what_nothing_changes_is_not_copied_and_nothing_given_is_changed(
    temperature, stops, banned, is_same
):
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    kept, config = logits.clone(), SamplingConfig(temperature=temperature, repetition_penalty=1.0)
    warped = Warpers(config, stops, banned)(logits, torch.zeros(2, 9, dtype=torch.bool))
    assert (warped is logits) == is_same == torch.equal(warped, kept)
    assert torch.equal(logits, kept)
