"""Byte distributions against sums over all token sequences, and the laws that they keep."""

import math
from itertools import product

import numpy as np
import pytest
from byte_marginals import ByteMarginals, byte_log_probs
from byte_streams import vocabulary_of
from tokenizers import Tokenizer

from anchored.decode.tokenizer.vocabulary import END_SYMBOL, ByteVocabulary

ALPHABET = ("t", " ", "'", "\u00e9")
# What may come behind decides what is viable, and need not be likely.
BEHIND = ("", *ALPHABET, "\n", "r", "Q", "1", "!", "\u4e2d", "\u00e8", "\u00f7")
NUM_CHARACTERS, LONGEST_TOKEN = 3, 2


class RandomModel:
    """Fixed random next-token log-probabilities, maybe only on short tokens over an alphabet."""

    def __init__(self, vocabulary: ByteVocabulary, alphabet: tuple[str, ...] | None = None) -> None:
        self.vocab_size = vocabulary.vocab_size
        self.banned = np.zeros(self.vocab_size, np.bool_)
        letters = set("".join(alphabet or ()).encode())
        for token, text in vocabulary.viability.merges.bytes_of.items() if alphabet else ():
            is_short = len(text.decode(errors="replace")) <= LONGEST_TOKEN
            self.banned[token] = not is_short or not set(text) <= letters

    def row(self, path: tuple[int, ...]) -> np.ndarray:
        source = np.random.default_rng([*path, 7])
        logits = np.where(self.banned, -math.inf, source.normal(size=self.vocab_size) * 2)
        return logits - np.logaddexp.reduce(logits)

    def __call__(self, paths) -> np.ndarray:
        return np.stack([self.row(tuple(path)) for path in paths])


class AllSequences:
    """The masked token model by definition: every viable sequence over a small alphabet.

    A sequence is viable if it begins the library's tokenisation of a string: of those that are
    compared, and a token and one more character of any kind.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: ByteVocabulary, model: RandomModel):
        self.bytes_of = vocabulary.viability.merges.bytes_of
        self.start = vocabulary.start_token_ids
        self.end_id = int(vocabulary.stop_token_ids[0])
        longest = NUM_CHARACTERS + LONGEST_TOKEN
        drawn = (letters for k in range(longest + 1) for letters in product(ALPHABET, repeat=k))
        strings = ["".join(letters) + last for letters in drawn for last in BEHIND]
        encodings = tokenizer.encode_batch_fast(strings, add_special_tokens=False)
        self.complete = {tuple(encoding.ids) for encoding in encodings}
        self.followers: dict[tuple[int, ...], set[int]] = {}
        for ids in self.complete:
            for place, token in enumerate(ids):
                self.followers.setdefault(ids[:place], set()).add(token)
        self.model = model
        self.step: dict[tuple[int, ...], dict[int, float]] = {}

    def law(self, path: tuple[int, ...]) -> dict[int, float]:
        """Masked and renormalised log-probabilities of what follows a sequence."""
        if path not in self.step:
            row = self.model.row((*self.start, *path))
            may_end = {self.end_id} if path in self.complete else set()
            allowed = self.followers.get(path, set()) | may_end
            total = np.logaddexp.reduce([row[token] for token in allowed])
            shift = 0.0 if total == -math.inf else total
            self.step[path] = {token: row[token] - shift for token in allowed}
        return self.step[path]

    def log_masses(self, text: bytes) -> np.ndarray:
        """log W(text x) for all 257 symbols: a sum over sequences that just reach beyond `text`."""
        masses = np.full(257, -math.inf)
        open_paths = [((), b"", 0.0)]
        while open_paths:
            path, held, mass = open_paths.pop()
            for token, step in self.law(path).items():
                if token == self.end_id:
                    if held == text:
                        masses[END_SYMBOL] = np.logaddexp(masses[END_SYMBOL], mass + step)
                    continue
                longer = held + self.bytes_of[token]
                if longer.startswith(text) and len(longer) > len(text):
                    symbol = longer[len(text)]
                    masses[symbol] = np.logaddexp(masses[symbol], mass + step)
                elif text.startswith(longer):
                    open_paths.append(((*path, token), longer, mass + step))
        return masses


def test_marginals_equal_sums_over_all_token_sequences(tokenizer, vocabulary):
    model = RandomModel(vocabulary, ALPHABET)
    every = AllSequences(tokenizer, vocabulary, model)
    texts = {"".join(letters) for letters in product(ALPHABET, repeat=NUM_CHARACTERS)}
    checked: set[bytes] = set()
    for text in sorted(texts):
        marginals = ByteMarginals(vocabulary, model)
        for place in range(len(text.encode()) + 1):
            if (held := text.encode()[:place]) not in checked:
                checked.add(held)
                expected = every.log_masses(held)
                np.testing.assert_allclose(marginals.log_masses(), expected, rtol=0, atol=1e-12)
            marginals.extend(text.encode()[place : place + 1])
    assert len(checked) > 100


def grown(tokenizer: Tokenizer, text: str):
    """The marginals at every byte of a text."""
    vocabulary = vocabulary_of(tokenizer)
    marginals = ByteMarginals(vocabulary, RandomModel(vocabulary))
    for byte in vocabulary.normalize(text):
        yield marginals
        marginals.append(byte)
    yield marginals


TEXTS = ("the caf\u00e9's  12345 \n\n\t x", "I'll 'Ve \u4e2d\u6587 \U0001f44d\U0001f3fd!?\r\n")


@pytest.mark.parametrize("text", TEXTS)
def test_every_distribution_sums_to_one(tokenizer, text):
    for marginals in grown(tokenizer, text):
        assert np.exp(marginals.log_probs()).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_masked_mass_telescopes(tokenizer, text):
    for marginals in grown(tokenizer, text):
        assert abs(marginals.leak) < 1e-12


@pytest.mark.parametrize("text", TEXTS)
def test_a_complete_text_has_the_probability_of_its_one_tokenisation(tokenizer, text, vocabulary):
    model = RandomModel(vocabulary)
    total = 0.0
    for marginals in grown(tokenizer, text):
        closing = marginals.log_probs()[END_SYMBOL]
        symbols = vocabulary.normalize(text)[len(marginals.tree.text) :]
        total += float(marginals.log_probs()[symbols[0]] if symbols else closing)
    assert total == pytest.approx(masked_log_prob(tokenizer, vocabulary, model, text), abs=1e-10)


def masked_log_prob(tokenizer, vocabulary, model, text) -> float:
    """log of the product of masked token probabilities along the library's tokenisation."""
    viability, total = vocabulary.viability, 0.0
    state = viability.start()
    path = list(vocabulary.start_token_ids)
    for token in [*tokenizer.encode(text).ids, None]:
        row = model.row(tuple(path))
        allowed = row[vocabulary.trie.tokens[viability.allowed(state)]]
        ends = row[vocabulary.stop_token_ids] if viability.may_end(state) else []
        total -= float(np.logaddexp.reduce([*allowed, *ends]))
        if token is None:
            return total + float(ends[0])
        total += float(row[token])
        state = viability.extend(state, token)
        path.append(token)
    raise AssertionError


@pytest.mark.parametrize("text", TEXTS)
def test_one_pass_scores_equal_those_byte_by_byte(tokenizer, text, vocabulary):
    symbols = [*vocabulary.normalize(text), END_SYMBOL]
    steps = grown(tokenizer, text)
    expected = [float(m.log_probs()[x]) for m, x in zip(steps, symbols, strict=True)]
    data = bytes(symbols[:-1])
    scores = byte_log_probs(vocabulary, data, RandomModel(vocabulary), chunk_size=7)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-11)
