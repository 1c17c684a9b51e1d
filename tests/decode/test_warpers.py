"""Warped logits are those of transformers' processors, in their order."""

import pytest
import torch
from tiny_models import tiny_llama
from transformers import GenerationConfig

from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers


@pytest.mark.parametrize("values", [(0, 1.0, 0.0), (4, 1.0, 0.0), (4, 0.7, 0.2)])
def test_warpers_act_in_the_order_of_transformers(values):
    """Which tokens are left depends on it: a mass is one of what the steps before have left."""
    config = SamplingConfig(
        temperature=0.6,
        repetition_penalty=1.4,
        **dict(zip(("top_k", "top_p", "min_p"), values, strict=True)),
    )
    wanted = GenerationConfig(do_sample=True, eos_token_id=0, **config.as_dict())
    processors = tiny_llama(1)._get_logits_processor(wanted, input_ids_seq_length=5, device="cpu")
    logits = 2 * torch.randn(64, 24, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(0, 24, (64, 5), generator=torch.Generator().manual_seed(4))
    seen = torch.zeros(64, 24, dtype=torch.bool).scatter(1, ids, True)
    expected = processors(ids, logits.clone())
    torch.testing.assert_close(Warpers(config, [0])(logits, seen), expected)
    rows, columns = seen.nonzero().repeat(2, 1).T.numpy()  # a text repeats its tokens
    torch.testing.assert_close(Warpers(config, [0]).after((rows, columns))(logits), expected)
