"""What the distributions of byte streams mean: sampling, budgets, and what lazy evaluation keeps.

Tokens over a few letters alone are allowed, so that all short texts can be enumerated.
"""

import itertools
import math
from functools import cache, reduce

import numpy as np
import pytest
import torch
from byte_streams import model_of
from scipy.stats import chi2
from tokenizers import Tokenizer
from torch import Tensor

from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.node_law import NodeLaw, node_laws
from anchored.decode.byte.settings import ByteEvaluation
from anchored.decode.models.attention import row_attention
from anchored.decode.rules.budget import Budget
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from anchored.kernels.projection import project_kl

pytestmark = pytest.mark.parametrize("family", ["cl100k"])
LETTERS = b"tz "
NUM_STRINGS = 100_000
FALSE_ALARM = 1e-6


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
        evaluation = ByteEvaluation(prompt_scores="none", **changes)
        return ByteStream(
            self.model,
            row_attention(self.model),
            self.vocabulary,
            num_rows=1,
            warp=self.warp,
            evaluation=evaluation,
        )

    def next_symbol(self, text: bytes, **changes) -> Tensor:
        """(257,) log-probabilities after a text."""
        return self.stream(**changes).read([list(text)], [0]).logits[0]

    def node_law(self, path: tuple[int, ...]) -> NodeLaw:
        """The masked law of what follows a token sequence, from a plain forward."""
        ids = torch.tensor([[*self.vocabulary.start_token_ids, *path]])
        with torch.inference_mode():
            logits = self.warp(self.model(ids).logits[:, -1], ids)
        return next(node_laws(self.vocabulary, [self.standing(path)], logits))

    def standing(self, path: tuple[int, ...]):
        viability = self.vocabulary.viability
        return reduce(viability.extend, path, viability.start())


@cache
def letter_model(tokenizer: Tokenizer, seed: int) -> LetterModel:
    return LetterModel(tokenizer, seed)


def sampled_prefixes(letters: LetterModel, length: int) -> dict[bytes, int]:
    """The first `length` symbols (end: b"\\n") of NUM_STRINGS texts sampled token by token."""
    source = np.random.default_rng(5)
    counts: dict[bytes, int] = {}
    open_paths = {((), b""): NUM_STRINGS}
    while open_paths:
        (path, text), number = open_paths.popitem()
        law = letters.node_law(path)
        tokens = law.trie.tokens.tolist()
        probs = np.exp([*(law.of_token(token) for token in tokens), law.log_end])
        for token, drawn in enumerate(source.multinomial(number, probs / probs.sum())):
            if not drawn:
                continue
            longer = text + (law.trie.texts[token] if token < len(tokens) else b"\n")
            if len(longer) >= length or longer.endswith(b"\n"):
                counts[longer[:length]] = counts.get(longer[:length], 0) + int(drawn)
            else:
                open_paths[(*path, tokens[token]), longer] = int(drawn)
    return counts


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


def test_sampling_bytes_is_sampling_viable_tokens(tokenizer):
    letters = letter_model(tokenizer, 1)
    counts = sampled_prefixes(letters, 3)
    expected = {
        text: NUM_STRINGS * math.exp(log_prob)
        for text, log_prob in every_text(3, letters.next_symbol).items()
    }
    assert sum(expected.values()) == pytest.approx(NUM_STRINGS, rel=1e-9)
    assert counts.keys() <= expected.keys()
    large = [text for text, number in expected.items() if number >= 10]
    observed = np.array([counts.get(text, 0) for text in large])
    means = np.array([expected[text] for text in large])
    rest = (NUM_STRINGS - observed.sum(), max(NUM_STRINGS - means.sum(), 1.0))
    statistic = ((observed - means) ** 2 / means).sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    assert len(large) > 20
    assert statistic < chi2.isf(FALSE_ALARM, len(large))


def test_an_unlimited_budget_samples_the_risky_tokens_and_none_the_safe_bytes(tokenizer):
    safe, risky = letter_model(tokenizer, 1), letter_model(tokenizer, 2)
    text = b"tzz  tz t"
    path = tuple(tokenizer.encode(text.decode()).ids)
    total = 0.0
    for place in range(len(text) + 1):
        symbol = text[place] if place < len(text) else END_SYMBOL
        laws = [m.next_symbol(text[:place])[None] for m in (risky, safe)]
        unlimited = project_kl(*laws, torch.tensor([1e9])).log_probs()[0]
        nothing = project_kl(*laws, torch.tensor([0.0])).log_probs()[0]
        torch.testing.assert_close(nothing.double(), laws[1][0], rtol=0, atol=1e-6)
        total += float(laws[0][0, symbol])
        torch.testing.assert_close(unlimited.double(), laws[0][0], rtol=0, atol=1e-6)
    tokens = [risky.node_law(path[:place]).of_token(path[place]) for place in range(len(path))]
    assert total == pytest.approx(sum(tokens) + risky.node_law(path).log_end, rel=1e-9)


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


def test_what_is_left_out_of_the_risky_model_never_changes_what_spends_mean(tokenizer):
    safe, risky = letter_model(tokenizer, 1), letter_model(tokenizer, 2)
    lazy = risky.stream(tau=0.4)
    lazy.read([list(b"t")], [0])
    text, changes = b"t", []
    for byte in b"z tz  t":
        logits = lazy.feed(torch.tensor([[byte]]), torch.ones(1, 1, dtype=torch.long))[:, 0]
        text += bytes([byte])
        exact = safe.next_symbol(text)
        law = project_kl(logits, exact[None], torch.tensor([0.1]))
        assert kl(law.log_probs()[0], exact) <= float(law.spend) + 1e-6
        assert float(law.spend) <= 0.1
        changes.append(float((logits[0].exp() - risky.next_symbol(text).exp()).abs().max()))
    assert max(changes) > 1e-3
