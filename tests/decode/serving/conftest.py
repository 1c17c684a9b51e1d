"""A pair whose texts end at their lengths alone."""

import pytest
from tiny_models import never_end, tiny_llama, train_tokenizer

from anchored import ModelPair


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    models = [tiny_llama(seed, max_position_embeddings=1024) for seed in (1, 2)]
    for model in models:
        never_end(model)
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return ModelPair(*models, tokenizer)
