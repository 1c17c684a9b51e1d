"""Pairs that fit together load; those that do not are refused in one line."""

import copy

import pytest
from tiny_models import TEXT, tiny_llama, train_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from anchored import ModelPair


def test_folders_load_with_the_same_fingerprints_again(pair_folders):
    pair = ModelPair.from_pretrained(*pair_folders)
    assert (pair.vocab_size, pair.context_length, pair.stop_token_ids) == (320, 128, [1])
    again = ModelPair.from_pretrained(*pair_folders)
    assert again.fingerprints == pair.fingerprints
    assert not list(pair_folders[0].parent.glob("*.json"))


def test_two_tokenizers_without_bytes_are_refused_by_name(tokenizer):
    pieces = Tokenizer(models.BPE(byte_fallback=True))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    other = PreTrainedTokenizerFast(tokenizer_object=pieces)
    reason = "the risky one has no bytes: byte level needs a SentencePiece tokenizer whose"
    with pytest.raises(ValueError, match=reason):
        ModelPair(tiny_llama(1), tiny_llama(2), tokenizer, risky_tokenizer=other)


def test_stop_tokens_of_two_tokenizers_are_the_same_if_they_have_the_same_name(tokenizer):
    other = train_tokenizer(300, TEXT[:1])
    ends = {"safe": tiny_llama(1), "risky": tiny_llama(2, vocab_size=300, eos_token_id=[1, 2])}
    pair = ModelPair(*ends.values(), tokenizer, risky_tokenizer=other)
    assert pair.stop_tokens_of("safe") == pair.stop_tokens_of("risky") == [1, 2]
    assert "<|turn|>" in other.convert_ids_to_tokens([2])


def test_more_embeddings_than_tokens_are_never_predicted_and_fewer_are_refused(tokenizer):
    assert ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=384), tokenizer).vocab_size == 320
    with pytest.raises(ValueError, match=r"the risky model predicts 256 tokens, .* has 320"):
        ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=256), tokenizer)


def test_a_tokenizer_that_leaves_out_merges_at_random_is_refused_by_name():
    both = [train_tokenizer(320), train_tokenizer(300)]
    both[1].backend_tokenizer.model.dropout = 0.5
    with pytest.raises(ValueError, match=r"^the risky model's tokenizer leaves out .*0\.5"):
        ModelPair(tiny_llama(1), tiny_llama(2), both[0], risky_tokenizer=both[1])


def test_an_end_of_text_after_each_prompt_is_said(tokenizer, caplog):
    ending = copy.deepcopy(tokenizer)
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", 1)]
    )
    ModelPair(tiny_llama(1), tiny_llama(2), ending)
    assert caplog.messages == ["the tokenizer puts an end of text, token 1, after each prompt"]
