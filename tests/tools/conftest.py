"""The words that name a tiny pair, and a tokenizer for training."""

from pathlib import Path

import pytest

from anchored.pretrain.tokens.encoder import BOS_TOKEN, EOS_TOKEN


@pytest.fixture
def pair_words(pair_folders) -> list[str]:
    return ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1])]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory, tokenizer) -> Path:
    """Holds a tokenizer.json with the special tokens of training."""
    folder = tmp_path_factory.mktemp("tokenizer")
    text = tokenizer.backend_tokenizer.to_str()
    text = text.replace("<|begin|>", BOS_TOKEN).replace("<|end|>", EOS_TOKEN)
    (folder / "tokenizer.json").write_text(text)
    return folder
