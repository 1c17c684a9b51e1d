"""Tiny real models and tokenizers, made from a seed."""

import copy
import itertools
import random
from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Olmo2Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

TEXT = [
    "the keeper of the lamp wrote every wave into a ledger of salt and rain",
    "import math\ndef area(radius):\n    return math.pi * radius ** 2\n",
    "Nine tides ago, the harbour bell rang twice; nobody had pulled its rope.",
]


def train_tokenizer(
    vocab_size: int = 320, text: list[str] = TEXT, split: pre_tokenizers.PreTokenizer | None = None
) -> PreTrainedTokenizerFast:
    """split: GPT-2's unless given."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|begin|>", "<|end|>", "<|turn|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Words t0 (begins a text), t1 (ends it), t2, ..."""
    vocab = {f"t{i}": i for i in range(vocab_size)}
    words = Tokenizer(models.WordLevel(vocab, unk_token=f"t{min(2, vocab_size - 1)}"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t0", eos_token="t1")


SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def tiny_llama(seed: int, *, vocab_size: int = 320, layers: int = 2, **changes) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = SIZES | {"vocab_size": vocab_size, "num_hidden_layers": layers} | changes
    return LlamaForCausalLM(LlamaConfig(**settings)).double()


def never_end(model: LlamaForCausalLM) -> None:
    """The model draws its end of text no more: no layer changes a feature of the residual stream
    that is far from it."""
    model.model.embed_tokens.weight.data[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[0] = layer.mlp.down_proj.weight.data[0] = 0.0
    model.lm_head.weight.data[1] = 0.0
    model.lm_head.weight.data[1, 0] = -1000.0


FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, head_dim=8, sliding_window=None),
    "mistral, sliding": MistralConfig(**SIZES, head_dim=8, sliding_window=5),
    "olmo2": Olmo2Config(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, sliding": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "llama4_text": Llama4TextConfig(
        **SIZES,
        intermediate_size_mlp=64,
        head_dim=8,
        num_local_experts=3,
        moe_layers=[1],
        no_rope_layers=[1, 1, 0],
        attention_chunk_size=6,
        floor_scale=40,
        attn_scale=0.4,
    ),
    "gpt2": GPT2Config(
        **{"vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        **{"initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 1},
    ),
}
"""Every family of which rows can join a batch, some with windows that a short text fills."""


def tiny_family(name: str, seed: int, **changes) -> PreTrainedModel:
    """A float64 model of a family in evaluation mode."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[name]), **changes)
    return model.double().eval()


def tiny_gpt2(seed: int) -> PreTrainedModel:
    return tiny_family("gpt2", seed)


def word_prompts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to eight words of `TEXT`."""
    source, words = random.Random(seed), " ".join(TEXT).split()
    return [" ".join(source.choices(words, k=source.randint(1, 8))) for _ in range(count)]


def every_text(words: Iterable[int], horizon: int, end: int = 1) -> list[list[int]]:
    """All texts of these words up to the horizon or the end symbol."""
    others = [word for word in words if word != end]
    ended = [[*head, end] for n in range(horizon) for head in itertools.product(others, repeat=n)]
    return ended + [list(text) for text in itertools.product(others, repeat=horizon)]
