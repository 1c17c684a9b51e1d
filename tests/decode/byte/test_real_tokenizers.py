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
# BPE alone makes neither of these as Llama 3 writes them: a whole pretoken, a split out of order.
LLAMA3_ODDITIES = (" vi\u1ec7c", " vi\u1ec7cs", ".:.:", " nghi\u1ec7m", "x.:.:.")

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


def test_trees_hold_the_librarys_tokenization_of_every_string(published):
    tokenizer, vocabulary = published
    for text in (*draw_hard_strings(1500, seed=10, longest=30), *LLAMA3_ODDITIES):
        tree = grown(vocabulary, vocabulary.normalize(text))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert closed_path(tree) == ids, text
        trunk = [tree.token[node] for node in tree.trunk()]
        assert trunk == ids[: len(trunk)]


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
