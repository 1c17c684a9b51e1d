"""What may follow what: rows against single tokens, ends and added tokens against the library."""

import random

import pytest
from byte_streams import closed_path, grown, vocabulary_of
from byte_tokenizers import REGEXES, STEPS, draw_hard_strings, published, trained
from tokenizers import AddedToken, Tokenizer, normalizers

from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.tokenizer.viability import Viability, ViabilityState


@pytest.mark.parametrize("family", ["o200k", pytest.param("DeepSeek-V2", marks=pytest.mark.slow)])
def test_rows_and_single_tokens_agree(family):
    vocabulary = vocabulary_of(trained(family, 300))
    viability = vocabulary.viability
    compared: set[tuple[object, ...]] = set()
    for text in draw_hard_strings(20, seed=7, longest=6):
        tree = TokenTree(vocabulary)
        for byte in vocabulary.normalize(text):
            for node in tree.append(byte):
                state = tree.state[node]
                key = (state.joins, state.splits, state.partial, state.token)
                if key not in compared:
                    compared.add(key)
                    assert_row_is_right(viability, state)
    assert len(compared) > 50


def assert_row_is_right(viability: Viability, state: ViabilityState) -> None:
    tokens = viability.trie.tokens.tolist()
    expected = [viability.extend(state, token) is not None for token in tokens]
    assert viability.allowed(state).tolist() == expected


# BPE alone makes none of the first as Llama 3 writes them: a whole pretoken, a split out of order.
# In the others a merge that ranks before one of its parts comes too late.
LLAMA3_ODDITIES = (
    *(" vi\u1ec7c", " vi\u1ec7cs", ".:.:", " nghi\u1ec7m", "x.:.:."),
    *(" :.:.:", " \u043f\u043e\u0432\u0435\u0440\u0430\u0442\u0443", "\u016fj\u00edc\u00ed"),
    *(" \u0431\u0435\u0440\u0430\u0442\u0443", " nghi\u1ec7nh", " th\u1eddiyle"),
)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("family", [*REGEXES, *STEPS, *published])
def test_texts_may_end_where_their_tokenization_does(family, tokenizer, vocabulary):
    texts = draw_hard_strings(300, seed=8) + draw_hard_strings(300, seed=10, longest=30)
    for text in (*texts, *(LLAMA3_ODDITIES if family == "llama3" else ())):
        tree, ids = TokenTree(vocabulary), tokenizer.encode(text, add_special_tokens=False).ids
        for byte in vocabulary.normalize(text):
            tree.append(byte)
            trunk = [tree.token[node] for node in tree.trunk()]
            assert trunk == ids[: len(trunk)], text
        assert closed_path(tree) == ids, text


one_tokenizer = pytest.mark.parametrize("family", ["GPT-2"])


@one_tokenizer
@pytest.mark.parametrize("wrong", [b"\x80", b"\xe4a", b"\xe0\x80", b"\xed\xa0", b"\xf4\x90"])
def test_ill_formed_utf8_cannot_follow(vocabulary, wrong):
    tree = grown(vocabulary, wrong[:-1])
    with pytest.raises(ValueError, match=f"byte 0x{wrong[-1]:02x} cannot follow"):
        tree.append(wrong[-1])


LITERALS = {
    "runs of spaces": [("    ", True), ("   ", True), ("  ", True)],
    "both kinds apart": [("ab", True), ("xy", False)],
    "one kind overlapping": [("ab", True), ("bxa", True), ("b", True)],
    "composed by the normalizer": [("e\u0301", True), ("\u212bx", True)],
    "not to be normalized": [("e\u0301", False), ("<a", False), ("\u0301x", False)],
}


@pytest.mark.parametrize("name", LITERALS)
def test_added_tokens_are_sought_as_the_library_seeks_them(name):
    tokenizer = Tokenizer.from_str(trained("GPT-2", 300).to_str())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(text, normalized=flag) for text, flag in LITERALS[name]])
    vocabulary, source = vocabulary_of(tokenizer), random.Random(3)
    for _ in range(300):
        letters = "abxye<>   \u0301\u0338\u212bA\u030a"
        text = "".join(source.choices(letters, k=source.randint(1, 7)))
        tree = grown(vocabulary, vocabulary.normalize(text))
        assert closed_path(tree) == tokenizer.encode(text).ids, text
        if len(text) == 2:
            for head in tree.heads:
                assert_row_is_right(vocabulary.viability, tree.state[head.node])


@one_tokenizer
def test_long_texts_need_no_recursion(vocabulary):
    assert len(grown(vocabulary, b"ab" * 3000).trunk()) > 500
