"""SentencePiece-style tokenizers at byte level: texts, walks and distributions of bytes."""

import json
import random
from functools import cache

import numpy as np
import pytest
import torch
from byte_pairs import tiny_byte_pair
from byte_streams import (
    closed_path,
    feed_byte_by_byte,
    grown,
    model_of,
    stream_of,
)
from hard_strings import draw_hard_strings
from sentence_pieces import MARK, STYLES, SentencePieceOracle, sentence_piece, text_of
from text_oracle import OracleDistributions, worst_error
from tiny_models import tiny_llama
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.tokenizer.sentence_piece import SentencePiece
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

FALLBACK = "\u4e2d\U0001f600\u0f40\u05d0\x07\u0301"
"""Characters without a token, of one to four bytes."""


FAST = ("Llama 2", "Gemma")
styles = pytest.mark.parametrize(
    "style", [s if s in FAST else pytest.param(s, marks=pytest.mark.slow) for s in STYLES]
)


@cache
def vocabulary_of(style: str) -> ByteVocabulary:
    return ByteVocabulary(sentence_piece(style), [2])


def hard_texts(number: int, seed: int) -> list[str]:
    source = random.Random(seed)
    texts = draw_hard_strings(number, seed=seed)
    return [
        "".join(c + (source.choice(FALLBACK) if source.random() < 0.1 else "") for c in text)
        for text in texts
    ]


@styles
def test_the_tokens_of_every_text_follow_each_other_and_may_end(style):
    tokenizer, vocabulary = sentence_piece(style), vocabulary_of(style)
    viability, trie = vocabulary.viability, vocabulary.trie
    for text in hard_texts(100 if style in FAST else 5_000, seed=1):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        state = viability.start()
        for token in ids:
            assert viability.allowed(state)[trie.row_of[token]], (text, ids)
            state = viability.extend(state, token)
            assert state is not None, (text, ids)
        assert viability.may_end(state), text
        spelled = b"".join(trie.texts[trie.row_of[token]] for token in ids)
        assert spelled.decode() == text_of(style, text)
        assert not text or spelled == vocabulary.spelled(vocabulary.normalize(text))


@styles
def test_every_walk_of_tokens_that_may_follow_is_the_tokenization_of_its_text(style):
    tokenizer, vocabulary = sentence_piece(style), vocabulary_of(style)
    source = random.Random(2)
    for _ in range(40 if style in FAST else 2_000):
        ids = walk(vocabulary, source)
        texts = [vocabulary.trie.texts[vocabulary.trie.row_of[token]] for token in ids]
        text = b"".join(texts).decode()
        if text_of(style, "a") == " a":
            text = text.removeprefix(" ") if style in ("Llama 2", "Phi-3") else text
        assert not text or tokenizer.encode(text, add_special_tokens=False).ids == ids, text


def walk(vocabulary: ByteVocabulary, source: random.Random) -> list[int]:
    """Tokens, short ones and pieces of characters often, until a text may end."""
    viability, trie = vocabulary.viability, vocabulary.trie
    state, ids, wanted = viability.start(), [], source.randint(1, 12)
    lengths = np.array([len(text) for text in trie.texts])
    is_cut = np.array([text[0] >= 0x80 for text in trie.texts])
    while len(ids) < wanted or not viability.may_end(state):
        row = viability.allowed(state)
        if not ids and vocabulary.spelled(b"a") == b" a":
            row = row & np.array([text.startswith(b" ") for text in trie.texts])
        kind = source.random()
        chosen = row & (lengths <= 2 if kind < 0.4 else is_cut if kind < 0.7 else True)
        rows = np.flatnonzero(chosen if chosen.any() else row).tolist()
        token = int(trie.tokens[source.choice(rows)])
        state = viability.extend(state, token)
        assert state is not None
        ids.append(token)
    return ids


TEXTS = ["The keeper", " 4\u4e2d\U0001f600 a", "s  .\n\n"]


@styles
def test_distributions_of_bytes_are_sums_over_all_sequences_that_occur(style):
    tokenizer = sentence_piece(style, 330)
    vocabulary = ByteVocabulary(tokenizer, [2])
    model, oracle = model_of(vocabulary), SentencePieceOracle(style, tokenizer)
    distributions = OracleDistributions(oracle, model, vocabulary.start_token_ids, 2)
    for text in TEXTS[:2]:
        symbols = list(vocabulary.normalize(text))
        stream = stream_of(model, vocabulary)
        read = stream.read([symbols[:2]], [0])
        scores = stream.read([symbols], [1]).token_log_probs[0].tolist()
        assert len(scores) == len(symbols) - 1
        actual = torch.cat([read.logits, feed_byte_by_byte(stream, 0, symbols[2:])])
        spelled = vocabulary.spelled(bytes(symbols))
        first = len(spelled) - len(symbols)
        for length in range(2, len(symbols) + 1):
            expected = distributions.next_symbol(spelled[: first + length])
            error = worst_error(actual[length - 2].tolist(), expected.tolist())
            assert error <= 1e-9, (text, length)
            after = symbols[length : length + 1]
            assert worst_error(scores[length - 1 : length], expected[after].tolist()) <= 1e-9


NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("style", ["Llama 2", pytest.param("Mistral", marks=pytest.mark.slow)])
def test_a_pair_of_both_kinds_decodes_and_its_ledgers_verify(style):
    safe = PreTrainedTokenizerFast(tokenizer_object=sentence_piece(style), **NAMES)
    risky = tiny_byte_pair().tokenizers["risky"]
    models = [tiny_llama(1, vocab_size=len(safe)), tiny_llama(2, vocab_size=len(risky))]
    pair = ModelPair(*models, safe, risky_tokenizer=risky)
    decoder = Decoder(pair, Anchored(k=0.5))
    prompts, options = ["The keeper", "caf\u00e9 \u4e2d", " a"], {"max_new_bytes": 8, "stop": ["e"]}
    results = decoder.generate(prompts, seed=3, **options)
    for prompt, result in zip(prompts, results, strict=True):
        (alone,) = decoder.generate([prompt], seed=3, **options)
        assert result.text == alone.text and result.ledger.spent <= result.ledger.header.bound
        assert verify(result.ledger, pair).is_ok


def changed(style: str, *, added=(), merges=(), lacks="", **parts) -> Tokenizer:
    """A tokenizer with other parts, merges before all others, more added tokens, or a byte less."""
    content = {**json.loads(sentence_piece(style).to_str()), **parts}
    vocab = content["model"]["vocab"]
    for part in (part for pair in merges for part in (*pair, "".join(pair))):
        vocab.setdefault(part, len(vocab))
    vocab.pop(lacks, None)
    content["model"]["merges"][:0] = map(list, merges)
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens([*added])
    return tokenizer


LOWERCASE = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}


def test_a_tokenizer_that_reads_otherwise_than_its_file_says_is_refused(monkeypatch):
    monkeypatch.setattr(SentencePiece, "spelled", lambda self, text: text)
    with pytest.raises(ValueError, match="does not know how the tokenizer reads 'a'"):
        ByteVocabulary(sentence_piece("Llama 2"), [2])


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (lambda: changed("Yi", lacks="<0xC3>"), "tokens of all 256 bytes, got Replace"),
        (lambda: changed("Yi", normalizer=LOWERCASE), "step Lowercase of a SentencePiece"),
        (lambda: changed("Yi", normalizer=None), "writes spaces as U\\+2581"),
        (lambda: changed("Yi", added=["<0xC5>"]), "<0xC5> as an added token"),
        (lambda: changed("Llama 2", added=["x"]), "not know how the tokenizer reads .The"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(tokenizer, reason):
    with pytest.raises(ValueError, match=reason):
        ByteVocabulary(tokenizer(), [2])


@pytest.mark.parametrize(
    "style", ["Yi", "Mistral", pytest.param("Llama 2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "added",
    [
        AddedToken(f"{MARK}zzq", normalized=True),
        AddedToken(MARK * 8, normalized=True),
        AddedToken(" qu", normalized=False),
        AddedToken("#", normalized=False),
    ],
    ids=lambda token: token.content,
)
def test_added_tokens_are_where_the_library_cuts_them_out(style, added):
    """U+2581 is written by a normalizer before they are sought, or by Metaspace after that."""
    tokenizer = changed(style, added=[added], merges=[("z", "z"), (MARK, "zz"), ("#", "#")])
    vocabulary, literal = ByteVocabulary(tokenizer, [2]), added.content.replace(MARK, " ")
    for text in ("a zzq", "azz", "  zzqa", "aqu", "a#b", f"a{' ' * 9}b"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        try:
            tree = grown(vocabulary, vocabulary.spelled(text.encode()))
        except ValueError:  # of a tokenizer that puts a space first, again after such a token
            assert style != "Yi" and literal in text
            assert tokenizer.token_to_id(added.content) in ids
        else:
            # A literal that three ordinary tokens spell is not excluded.
            assert closed_path(tree) == ids or (style != "Yi" and literal in text), text
