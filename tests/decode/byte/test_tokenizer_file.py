"""What a tokenizer.json says, and which tokenizers are refused, in one line each."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from anchored.decode.tokenizer.tokenizer_file import byte_characters, read_tokenizer, token_bytes


def byte_level(**options) -> Tokenizer:
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([("a", -1.0)], unk_id=0, byte_fallback=False))


def metaspace() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def prefix_space() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def lowercase() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return tokenizer


def prepend() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Prepend("_")
    return tokenizer


def stripping() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def closing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing("$A <s>", None, [("<s>", 256)])
    return tokenizer


REFUSED = {
    "needs a byte-level BPE tokenizer, got Unigram": unigram,
    "byte-fallback": lambda: byte_level(byte_fallback=True),
    "BPE with dropout": lambda: byte_level(dropout=0.5),
    r"SentencePiece tokenizers \(Metaspace\)": metaspace,
    r"SentencePiece tokenizers \(Prepend\)": prepend,
    "add_prefix_space=true": prefix_space,
    "no normalizer but NFC, got Lowercase": lowercase,
    "'<mask>' has unsupported lstrip=true": stripping,
    "tokens after a text": closing,
    "no token for byte 0x00": lambda: Tokenizer(models.BPE({"a": 0}, [])),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_tokenizers_are_refused_by_name(reason):
    tokenizer = REFUSED[reason]()
    if tokenizer.pre_tokenizer is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(ValueError, match=reason):
        read_tokenizer(tokenizer)


def test_special_tokens_have_no_bytes_and_added_ones_have():
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["<think>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 256)])
    file = read_tokenizer(tokenizer)
    assert file.special_token_ids == {256}
    assert file.added_token_ids == {257}
    assert 256 not in file.token_bytes
    assert file.token_bytes[257] == b"<think>"
    assert file.leading_token_ids == (256,)
    assert file.vocab_size == 258


def test_entries_outside_the_alphabet_are_refused():
    assert token_bytes("\u0120a") == b" a"
    with pytest.raises(ValueError, match="is not written in the byte-level alphabet"):
        token_bytes("\u2581a")
