"""What a tokenizer.json says, and which tokenizers are refused, in one line each."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from anchored.decode.tokenizer.tokenizer_file import LETTER_OF, read_tokenizer


def byte_level(*, added=(), special=(), parts: dict | None = None, **options) -> Tokenizer:
    """All bytes and nothing else. parts: attributes of the tokenizer."""
    vocab = {letter: byte for byte, letter in LETTER_OF.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], **options))
    tokenizer.add_special_tokens([*special])
    tokenizer.add_tokens([*added])
    for name, part in {"pre_tokenizer": byte_split(), **(parts or {})}.items():
        setattr(tokenizer, name, part)
    return tokenizer


def literal(text: str, *, normalized: bool = False) -> AddedToken:
    return AddedToken(text, normalized=normalized)


def byte_split(*, add_prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)


UNIGRAM = Tokenizer(models.Unigram([("a", -1.0)], unk_id=0, byte_fallback=False))
NFC_AND_MORE = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
CLOSING = processors.TemplateProcessing("$A <s>", None, [("<s>", 256)])
REFUSED = {
    r"with byte fallback, got Unigram \(T5, ALBERT, XLM-R\)": UNIGRAM,
    "BPE with dropout": byte_level(dropout=0.5),
    "tokens of all 256 bytes, got Metaspace without": byte_level(
        parts={"pre_tokenizer": pre_tokenizers.Metaspace()}
    ),
    "add_prefix_space=true": byte_level(parts={"pre_tokenizer": byte_split(add_prefix_space=True)}),
    "no normalizer but NFC, got Lowercase": byte_level(parts={"normalizer": NFC_AND_MORE}),
    "'<mask>' has unsupported lstrip=true": byte_level(added=[AddedToken("<mask>", lstrip=True)]),
    "'ab' and 'bc' overlap": byte_level(added=[literal("ab"), literal("bc", normalized=True)]),
    "'é!' and 'é!' overlap": byte_level(
        added=[literal("é!", normalized=True), literal("e\u0301!", normalized=True)],
        parts={"normalizer": normalizers.NFC()},
    ),
    r"'é' is also an ordinary one, of bytes b'\\xe9'": byte_level(added=["é"]),
    "'a' is also an ordinary one": byte_level(special=[AddedToken("a", single_word=True)]),
    "tokens after a text": byte_level(special=["<s>"], parts={"post_processor": CLOSING}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_tokenizers_are_refused_by_name(reason):
    with pytest.raises(ValueError, match=reason):
        read_tokenizer(REFUSED[reason])


def test_special_tokens_have_no_bytes_and_added_ones_have():
    tokenizer = byte_level(special=["<s>"], added=["<think>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 256)])
    file = read_tokenizer(tokenizer)
    assert (file.special_token_ids, file.added_token_ids, file.vocab_size) == ({256}, {257}, 258)
    assert 256 not in file.token_bytes and file.token_bytes[257] == b"<think>"
    assert file.leading_token_ids == (256,)
