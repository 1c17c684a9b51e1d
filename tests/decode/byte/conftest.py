"""What tests of bytes share: a tokenizer of each family, a tiny model, a pair.

The laws that byte level must keep, and the tests that hold them:

1. distributions of 257 symbols sum to one: test_byte_stream (nothing_follows, excludes)
2. marginals are sums over all token sequences, so masses telescope and a complete text has the
   probability of its one tokenization: test_dead_ends (all_texts)
3. canonical pairs and rows: test_merge_table; test_real_tokenizers (pairs)
4. a tree grown byte by byte is that of the whole, its trunk final: test_token_tree (trunk)
5. nodes are the beginnings of tokenizations: test_dead_ends (all_texts); test_real_tokenizers
6. bytes are sampled as tokens are, greedily too: test_byte_guarantee (draws), test_decoder (greedy)
7. one pass over a prompt is a walk: test_byte_stream (definition)
8. a tree's forward is that of its paths, whatever lies beside them: test_byte_stream (definition,
    family, depend_on_each_other, dead_slots, siblings)
9. one tokenizer: no budget is p_s, an ample one p_r's tokens: test_byte_guarantee (no_budget,
    ample)
10. divergences of bytes add up to that of texts, within K - debt, and no text of a pathwise budget
    is likelier than by its nats: test_byte_guarantee (add_up, pathwise)
11. spends are divergences from the safe model: test_byte_guarantee (true_divergence)
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
