"""Fixtures of the tests of bytes: a tokenizer of each family, a tiny model, a pair."""

import pytest
from byte_pairs import tiny_byte_pair
from byte_streams import CONTINUATION, PROMPT, bytes_of, model_of, vocabulary_of
from byte_tokenizers import REGEXES, trained
from tokenizers import Tokenizer

from anchored import ModelPair
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
def model(vocabulary):
    return model_of(vocabulary)


@pytest.fixture
def prompt(vocabulary) -> list[int]:
    return bytes_of(vocabulary, PROMPT)


@pytest.fixture
def text(vocabulary) -> list[int]:
    return bytes_of(vocabulary, CONTINUATION)
