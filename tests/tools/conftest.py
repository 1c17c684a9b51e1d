"""The quickstart's corpus, gathered once for all tests that read it."""

import pytest

from anchored.tools.quickstart.corpus import Corpus, CorpusConfig, gather


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return gather(CorpusConfig())
