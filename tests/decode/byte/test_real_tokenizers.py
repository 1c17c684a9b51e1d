"""The published tokenizers, where their files are at hand."""

from pathlib import Path

import pytest
from byte_streams import closed_path, grown
from hard_strings import draw_hard_strings
from merge_pairs import hard_pairs, library_says
from tokenizers import Tokenizer

from anchored.decode.tokenizer.vocabulary import ByteVocabulary

FOLDER = Path(__file__).parents[4] / "shared" / "tokenizers"
STOP_TOKENS = {"gpt2": 50256, "olmo1": 50279, "olmo2": 100257, "llama3": 128001}
# BPE alone makes none of the first as Llama 3 writes them: a whole pretoken, a split out of order.
# In the others a merge that ranks before one of its parts comes too late.
LLAMA3_ODDITIES = (
    *(" vi\u1ec7c", " vi\u1ec7cs", ".:.:", " nghi\u1ec7m", "x.:.:."),
    *(" :.:.:", " \u043f\u043e\u0432\u0435\u0440\u0430\u0442\u0443", "\u016fj\u00edc\u00ed"),
    *(" \u0431\u0435\u0440\u0430\u0442\u0443", " nghi\u1ec7nh", " th\u1eddiyle"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.exists(), reason="shared/tokenizers is not here"),
]


@pytest.fixture(params=STOP_TOKENS)
def name(request) -> str:
    return request.param


@pytest.fixture
def published(name) -> tuple[Tokenizer, ByteVocabulary]:
    tokenizer = Tokenizer.from_file(str(FOLDER / name / "tokenizer.json"))
    return tokenizer, ByteVocabulary(tokenizer, [STOP_TOKENS[name]])


def is_allowed(vocabulary: ByteVocabulary, token_ids: list[int]) -> bool:
    """Whether the rows that mask the models' probabilities hold a text's tokens, one by one."""
    state, row_of = vocabulary.viability.start(), vocabulary.trie.row_of
    for token in token_ids:
        if not vocabulary.viability.allowed(state)[row_of[token]]:
            return False
        state = vocabulary.viability.extend(state, token)
    return vocabulary.viability.may_end(state)


def test_trees_hold_the_librarys_tokenization_of_every_string(published):
    tokenizer, vocabulary = published
    for text in (*draw_hard_strings(1500, seed=10, longest=30), *LLAMA3_ODDITIES):
        tree = grown(vocabulary, vocabulary.normalize(text))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert closed_path(tree) == ids, text
        trunk = [tree.token[node] for node in tree.trunk()]
        assert trunk == ids[: len(trunk)]
        assert is_allowed(vocabulary, ids), text


def test_pairs_agree_with_the_library(published):
    tokenizer, vocabulary = published
    table = vocabulary.viability.merges
    pairs = hard_pairs(table, 50_000)
    wrong = [
        pair
        for pair, is_valid in zip(pairs, library_says(tokenizer, table, pairs), strict=True)
        if table.is_valid_pair(*pair) != is_valid
    ]
    assert wrong == []
