"""Budgets of bytes are budgets of texts.

Tokens over a few letters alone are allowed, so that all short texts can be enumerated.
"""

import itertools
import math
from functools import cache

import pytest
import torch
from byte_streams import model_of
from tokenizers import Tokenizer
from torch import Tensor

from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.models.capabilities import row_attention
from anchored.decode.models.row_stream import ModelRunner
from anchored.decode.rules.budget import Budget
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from anchored.kernels.projection import project_kl

pytestmark = pytest.mark.parametrize("family", ["cl100k"])
LETTERS = b"tz "


class LetterModel:
    """A tiny random model, and its warper that bans every token with another letter."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        end = tokenizer.token_to_id("<|end|>")
        self.vocabulary = ByteVocabulary(tokenizer, [end])
        self.model = model_of(self.vocabulary, seed=seed)
        texts = self.vocabulary.viability.merges.bytes_of
        kept = [token for token, text in texts.items() if set(text) <= set(LETTERS)]
        self.is_banned = torch.ones(self.vocabulary.vocab_size, dtype=torch.bool)
        self.is_banned[[*kept, end]] = False

    def warp(self, logits: Tensor, seen: Tensor) -> Tensor:
        return logits.masked_fill(self.is_banned, -torch.inf)

    def stream(self, **changes) -> ByteStream:
        return ByteStream(
            ModelRunner(self.model, self.vocabulary.vocab_size),
            row_attention(self.model),
            self.vocabulary,
            num_rows=1,
            warp=self.warp,
            scores_prompts=False,
            **changes,
        )

    def next_symbol(self, text: bytes, **changes) -> Tensor:
        """(257,) log-probabilities after a text."""
        return self.stream(**changes).read([list(text)], [0]).logits[0]


@cache
def letter_model(tokenizer: Tokenizer, seed: int) -> LetterModel:
    return LetterModel(tokenizer, seed)


def every_text(length: int, next_symbol) -> dict[bytes, float]:
    """Log-probability of all texts of `length` symbols, and of shorter ones that end (b"\\n")."""
    texts, log_probs = {}, {b"": 0.0}
    for _ in range(length):
        longer = {}
        for text, log_prob in log_probs.items():
            law = next_symbol(text)
            texts[text + b"\n"] = log_prob + float(law[END_SYMBOL])
            longer.update({text + bytes([x]): log_prob + float(law[x]) for x in LETTERS})
        log_probs = longer
    return {**texts, **log_probs}


def kl(first: Tensor, second: Tensor) -> float:
    first, second = first.double(), second.double()
    terms = first.exp() * (first - second)
    return float(terms[first > -torch.inf].sum())


class AnchoredLetters:
    """p* at every text under an adaptive budget, from a debt on."""

    def __init__(self, safe: LetterModel, risky: LetterModel, budget: Budget) -> None:
        self.safe, self.risky, self.budget = safe, risky, budget
        self._spent = {b"": 0.0}
        self.laws: dict[bytes, Tensor] = {}

    def next_symbol(self, text: bytes) -> Tensor:
        law = self._projection(text)
        self.laws[text] = law.log_probs()[0]
        for x in LETTERS:
            self._spent[text + bytes([x])] = self._spent[text] + float(law.spend)
        self._spent[text + b"\n"] = self._spent[text] + float(law.spend)
        return self.laws[text]

    def spent(self, text: bytes) -> float:
        return self._spent[text]

    def _projection(self, text: bytes):
        allowance = self.budget.allowance(len(text), self._spent[text])
        laws = (self.risky.next_symbol(text)[None], self.safe.next_symbol(text)[None])
        return project_kl(*laws, torch.tensor([allowance], dtype=torch.float64))


def test_divergences_of_bytes_add_up_to_that_of_texts_within_the_budget(tokenizer):
    length = 3
    safe, risky = letter_model(tokenizer, 1), letter_model(tokenizer, 2)
    budget = Budget(per_step=0.2, total=0.2 * length, horizon=length, debt=0.15)
    anchored = AnchoredLetters(safe, risky, budget)
    drawn = every_text(length, anchored.next_symbol)
    reference = every_text(length, safe.next_symbol)
    divergence = sum(math.exp(p) * (p - reference[text]) for text, p in drawn.items())
    steps = sum(
        math.exp(log_prob) * kl(anchored.laws[text], safe.next_symbol(text))
        for text, log_prob in prefixes(anchored, length)
    )
    assert divergence == pytest.approx(steps, rel=1e-5)
    assert 0.5 * budget.bound < divergence <= budget.bound
    assert max(anchored.spent(text) for text in drawn) <= budget.bound


def prefixes(anchored: AnchoredLetters, length: int):
    """Every text that is gone on from, with its log-probability."""
    for place in range(length):
        for letters in itertools.product(LETTERS, repeat=place):
            text = bytes(letters)
            steps = (anchored.laws[text[:at]][text[at]] for at in range(place))
            yield text, float(sum(steps))
