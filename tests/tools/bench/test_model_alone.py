"""The risky model alone: the tokens of its own laws, the same on the device as from the host."""

import pytest
import torch

from anchored.kernels.sampler import inverse_cdf
from anchored.tools.bench.baselines import TEMPERATURE, ModelAlone
from anchored.tools.bench.random_inputs import random_pair

PROMPTS = [[2, 3, 4, 5, 6], [7, 8]]


@pytest.fixture(scope="module")
def pair():
    return random_pair("tiny", "tiny", vocab_size=64, context_length=32, dtype=torch.float32)


def drawn_tokens(pair, monkeypatch, *, on_device):
    """(steps, B) tokens, in order."""
    alone = ModelAlone(pair, "risky", num_rows=2, max_length=32, on_device=on_device)
    drawn, draw = [], alone._drawn
    monkeypatch.setattr(alone, "_drawn", lambda: drawn.append(draw()) or drawn[-1])
    torch.manual_seed(3)
    assert alone.generate(PROMPTS, 6) == 12
    return torch.stack(drawn)


@pytest.mark.parametrize("on_device", [False, True])
def test_each_token_follows_from_the_model_s_own_law(pair, monkeypatch, on_device):
    drawn = drawn_tokens(pair, monkeypatch, on_device=on_device)
    torch.manual_seed(3)
    texts = [list(prompt) for prompt in PROMPTS]
    for tokens in drawn:
        laws = [pair.risky(torch.tensor([text])).logits[0, -1].double() for text in texts]
        probs = (torch.stack(laws) / TEMPERATURE).softmax(-1).detach()
        assert inverse_cdf(probs, torch.rand_like(probs[:, 0])).tolist() == tokens.tolist()
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)


def test_rows_are_free_again_for_other_prompts(pair):
    alone = ModelAlone(pair, "risky", num_rows=2, max_length=32, on_device=False)
    assert alone.generate(PROMPTS, 3) == alone.generate(PROMPTS[::-1], 3) == 6
