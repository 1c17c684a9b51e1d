"""The words that name a tiny pair."""

import pytest


@pytest.fixture
def pair_words(pair_folders) -> list[str]:
    return ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1])]
