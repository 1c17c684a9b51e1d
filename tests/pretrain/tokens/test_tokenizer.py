"""Tokenizers of training: one that loses text is refused, any other begins and ends documents."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_styles import STYLES
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from anchored.decode.tokenizer.tokenizer_file import LETTER_OF
from anchored.pretrain.tokens.documents import Document, DocumentRules
from anchored.pretrain.tokens.tokenizer import NO_TOKEN, DocumentEncoder, read_tokenizer

CONTROLS = [*range(0x20), 0x7F]


def byte_level(without=(), **options):
    """GPT-2's kind, without merges; its special tokens are <|end|> and <|turn|>."""
    names = [name for byte, name in sorted(LETTER_OF.items()) if byte not in without]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|turn|>"])
    return tokenizer


def normalized(*steps):
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence(list(steps))
    return tokenizer


def with_tag(**options):
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<tag>", **options)])
    return tokenizer


def saved(tokenizer, folder, **config):
    """The tokenizer.json in a folder, with a tokenizer_config.json if it has a setting."""
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return file


LOSSY = {
    "accents": lambda: normalized(normalizers.NFD(), normalizers.StripAccents()),
    "NFKC": lambda: normalized(normalizers.NFKC()),
    "spaces": lambda: normalized(normalizers.Replace("  ", " ")),
    "a tag and its space": lambda: with_tag(lstrip=True),
    "dropout": lambda: byte_level(dropout=0.1),
    "no byte of letters": lambda: byte_level(without=[0xE4]),
    "words": STYLES["word_piece"],
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_tokenizer_that_loses_text_is_refused_in_one_line(name, tmp_path):
    tokenizer = LOSSY[name]()
    file = saved(getattr(tokenizer, "backend_tokenizer", tokenizer), tmp_path)
    with pytest.raises(ValueError, match=r"loses text: '.+' comes back as|merges at random") as got:
        read_tokenizer(file)
    assert str(file) in str(got.value) and len(str(got.value).splitlines()) == 1


LOSSLESS = {
    "no controls": lambda: byte_level(without=[*set(CONTROLS) - {*b"\t\n\r"}, 0xC0, 0xF1, 0xFF]),
    "NFD": lambda: normalized(normalizers.NFD()),
    "a tag": with_tag,
    **{name: STYLES[name] for name in ("llama2", "metaspace")},
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_tokenizer_that_gives_texts_back_is_taken(name, tmp_path):
    tokenizer = LOSSLESS[name]()
    file = saved(getattr(tokenizer, "backend_tokenizer", tokenizer), tmp_path)
    assert read_tokenizer(file).encode_special_tokens


def beginning(*tokens):
    """Puts special tokens before a text."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.post_processor = TemplateProcessing(
        single=[*tokens, "$A"],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens],
    )
    return tokenizer


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({"eos_token": "<|end|>", "bos_token": "<|turn|>"}, {}, ("<s>", "<|end|>")),
        ({"eos_token": {"content": "<|turn|>", "special": True}}, {}, ("<s>", "<|turn|>")),
        ({}, {"end_token": "<|end|>", "begin_token": NO_TOKEN}, (NO_TOKEN, "<|end|>")),
    ],
)
def test_documents_begin_as_prompts_do_and_end_as_the_config_says_unless_named(
    tmp_path, config, options, expected
):
    encoder = DocumentEncoder(saved(beginning("<s>"), tmp_path, **config), **options)
    assert (encoder.begin_token, encoder.end_token) == expected
    assert (encoder.bos_id is None) == (expected[0] == NO_TOKEN)


@pytest.mark.parametrize(
    ("tokens", "config", "options", "reason"),
    [
        (["<s>"], {"eos_token": None}, {}, r"no eos_token in /.*config.json: name .* --end-token"),
        (["<s>"], {"eos_token": "</s>"}, {}, r"no token </s> \(eos_token of .*--end-token names"),
        (["<s>"], {}, {"end_token": "."}, r"token \. of .* that a text may hold, .*special token"),
        (["<s>"], {"eos_token": "<s>"}, {}, "begins and ends a text with <s>, .*-begin-token none"),
        (["<s>", "<t>"], {"eos_token": "<|end|>"}, {}, r"2 tokens before a text \(<s>, <t>\)"),
    ],
)
def test_tokens_that_cannot_begin_or_end_documents_are_refused(
    tmp_path, tokens, config, options, reason
):
    file = saved(beginning(*tokens), tmp_path, **config)
    with pytest.raises(ValueError, match=reason) as got:
        DocumentEncoder(file, **options)
    assert len(str(got.value).splitlines()) == 1


@pytest.fixture(scope="module", params=[NO_TOKEN, "<|turn|>"])
def encoder(request, tmp_path_factory):
    """Encoders of a tokenizer that begins prompts with <s>."""
    folder = tmp_path_factory.mktemp("encoder")
    return DocumentEncoder(
        saved(beginning("<s>"), folder), begin_token=request.param, end_token="<|end|>"
    )


TEXTS = st.lists(st.text(min_size=1) | st.sampled_from(["<|end|>", "a<s><|turn|>"]), max_size=4)


@given(texts=TEXTS)
def test_documents_are_their_texts_between_the_tokens_which_are_nowhere_else(encoder, texts):
    tokenizer = Tokenizer.from_file(str(encoder.file))
    documents = [Document(index, text.encode()) for index, text in enumerate(texts)]
    for encoded, text in zip(encoder.encode(documents, DocumentRules()), texts, strict=True):
        ids = encoded.token_ids.tolist()
        begin = [] if encoder.bos_id is None else [encoder.bos_id]
        assert ids[: len(begin)] == begin and ids[-1] == encoder.eos_id
        inner = ids[len(begin) : -1]
        assert not {encoder.eos_id, *begin} & {*inner} and max(ids) < encoder.vocab_size
        assert tokenizer.decode(inner, skip_special_tokens=False) == text
