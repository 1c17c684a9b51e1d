"""Small byte-level BPEs with the pretokenizers of the four families, trained on hard text.

The laws that byte level must keep, and the tests that hold them:

1. distributions of 257 symbols sum to one: test_byte_marginals (every_distribution)
2. masses telescope (masked), or leak (raw): test_byte_marginals (telescopes, raw_mode)
3. a complete text has the probability of its one tokenisation: test_byte_marginals (complete_text)
4. marginals are sums over all token sequences: test_byte_marginals (all_token_sequences)
5. canonical pairs, sequences and rows: test_merge_table; test_real_tokenizers (pairs)
6. a tree grown byte by byte is that of the whole, its trunk final: test_token_tree (spell, trunk)
7. nodes are the beginnings of tokenisations: test_viability (beginnings); test_real_tokenizers
8. bytes are sampled as tokens are, greedily too: test_byte_laws (viable_tokens),
   test_byte_guarantee (draws), test_byte_generation (greedy)
9. one pass over a prompt is a walk, its bounds hold: test_byte_marginals (one_pass),
   test_byte_stream (feeding), test_byte_evaluation (bounds)
10. a tree's forward is that of its paths, whatever lies beside them: test_byte_stream (definition,
    family, depend_on_each_other, dead_slots), test_tree_backbone (siblings)
11. an unfinished word or a space at the end of a prompt costs nothing: test_byte_marginals
    (unfinished_word, ends_in_a_space)
12. one tokenizer: no budget is p_s, an ample one p_r's tokens: test_byte_laws (unlimited),
    test_byte_guarantee (no_budget, ample)
13. divergences of bytes add up to that of texts, within K - debt: test_byte_laws (add_up)
14. what is left out of p_r changes no spend: test_byte_laws (left_out), test_byte_guarantee
    (true_divergence)
"""

from functools import cache
from pathlib import Path

import pytest
from byte_pairs import tiny_byte_pair
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from anchored import ModelPair
from anchored.tools.bench.byte_work import draw_hard_strings

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


def regex_split(regex: str) -> pre_tokenizers.PreTokenizer:
    steps = [
        pre_tokenizers.Split(Regex(regex), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(steps)


@cache
def trained(family: str, num_merges: int = 700) -> Tokenizer:
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


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    """Two tokenizers, float64; tests do not change it."""
    return tiny_byte_pair()


@pytest.fixture(params=REGEXES)
def family(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(family) -> Tokenizer:
    return trained(family)


@pytest.fixture
def train():
    return trained


@pytest.fixture
def regexes() -> dict[str, str]:
    return REGEXES


@pytest.fixture
def hard_strings():
    return draw_hard_strings


@pytest.fixture
def split_by():
    return regex_split
