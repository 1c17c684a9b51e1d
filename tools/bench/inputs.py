"""The pair that a benchmark times, and what it reads: random weights and words, or a real pair."""

import random
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal, get_args

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from anchored import ModelPair
from anchored.pretrain.tokens.bpe import BOS_TOKEN, EOS_TOKEN, train_tokenizer

from .options import BenchDecodeConfig, Shape

SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "num_key_value_heads",
)
SHAPES: dict[str, tuple[int, ...]] = {
    "tinycomma-1.8b": (2048, 5632, 24, 32, 32),
    "llama-8b": (4096, 14336, 32, 32, 8),
    "llama-70b": (8192, 28672, 80, 64, 8),
    "wide": (2048, 5632, 4, 32, 4),  # TinyLlama 1.1B with 4 of its 22 layers
    "medium": (1024, 2816, 12, 16, 16),
    "small": (256, 704, 4, 4, 4),
    "tiny": (128, 352, 2, 4, 4),
}
assert set(SHAPES) == set(get_args(Shape))
BOS_ID, EOS_ID = 0, 1
NUM_TEXTS = 16
"""The quickstart has as many works."""
BEFORE_PROMPT = 512
"""Positions of random models for what rules put before a prompt: a passage or a system prompt."""
NUM_SWAPPED = 110
"""The words that TokenSwap swaps are of the first tokens, about as many as the paper's list has."""
LETTERS = (
    "eeeeeeeeeeettttttttaaaaaaoooooooiiiiiinnnnnnsssssrrrrrhhhhhddddllllcccuuummmwwffggyyppbvk"
)
"""Letters of made-up words, about as often as in English."""


@dataclass(frozen=True, slots=True)
class BenchInputs:
    """A pair, and texts that are the same ones every time."""

    pair: ModelPair
    texts: list[str]
    """The quickstart's works, which a real pair goes on from, or made-up words for a random pair at
    bytes; empty for one at tokens."""

    @staticmethod
    def of(config: BenchDecodeConfig) -> "BenchInputs":
        """The pair loaded, or made."""
        if not config.is_random:
            disable_progress_bar()
            from anchored.tools.quickstart.protected_works import read_works  # of the extra eval

            folders = config.safe, config.risky
            pair = ModelPair.from_pretrained(*folders, dtype=config.dtype, device=config.device)
            return BenchInputs(pair, [work.body for work in read_works()])
        pair = random_pair(
            config.safe,
            config.risky,
            vocab_size=config.vocab_size,
            context_length=config.prompt_length + config.new_length + BEFORE_PROMPT,
            dtype=getattr(torch, "float32" if config.dtype == "auto" else config.dtype),
            device=config.device,
            level=config.level,
        )
        num_words = config.prompt_length + config.passage_words  # a byte is less than a word
        texts = [made_up_words(num_words, seed=seed) for seed in range(2, 2 + NUM_TEXTS)]
        return BenchInputs(pair, texts if config.level == "byte" else [])

    def prompts(self, count: int, length: int, level: str) -> list[list[int]]:
        """Beginnings of texts as tokens or bytes, or ordinary tokens of a random pair."""
        if not self.texts:
            generator = torch.Generator().manual_seed(0)
            size = self.pair.vocab_size
            return torch.randint(2, size, (count, length), generator=generator).tolist()
        encode = self.pair.encode if level == "token" else lambda text: list(text.encode())
        encoded = list(map(encode, self.texts))
        if (shortest := min(map(len, encoded))) < length:
            raise ValueError(f"prompts must be of <= {shortest} symbols here, got {length}")
        return [symbols[:length] for symbols in islice(cycle(encoded), count)]

    def passages(self, count: int, num_words: int) -> list[str]:
        """The ends of texts, or words of a random pair."""
        if self.texts:
            ends = [" ".join(text.split()[-num_words:]) for text in self.texts]
            return list(islice(cycle(ends), count))
        source, words = random.Random(1), ordinary_words(self.pair.vocab_size)
        return [" ".join(source.choices(words, k=num_words)) for _ in range(count)]

    def swapped_words(self) -> list[str]:
        """Words of one token for TokenSwap; none of a real pair has to be known here."""
        return ["the"] if self.texts else ordinary_words(self.pair.vocab_size, most=NUM_SWAPPED)


def random_pair(
    safe: str,
    risky: str,
    *,
    vocab_size: int,
    context_length: int,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    initializer_range: float = 0.02,
    level: Literal["token", "byte"] = "token",
) -> ModelPair:
    """Two Llamas with untied embeddings over `vocab_size` tokens each.

    safe, risky: names in SHAPES. The weights are the same ones every time. initializer_range: their
    deviation; small models need more to say different things. level: the tokens are words t0, t1,
    ..., or those of two byte-level BPEs.
    """
    torch.manual_seed(0)
    tokenizers = [word_tokenizer(vocab_size)]
    if level == "byte":
        tokenizers = [byte_tokenizer(vocab_size, seed=seed) for seed in (0, 1)]
    models = []
    for shape, tokenizer in zip((safe, risky), cycle(tokenizers), strict=False):
        sizes: dict[str, Any] = dict(zip(SIZES, SHAPES[shape], strict=True))
        config = LlamaConfig(
            **sizes,
            vocab_size=vocab_size,
            max_position_embeddings=context_length,
            tie_word_embeddings=False,
            initializer_range=initializer_range,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.device(device):
            models.append(LlamaForCausalLM._from_config(config, dtype=dtype))
    prints = {"safe": f"random {safe}", "risky": f"random {risky}"}
    risky_tokenizer = tokenizers[1] if level == "byte" else None
    return ModelPair(models[0], models[1], tokenizers[0], prints, risky_tokenizer=risky_tokenizer)


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """The tokens t0, which begins a text, t1, which ends it, t2, ..."""
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(vocab_size)}, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t0", eos_token="t1")


def byte_tokenizer(vocab_size: int, *, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of made-up words that cuts texts as Llama 3 does."""
    # Of so many words each becomes a token before merges run out.
    words = made_up_words(vocab_size, seed=seed)
    tokenizer = train_tokenizer([words], vocab_size)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS_TOKEN, eos_token=EOS_TOKEN
    )


def made_up_words(count: int, *, seed: int) -> str:
    """Words of three to nine letters with spaces between them."""
    source = random.Random(seed)
    return " ".join("".join(source.choices(LETTERS, k=source.randint(3, 9))) for _ in range(count))


def ordinary_words(vocab_size: int, *, most: int = 1000) -> list[str]:
    """Words of a random pair that stand anywhere in a text as one token."""
    # t0 and t1, which begin and end a text, would be cut out of longer words that begin like them.
    return [f"t{token}" for token in range(2, min(vocab_size, most)) if str(token)[0] != "1"]
