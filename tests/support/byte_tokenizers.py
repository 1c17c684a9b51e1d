"""Small byte-level BPEs with the pretokenizers of published models, trained on hard text."""

import json
import random
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from anchored.decode.tokenizer.tokenizer_file import LETTER_OF

PUBLISHED = Path(__file__).parents[3] / "shared" / "tokenizers"
PUBLISHED_NAMES = ("gpt2", "olmo1", "olmo2", "llama3")
WORKS = Path(__file__).parents[2] / "tools" / "quickstart" / "works"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


_HARD = (
    *"    \t\n\r\u00a0\u3000''sStTrReElLdaAbX09.!/-\u4e2d\u65e5\u00e9\u0301\u02b0\u01c5\u0663",
    *("'re", "'LL", "  ", "\n\n", "\u017f", "\U0001f600", "\U0001f44d\U0001f3fd", "\u200d"),
)
"""White space, line ends, apostrophes, combining marks, CJK, digits, emoji."""


def draw_hard_strings(number: int, *, seed: int, longest: int = 12) -> list[str]:
    """`number` strings of one to `longest` of these, the same ones for a seed."""
    source = random.Random(seed)
    return ["".join(source.choices(_HARD, k=source.randint(1, longest))) for _ in range(number)]


def cased(ending: str, digits: str) -> str:
    """Words cut by case, as o200k and Tekken have them."""
    words = (f"{CASED[0]}*{CASED[1]}+", f"{CASED[0]}+{CASED[1]}*")
    starts = "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?{word}{ending}" for word in words)
    return rf"{starts}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"


REGEXES = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CL100K,
    "Qwen": CL100K.replace("{1,3}", ""),
    "o200k": cased(f"{CONTRACTION}?", r"\p{N}{1,3}"),
}
DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
)
# As published but for the letters of DeepSeek-V2, of which it names more ranges.
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0370-\u0481\u048a-\u0556]+"
)
DEEPSEEK_SYMBOLS = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
STEPS: dict[str, tuple[str | pre_tokenizers.PreTokenizer, ...]] = {
    "Tekken": (cased("", r"\p{N}"),),
    "StarCoder": (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
    "DeepSeek-V3": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_WORDS),
    "DeepSeek-V2": (
        "[\r\n]",
        DEEPSEEK_LETTERS,
        DEEPSEEK_SYMBOLS,
        r"\s+$",
        CJK,
        pre_tokenizers.Digits(individual_digits=True),
    ),
}
"""Steps of the others; what is text is the regex of a Split."""


def regex_split(*steps: str | pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Regexes and other steps, one after another, and the letters of bytes for what they cut."""
    made = [
        pre_tokenizers.Split(Regex(step), behavior="isolated") if isinstance(step, str) else step
        for step in steps
    ]
    if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in made):
        made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(made)


def pre_tokenizer_of(family: str) -> pre_tokenizers.PreTokenizer:
    return regex_split(*STEPS.get(family, (REGEXES.get(family),)))


@cache
def trained(family: str, num_merges: int = 700) -> Tokenizer:
    """A published one by its name, or one of a family."""
    if family in PUBLISHED_NAMES:
        return Tokenizer.from_file(str(PUBLISHED / family / "tokenizer.json"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer_of(family)
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


published = [
    pytest.param(
        name,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not PUBLISHED.exists(), reason="shared/tokenizers is not here"),
        ],
    )
    for name in PUBLISHED_NAMES
]

SMOLLM2_LACKS = frozenset({0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2})
"""Bytes of UTF-8 texts that have no token in the vocabulary of SmolLM2."""


def without_bytes(tokenizer: Tokenizer, missing: frozenset[int] = SMOLLM2_LACKS) -> Tokenizer:
    """The same tokenizer without the tokens of single bytes, which no merge needs."""
    content, letters = json.loads(tokenizer.to_str()), LETTER_OF
    for byte in missing:
        del content["model"]["vocab"][letters[byte]]
    return Tokenizer.from_str(json.dumps(content))
