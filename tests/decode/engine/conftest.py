"""A pair whose texts end here and there, and a count of its forwards."""

from collections import Counter
from collections.abc import Iterator

import pytest
from tiny_models import tiny_llama

from anchored import ModelPair


@pytest.fixture(scope="package")
def ending_pair(tokenizer) -> ModelPair:
    """Texts end at stop tokens after anything from 1 to 30 steps, drafts do too."""
    safe, risky = tiny_llama(1), tiny_llama(2, layers=3)
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 1.25
    return ModelPair(safe, risky, tokenizer)


@pytest.fixture
def forwards(pair) -> Iterator[Counter[str]]:
    """How often the backbones of `pair` were run, by model."""
    counts: Counter[str] = Counter()
    hooks = [
        model.model.register_forward_pre_hook(lambda *_, name=name: counts.update([name]))
        for name, model in pair.models.items()
    ]
    yield counts
    for hook in hooks:
        hook.remove()
