"""The warping kernel against transformers' order of operations, bit for bit."""

import math

import pytest
import torch

from anchored.kernels.gpu.warping import BLOCK_SIZE
from anchored.kernels.warping import warped_logits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def plain(logits, seen, penalty, temperature):
    scores, penalty = logits.float(), penalty[:, None]
    penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen, penalised, scores) / temperature[:, None]


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("vocab_size", [1, 257, BLOCK_SIZE + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_agrees_with_plain_torch_bit_for_bit(vocab_size, dtype, backend):
    generator = torch.Generator().manual_seed(vocab_size)
    risky, safe = (
        (8.0 * torch.randn(3, 2 * vocab_size, generator=generator)).to(dtype)[:, ::2]
        for _ in range(2)
    )
    risky[0, 0], safe[1, 0] = -math.inf, math.nan
    seen = torch.rand(3, vocab_size, generator=generator) < 0.5
    penalty, temperature = torch.tensor([1.0, 1.1, 1.7]), torch.tensor([0.7, 1.0, 1.3])
    arguments = (x.to(DEVICE) for x in (risky, safe, seen, penalty, temperature))
    actual = warped_logits(*arguments, backend=backend)
    for logits, warped in zip((risky, safe), actual, strict=True):
        expected = plain(logits, seen, penalty, temperature)
        torch.testing.assert_close(warped.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_one_setting_may_be_expanded_over_all_rows():
    logits, seen = torch.ones(2, 5, device=DEVICE), torch.ones(2, 5, dtype=torch.bool)
    settings = (torch.tensor([value], device=DEVICE).expand(2) for value in (2.0, 0.5))
    for warped in warped_logits(logits, logits, seen.to(DEVICE), *settings, backend="triton"):
        assert torch.equal(warped, logits)


def test_wrong_arguments_are_refused():
    logits, seen, ones = torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool), torch.ones(2)
    with pytest.raises(ValueError, match=r"must all be \(B, V\), got \(2, 5\), \(2, 4\)"):
        warped_logits(logits, logits[:, 1:], seen, ones, ones)
    with pytest.raises(ValueError, match="seen must be bool"):
        warped_logits(logits, logits, seen.int(), ones, ones)
    with pytest.raises(ValueError, match=r"temperature must be \(2,\) float32"):
        warped_logits(logits, logits, seen, ones, ones.double())
