"""Small byte-level BPEs with the pretokenizers of the four families, trained on hard text."""

import random
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

WORKS = Path(__file__).parents[3] / "tools" / "quickstart" / "works"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
REGEXES = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CL100K,
    "Qwen": CL100K.replace("{1,3}", ""),
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + CONTRACTION
    + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + CONTRACTION
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + SPACES,
}
HARD = (
    *"    \t\n\r\u00a0\u3000''sStTrReElLdaAbX09.!/-\u4e2d\u65e5\u00e9\u0301\u02b0\u01c5\u0663",
    *("'re", "'LL", "  ", "\n\n", "\u017f", "\U0001f600", "\U0001f44d\U0001f3fd", "\u200d"),
)


def draw_hard_strings(number: int, *, seed: int, longest: int = 12) -> list[str]:
    source = random.Random(seed)
    return ["".join(source.choices(HARD, k=source.randint(1, longest))) for _ in range(number)]


def regex_split(regex: str) -> pre_tokenizers.PreTokenizer:
    steps = [
        pre_tokenizers.Split(Regex(regex), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(steps)


@cache
def train(family: str, num_merges: int = 700) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = regex_split(REGEXES[family])
    if family == "Qwen":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=257 + num_merges,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    works = [path.read_text()[:20_000] for path in sorted(WORKS.glob("*.txt"))[:2]]
    tokenizer.train_from_iterator([*works, *draw_hard_strings(1500, seed=0)], trainer)
    return tokenizer


@pytest.fixture(params=REGEXES)
def family(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(family) -> Tokenizer:
    return train(family)


@pytest.fixture
def regexes() -> dict[str, str]:
    return REGEXES


@pytest.fixture
def hard_strings():
    return draw_hard_strings


@pytest.fixture
def split_by():
    return regex_split
