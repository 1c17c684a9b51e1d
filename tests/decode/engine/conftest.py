"""A pair whose texts end here and there, and a count of its forwards."""

from collections import Counter

import pytest
from tiny_models import tiny_llama
from transformers import LlamaModel

from anchored import ModelPair


@pytest.fixture(scope="package")
def ending_pair(tokenizer) -> ModelPair:
    """Texts end at stop tokens after anything from 1 to 30 steps, drafts do too."""
    safe, risky = tiny_llama(1), tiny_llama(2, layers=3)
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 1.25
    return ModelPair(safe, risky, tokenizer)


@pytest.fixture
def forwards(pair, monkeypatch) -> Counter[str]:
    """How often the backbones of `pair` were run, by model."""
    counts: Counter[str] = Counter()
    names = {id(model.model): name for name, model in pair.models.items()}
    forward = LlamaModel.forward

    def counted(self, *arguments, **options):
        counts.update([names[id(self)]])
        return forward(self, *arguments, **options)

    monkeypatch.setattr(LlamaModel, "forward", counted)
    return counts
