"""Model pairs of real shapes with random weights: speed does not depend on what a model knows."""

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from anchored import ModelPair

from .options import LLAMA_3_VOCAB_SIZE, SHAPES, Shape


def random_pair(
    safe: Shape,
    risky: Shape,
    *,
    vocab_size: int = LLAMA_3_VOCAB_SIZE,
    context_length: int = 8192,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    seed: int = 0,
) -> ModelPair:
    """Two Llamas with untied embeddings over `vocab_size` tokens that are words t0, t1, ..."""
    torch.manual_seed(seed)
    safe_model, risky_model = (
        random_llama(shape, vocab_size, context_length, dtype=dtype, device=device)
        for shape in (safe, risky)
    )
    prints = {"safe": f"random {safe}", "risky": f"random {risky}"}
    return ModelPair(safe_model, risky_model, _word_tokenizer(vocab_size), prints)


def random_llama(
    shape: Shape,
    vocab_size: int,
    context_length: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    eos_token_id: int = 1,
) -> LlamaForCausalLM:
    """A Llama with untied embeddings; its weights are torch's next random numbers."""
    sizes = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["feed"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=eos_token_id,
    )
    with torch.device(device):
        model: LlamaForCausalLM = LlamaForCausalLM._from_config(config, dtype=dtype)
    return model


def _word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(vocab_size)}, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t0", eos_token="t1")


def random_prompts(batch_size: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Prompts of ordinary tokens, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, vocab_size, (batch_size, num_tokens), generator=generator).tolist()
