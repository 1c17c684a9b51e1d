"""The quickstart's corpus, gathered once, and the words that name a tiny pair."""

import pytest

from anchored.tools.quickstart.corpus import Corpus, CorpusConfig, gather


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return gather(CorpusConfig())


@pytest.fixture
def pair_words(pair_folders) -> list[str]:
    return ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1])]
