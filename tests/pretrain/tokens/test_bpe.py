"""The trained tokenizer: lossless, cut like Llama 3's, loaded by transformers."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from anchored.pretrain.tokens.bpe import pre_tokenizer, save_tokenizer, train_tokenizer

LLAMA3 = Path(__file__).parents[4] / "shared" / "tokenizers" / "llama3" / "tokenizer.json"
TEXTS = ["the cat sat on the mat, the rat ran", "def f(x):\n    return x + 1234567\n"] * 3

NASTY = [
    "I'LL we've DON'T can't rock'n'roll 's't",
    "1234567890 12 3.14159 0x1F \u0663\u0664\u0665\u0666 \u00b2\u00b3",
    "a  b   c    d\t\te \t f\n\n\ng \n h\r\n\r\ni\r j  \n   ",
    "caf\u00e9 cafe\u0301 \u65e5\u672c\u8a9e \u0939\u093f\u0928\u094d\u0926\u0940 \u0633\u0644",
    "\U0001f469\u200d\U0001f680\U0001f1eb\U0001f1f7 \u00a0\u2003\u3000x\u2028y\u0085z",
    "_snake_case__init__ @dataclass !?...$$$\n\n///---\r\n#include<stdio.h>\n\n",
    "\x00\x01\x7f\ufeff\ufffd \u017f \u212a 'S '\u017f \u0130I\u0131i",
    "",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, 280)


@pytest.fixture(scope="module")
def loaded(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(tokenizer, folder, model_max_length=512)
    return AutoTokenizer.from_pretrained(folder)


def and_nasty(test):
    """Hypothesis's texts, and all the nasty ones."""
    for text in NASTY:
        test = example(text=text)(test)
    return test


@and_nasty
@given(text=st.text())
def test_any_text_survives_the_round_trip(tokenizer, loaded, text):
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
    assert loaded(text, add_special_tokens=False)["input_ids"] == token_ids
    assert loaded.decode(token_ids) == text


@pytest.fixture(scope="module")
def llama3_pre_tokenizer():
    if not LLAMA3.exists():
        pytest.skip("the tokenizer of Llama 3 is not here")
    return Tokenizer.from_file(str(LLAMA3)).pre_tokenizer


@and_nasty
@given(text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(" \n\r'a1s")))
def test_any_text_is_cut_as_llama3_cuts_it(llama3_pre_tokenizer, text):
    ours, theirs = pre_tokenizer(), llama3_pre_tokenizer
    assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)
