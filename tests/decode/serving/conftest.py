"""A pair whose texts end at their lengths alone."""

import pytest
from tiny_models import never_end, tiny_llama, train_tokenizer

from anchored import ModelPair


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    models = [tiny_llama(seed, max_position_embeddings=512) for seed in (1, 2)]
    for model in models:
        never_end(model)
    return ModelPair(*models, train_tokenizer())
