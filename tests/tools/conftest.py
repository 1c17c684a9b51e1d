"""The words that name a tiny pair, and a tokenizer for training."""

from pathlib import Path

import pytest


@pytest.fixture
def pair_words(pair_folders) -> list[str]:
    return ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1])]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory, tokenizer) -> Path:
    """Holds the files of the tiny pair's tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder
