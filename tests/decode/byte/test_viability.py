"""What may follow what: rows against single tokens, ends and added tokens against the library."""

import pytest
from byte_streams import alive, closed_path, grown, path_of, vocabulary_of
from byte_tokenizers import REGEXES, STEPS, regex_split, trained
from hard_strings import draw_hard_strings
from tokenizers import AddedToken, Tokenizer, models

from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.tokenizer.tokenizer_file import byte_characters
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.viability import Viability, ViabilityState


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["o200k", "DeepSeek-V2"])
def test_rows_and_single_tokens_agree(family):
    vocabulary = vocabulary_of(trained(family, 300))
    viability = vocabulary.viability
    compared: set[tuple[object, ...]] = set()
    for text in draw_hard_strings(40, seed=7, longest=6):
        tree = TokenTree(vocabulary)
        for byte in vocabulary.normalize(text):
            for node in tree.append(byte):
                state = tree.state[node]
                key = (state.joins, state.splits, state.partial, state.token)
                if key not in compared:
                    compared.add(key)
                    assert_row_is_right(viability, state)
    assert len(compared) > 100


def assert_row_is_right(viability: Viability, state: ViabilityState) -> None:
    tokens = viability.trie.tokens.tolist()
    expected = [viability.extend(state, token) is not None for token in tokens]
    assert viability.allowed(state).tolist() == expected


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", [*REGEXES, *STEPS])
def test_texts_may_end_where_their_tokenization_does(tokenizer, vocabulary):
    for text in draw_hard_strings(300, seed=8):
        tree = grown(vocabulary, vocabulary.normalize(text))
        assert closed_path(tree) == tokenizer.encode(text).ids


def test_no_text_ends_inside_a_character(vocabulary):
    assert closed_path(grown(vocabulary, b"a\xe4\xb8")) is None


@pytest.mark.parametrize(
    "wrong", [b"\x80", b"\xc0", b"\xe4a", b"\xe0\x80", b"\xed\xa0", b"\xf4\x90", b"\xff"]
)
def test_ill_formed_utf8_cannot_follow(vocabulary, wrong):
    tree = grown(vocabulary, wrong[:-1])
    with pytest.raises(ValueError, match=f"byte 0x{wrong[-1]:02x} cannot follow"):
        tree.append(wrong[-1])


def with_added_spaces(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken(" " * length, normalized=True) for length in (4, 3, 2)])
    return copy


@pytest.mark.sampled(3)
def test_added_tokens_are_matched_leftmost_longest(tokenizer):
    added = with_added_spaces(tokenizer)
    vocabulary = vocabulary_of(added)
    for text in draw_hard_strings(200, seed=9):
        tree = grown(vocabulary, vocabulary.normalize(text))
        assert closed_path(tree) == added.encode(text).ids
        if len(text) < 4:
            for head in tree.heads:
                if head.prefix == ROOT:
                    assert_row_is_right(vocabulary.viability, tree.state[head.node])


def with_whole_pretokens() -> tuple[Tokenizer, int]:
    """A tokenizer that knows " abc" only as a whole pretoken: its merges cannot make it."""
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    merges = [("a", "b"), ("\u0120", "ab"), ("b", "c"), ("a", "bc")]
    for left, right in [*merges, ("\u0120", "abc")]:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer, vocab["\u0120abc"]


def test_whole_pretokens_stand_only_for_themselves():
    tokenizer, whole = with_whole_pretokens()
    tokenizer.pre_tokenizer = regex_split(REGEXES["cl100k"])
    vocabulary = vocabulary_of(tokenizer)
    for text in (" abc", " abcd", "x abc", "x abc abc1", " abc  abc", "  abc", "abc", "abc abcabc"):
        tree = grown(vocabulary, text.encode())
        ends = [node for node in alive(tree) if tree.end[node] == len(text)]
        closed = [node for node in ends if vocabulary.viability.may_end(tree.state[node])]
        assert [path_of(tree, node) for node in closed] == [tokenizer.encode(text).ids]
        row = vocabulary.viability.allowed(tree.state[closed[0]])
        assert row[vocabulary.trie.row_of[whole]]
