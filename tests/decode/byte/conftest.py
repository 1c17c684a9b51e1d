"""What tests of bytes share: a tokenizer of each family, a tiny model, a pair.

The laws that byte level must keep, and the tests that hold them:

1. distributions of 257 symbols sum to one: test_byte_marginals (every_distribution)
2. masses telescope: test_byte_marginals (telescopes)
3. a complete text has the probability of its one tokenisation: test_byte_marginals (complete_text)
4. marginals are sums over all token sequences: test_byte_marginals (all_token_sequences)
5. canonical pairs, sequences and rows: test_merge_table; test_real_tokenizers (pairs)
6. a tree grown byte by byte is that of the whole, its trunk final: test_token_tree (spell, trunk)
7. nodes are the beginnings of tokenisations: test_viability (beginnings); test_real_tokenizers
8. bytes are sampled as tokens are, greedily too: test_byte_guarantee (draws), test_decoder (greedy)
9. one pass over a prompt is a walk: test_byte_marginals (one_pass), test_byte_stream (feeding)
10. a tree's forward is that of its paths, whatever lies beside them: test_byte_stream (definition,
    family, depend_on_each_other, dead_slots, siblings)
11. an unfinished word or a space at the end of a prompt costs nothing: test_byte_marginals
    (unfinished_word, ends_in_a_space)
12. one tokenizer: no budget is p_s, an ample one p_r's tokens: test_byte_guarantee (no_budget,
    ample)
13. divergences of bytes add up to that of texts, within K - debt: test_byte_laws (add_up)
14. spends are divergences from the safe model: test_byte_guarantee (true_divergence)
"""

import pytest
from byte_pairs import tiny_byte_pair
from byte_streams import CONTINUATION, PROMPT, bytes_of, model_of, vocabulary_of
from byte_tokenizers import REGEXES, trained
from merge_pairs import merge_table
from tokenizers import Tokenizer

from anchored import ModelPair
from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.tokenizer.merges import MergeTable
from anchored.decode.tokenizer.vocabulary import ByteVocabulary


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
def vocabulary(tokenizer) -> ByteVocabulary:
    return vocabulary_of(tokenizer)


@pytest.fixture
def table(tokenizer) -> MergeTable:
    return merge_table(tokenizer)


@pytest.fixture
def tree(vocabulary) -> TokenTree:
    return TokenTree(vocabulary)


@pytest.fixture
def model(vocabulary):
    return model_of(vocabulary)


@pytest.fixture
def prompt(vocabulary) -> list[int]:
    return bytes_of(vocabulary, PROMPT)


@pytest.fixture
def text(vocabulary) -> list[int]:
    return bytes_of(vocabulary, CONTINUATION)
