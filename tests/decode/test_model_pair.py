"""Pairs that fit together load; those that do not are refused in one line."""

import shutil

import pytest
from tiny_models import TEXT, tiny_llama, train_tokenizer

from anchored import ModelPair


def test_folders_load_with_fingerprints_cached_beside_them(pair_folders):
    pair = ModelPair.from_pretrained(*pair_folders)
    assert (pair.vocab_size, pair.context_length, pair.stop_token_ids) == (320, 128, [1])
    again = ModelPair.from_pretrained(*pair_folders)
    assert again.fingerprints == pair.fingerprints
    assert (pair_folders[0].parent / "safe.fingerprint.json").is_file()


def test_a_changed_weight_file_changes_the_fingerprint(pair_folders, tmp_path):
    before = ModelPair.from_pretrained(*pair_folders).fingerprints
    changed = tmp_path / "risky"
    shutil.copytree(pair_folders[1], changed)
    tiny_llama(3, layers=3).float().save_pretrained(changed)
    after = ModelPair.from_pretrained(pair_folders[0], changed).fingerprints
    assert after["safe"] == before["safe"] and after["risky"] != before["risky"]


def test_a_missing_folder_is_named(pair_folders, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model folder with a config.json at .*nowhere"):
        ModelPair.from_pretrained(tmp_path / "nowhere", pair_folders[1])


def test_different_tokenizers_are_refused_and_the_byte_level_named(pair_folders, tmp_path):
    tiny_llama(4, vocab_size=300).float().save_pretrained(tmp_path / "other")
    train_tokenizer(300, TEXT[:1]).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r'different tokenizers .* needs level="byte"'):
        ModelPair.from_pretrained(pair_folders[0], tmp_path / "other")


def test_padded_embeddings_are_allowed_and_never_predicted(tokenizer):
    pair = ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=384), tokenizer)
    assert pair.vocab_size == 320


def test_too_few_embeddings_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"the risky model predicts 256 tokens, .* has 320"):
        ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=256), tokenizer)


def test_stop_tokens_of_both_models_are_joined(tokenizer):
    pair = ModelPair(tiny_llama(1), tiny_llama(2, eos_token_id=[1, 2]), tokenizer)
    assert pair.stop_token_ids == [1, 2]


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(pair, prompt):
    with pytest.raises(ValueError, match="the prompt is empty"):
        pair.encode(prompt)


def test_token_ids_outside_the_vocabulary_are_refused(pair):
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 320\), got 320"):
        pair.encode([1, 320])


def test_a_device_mapping_must_name_both(pair_folders):
    with pytest.raises(ValueError, match='device must name "safe" and "risky"'):
        ModelPair.from_pretrained(*pair_folders, device={"safe": "cpu"})
