"""A byte-level BPE tokenizer with a known pre-tokenizer, as a folder that transformers loads."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split
from tokenizers.trainers import BpeTrainer

from .tokenizer import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME, template, tokenizer_config

NUM_BYTES = 256
BOS_TOKEN, EOS_TOKEN = "<|begin_of_text|>", "<|end_of_text|>"
"""Llama 3's."""

# The rule in the tokenizer.json of Llama 3: contractions, words with one leading character, up to
# three digits, punctuation, line ends, white space.
LLAMA3_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def pre_tokenizer() -> PreTokenizer:
    """Cut as Llama 3 does, then write each byte as one printable character."""
    words = Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    return Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train on `texts` a tokenizer that encodes any text and adds the begin token, as Llama 3 does.

    vocab_size: tokens in all: the 256 bytes first, the merges, the two special tokens last.
    The same texts give the same tokenizer. Raises ValueError if `vocab_size` leaves no room for
    bytes and special tokens, or if the texts do not hold enough merges to fill it.
    """
    if vocab_size < NUM_BYTES + 2:
        raise ValueError(f"vocab_size must be >= {NUM_BYTES + 2}, got {vocab_size}")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size - 2, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([BOS_TOKEN, EOS_TOKEN])
    if (most := tokenizer.get_vocab_size()) != vocab_size:
        raise ValueError(f"vocab_size must be at most {most} for these texts, got {vocab_size}")
    tokenizer.post_processor = template(tokenizer, BOS_TOKEN)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, model_max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, which AutoTokenizer reads.

    model_max_length: longest sequence in tokens that the models are trained on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_NAME))
    config = tokenizer_config(BOS_TOKEN, EOS_TOKEN, max_length=model_max_length)
    text = json.dumps(config, indent=2) + "\n"
    (folder / TOKENIZER_CONFIG_NAME).write_text(text, encoding="utf-8")
