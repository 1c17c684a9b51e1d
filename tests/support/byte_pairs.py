"""A tiny float64 pair whose tokenizers differ, and its distributions by the definition."""

from functools import cache

import torch
from byte_streams import ReferenceDistributions
from tiny_models import TEXT, tiny_llama, train_tokenizer
from torch import Tensor

from anchored import ModelPair
from anchored.decode.byte.byte_level import ByteLevel
from anchored.pretrain.tokens.bpe import pre_tokenizer

PROMPTS = ["the keeper's  lamp", "s", "import 3.14\n\n x", "caf\u00e9 \u4e2d", "Nine tides ago, "]


@cache
def tiny_byte_pair() -> ModelPair:
    """GPT-2's pretokenizer and Llama 3's; tests do not change it."""
    risky = tiny_llama(2, vocab_size=300, layers=3, max_position_embeddings=256)
    safe = tiny_llama(1, max_position_embeddings=256)
    return ModelPair(safe, risky, train_tokenizer(320), risky_tokenizer=llama3_tokenizer(300))


def llama3_tokenizer(vocab_size: int):
    return train_tokenizer(vocab_size, TEXT[::-1], pre_tokenizer())


def reference_of(pair: ModelPair, name: str, **changes) -> ReferenceDistributions:
    vocabulary = ByteLevel(pair).vocabularies[name]
    return ReferenceDistributions(pair.models[name], vocabulary, **changes)


def log_probs_along(
    pair: ModelPair, name: str, prompt: str, symbols: list[int], **changes
) -> Tensor:
    """(symbols, 257) float64 before each symbol, by the definition."""
    reference = reference_of(pair, name, **changes)
    return torch.stack([reference.read(prompt.encode()), *map(reference.append, symbols[:-1])])
