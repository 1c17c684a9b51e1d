"""The quickstart's corpus, gathered once."""

import pytest

from anchored.tools.quickstart.corpus import Corpus, CorpusConfig, gather


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return gather(CorpusConfig())
