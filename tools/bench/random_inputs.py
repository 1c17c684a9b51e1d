"""Pairs of real shapes with random weights, shards of random ids: speed asks for no knowledge."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from anchored import ModelPair
from anchored.pretrain.tokens.manifest import MANIFEST_NAME, Manifest
from anchored.pretrain.tokens.segments import ShardFiles
from anchored.pretrain.tokens.shards import TokenShards

from .options import LLAMA_3_VOCAB_SIZE, SHAPES, SIZES, RandomPairOptions, Shape


def random_pair(
    safe: Shape,
    risky: Shape,
    *,
    vocab_size: int = LLAMA_3_VOCAB_SIZE,
    context_length: int = 8192,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    seed: int = 0,
    initializer_range: float = 0.02,
) -> ModelPair:
    """Two Llamas with untied embeddings over `vocab_size` tokens that are words t0, t1, ...

    initializer_range: deviation of the weights; small models need more to say different things.
    """
    torch.manual_seed(seed)
    safe_model, risky_model = (
        random_llama(
            shape,
            vocab_size,
            context_length,
            dtype=dtype,
            device=device,
            initializer_range=initializer_range,
        )
        for shape in (safe, risky)
    )
    prints = {"safe": f"random {safe}", "risky": f"random {risky}"}
    return ModelPair(safe_model, risky_model, _word_tokenizer(vocab_size), prints)


def saved_pair(pair: ModelPair, root: Path) -> tuple[Path, Path]:
    """Write the safe and the risky model, each with the tokenizer; returns their folders."""
    folders = root / "safe", root / "risky"
    for folder, model in zip(folders, pair.models.values(), strict=True):
        model.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
    return folders


def configured_pair(options: RandomPairOptions, context_length: int) -> ModelPair:
    """The pair of these options."""
    return random_pair(
        options.safe,
        options.risky,
        vocab_size=options.vocab_size,
        context_length=context_length,
        dtype=getattr(torch, options.dtype),
        device=options.device,
    )


def matrix_weights(model: PreTrainedModel) -> list[Tensor]:
    """The weights that every token is multiplied with: all but the input embeddings' table."""
    (table,) = model.get_input_embeddings().parameters()
    return [weight for weight in model.parameters() if weight is not table]


def random_llama(
    shape: Shape,
    vocab_size: int,
    context_length: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    eos_token_id: int = 1,
    initializer_range: float = 0.02,
) -> LlamaForCausalLM:
    """A Llama with untied embeddings; its weights are torch's next random numbers."""
    sizes: dict[str, Any] = dict(zip(SIZES, SHAPES[shape], strict=True))
    config = LlamaConfig(
        **sizes,
        vocab_size=vocab_size,
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        initializer_range=initializer_range,
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


def ordinary_words(vocab_size: int, *, most: int = 1000) -> list[str]:
    """Words of a random pair that stand anywhere in a text as one token."""
    # t0 and t1, which begin and end a text, would be cut out of longer words that begin like them.
    return [f"t{token}" for token in range(2, min(vocab_size, most)) if str(token)[0] != "1"]


def random_words(count: int, num_tokens: int, vocab_size: int) -> list[str]:
    """Texts of so many words of a random pair, the same ones every time."""
    source, words = random.Random(1), ordinary_words(vocab_size)
    return [" ".join(source.choices(words, k=num_tokens)) for _ in range(count)]


BOS_ID, EOS_ID = 0, 1
DOCUMENT_TOKENS = 1000


def write_random_shards(
    folder: Path, num_tokens: int, *, vocab_size: int, generator: np.random.Generator
) -> TokenShards:
    """Make a folder with one shard of `num_tokens` tokens in documents of DOCUMENT_TOKENS.

    folder: must not exist. vocab_size: at least 3, as two tokens are BOS and EOS.
    """
    folder.mkdir(parents=True)
    files = ShardFiles(folder, "00000", input_file="random")
    whole, rest = divmod(num_tokens, DOCUMENT_TOKENS)
    lengths = [DOCUMENT_TOKENS] * whole + [rest] * bool(rest)
    for record, length in enumerate(lengths):
        token_ids = generator.integers(2, vocab_size, size=length, dtype="<u4")
        token_ids[-1], token_ids[0] = EOS_ID, BOS_ID
        files.add(token_ids, record=record, licence="none")
    manifest = Manifest(
        source=folder.name,
        revision="random",
        split="train",
        heldout_fraction=0.0,
        licences={"none": len(lengths)},
        refused_licences={},
        tokenizer_sha256="random",
        vocab_size=vocab_size,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        num_documents=len(lengths),
        num_empty_documents=0,
        num_invalid_documents=0,
        num_oversized_documents=0,
        max_document_bytes=0,
        num_bytes=0,
        num_tokens=num_tokens,
        shards=(files.close(),),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return TokenShards.open(folder, verify=False)
