"""The kernel that warps the rows of many requests, and PyTorch in its place, to the bit."""

import math

import pytest
import torch

from anchored.kernels import warp

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
NUM_SLOTS = 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocab_size", [40, 257, 2500])
@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_both_warp_alike(device, num_drafts, vocab_size, dtype, monkeypatch):
    pytest.importorskip("triton")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    generator = torch.Generator().manual_seed(vocab_size)
    # 1. Five requests in other slots than their numbers, their rows in any order, wider than V.
    slots, num_rows = torch.tensor([4, 7, 0, 8, 2]), 5 * (1 + num_drafts)
    index = torch.randperm(num_rows, generator=generator).view(5, 1 + num_drafts)
    drafts = torch.randint(0, vocab_size, (5, num_drafts), generator=generator)
    drafts[1, 1:], drafts[2, :] = -1, -1  # shorter drafts
    logits = 9.0 * torch.randn(num_rows, vocab_size + 5, generator=generator)
    logits[0, 3:6] = torch.tensor([-math.inf, math.inf, math.nan])
    of_slots = {
        "seen": torch.rand(NUM_SLOTS, vocab_size, generator=generator) < 0.3,
        "penalty": 1.0 + torch.rand(NUM_SLOTS, generator=generator),
        "temperature": 0.1 + torch.rand(NUM_SLOTS, generator=generator),
    }
    # 2. By both.
    arguments = logits.to(device, dtype), index.to(device)
    named = {"slots": slots, "drafts": drafts, **of_slots}
    named = {name: values.to(device) for name, values in named.items()}
    warped = []
    for has_kernel in (False, True):
        monkeypatch.setattr(warp, "takes_triton", lambda device, answer=has_kernel: answer)
        warped.append(warp.warped_rows(*arguments, **named).cpu())
    # 3. Rows after a missing draft are not read.
    is_read = torch.cat([torch.ones(5, 1), drafts >= 0], dim=1).bool()
    assert warped[1].dtype == torch.float32
    torch.testing.assert_close(*(x[is_read] for x in warped), rtol=0.0, atol=0.0, equal_nan=True)
