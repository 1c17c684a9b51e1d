"""Baselines and ablations: each law from its formula, in float64 and numpy, on few symbols."""

import math
import sys

import numpy as np
import pytest
import torch

from anchored.decode.rules.memfree import CorpusNGrams, MemFree
from anchored.decode.rules.mixtures import RCAD, CPFuse, grid
from anchored.decode.rules.one_model import ColdStart, GlobalSwitch, RiskyOnly
from anchored.decode.rules.registry import RULES, make_rule
from anchored.decode.rules.rule import Past, StepInputs
from anchored.decode.rules.token_swap import TokenSwap

TEMPERATURE = 0.7
RNG = np.random.default_rng(5)
SAFE, RISKY, PASSAGE = (3.0 * RNG.normal(size=(3, 7)) for _ in range(3))
SAFE[0, 2] = -np.inf


class Words:
    """Tokens are single words, but "outside", which takes two."""

    name, vocab_size, symbols_per_token, compares_models = "token", 7, 1, True

    def encode_continuation(self, text):
        spelled = {" the": [1], " of": [4], " outside": [5, 6]}
        return spelled.get(text) or [int(word) for word in text.split()]

    def symbol_of(self, text):
        symbols = self.encode_continuation(text)
        return symbols[0] if len(symbols) == 1 else None


def inputs(*, texts=((), (), ()), owed=((0.0,) * 3,) * 2, budget=(1.0,) * 3) -> StepInputs:
    return StepInputs(
        logits={
            "safe": torch.tensor(SAFE),
            "risky": torch.tensor(RISKY),
            "passage": torch.tensor(PASSAGE),
        },
        warp=lambda logits: logits / TEMPERATURE,
        budget=torch.tensor(budget, dtype=torch.float64),
        uniform=None,
        past=Past(
            texts, {n: torch.tensor(o) for n, o in zip(("safe", "risky"), owed, strict=True)}
        ),
    )


def law(rule, given_inputs) -> np.ndarray:
    return rule.next_token(given_inputs).log_probs().exp().numpy()


def test_cp_fuse_takes_the_grid_of_the_authors():
    values = grid(10)
    assert len(values) == 18
    assert values[:9] == pytest.approx([2 * place / 9 for place in range(9)])
    assert values[9:] == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_token_swap_is_refused_at_byte_level():
    class Bytes(Words):
        name = "byte"

    with pytest.raises(ValueError, match="cannot decode at byte level"):
        TokenSwap().for_symbols(Bytes())


def test_memfree_counts_four_bytes_a_token():
    class Bytes(Words):
        name, symbols_per_token = "byte", 4

    rule = MemFree(n=1, passages=["0 1 2 3"]).for_symbols(Bytes())
    anything = torch.zeros(7)
    assert rule.blocked([0, 1, 2], anything) == [3] and not rule.blocked([1, 2], anything)


def test_a_corpus_needs_a_library_that_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rbloom", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anchored\[retrieval\]'"):
        CorpusNGrams([[1, 2, 3]], 2, 1e-3)


def test_memfree_asks_for_its_level():
    with pytest.raises(ValueError, match="use a Decoder"):
        MemFree(passages=["1 2"]).blocked([1], torch.zeros(7))


@pytest.mark.parametrize("name", RULES)
def test_settings_make_the_rule_again(name):
    needed = {
        "anchored": {"k": 0.5},
        "anchored_inf": {"k": 0.5, "divergence": "max"},
        "no_opt": {"K": 20.0},
        "cold_start": {"k": 0.5},
        "global_switch": {"K": 20.0},
        "memfree": {"passages": ["1 2 3"], "n": 2, "compared": False},
    }
    rule = make_rule(name, needed.get(name, {}))
    assert rule.name == name
    assert make_rule(name, rule.settings()) == rule
    assert rule.is_certified == (name in ("anchored", "anchored_inf", "safe_only", "no_opt"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RCAD(alpha=-0.1), "alpha must be finite and >= 0, got -0.1"),
        (lambda: CPFuse(grid_size=1), "grid_size must be in .2, 100., got 1"),
        (lambda: CPFuse(warping="never"), "warping must be one of after, before, got 'never'"),
        (lambda: MemFree(passages="a text"), "passages must be a list of texts, got 'a text'"),
        (lambda: MemFree(passages=[], n=0), "n must be in .1, 1000., got 0"),
        (lambda: MemFree(), "MemFree needs passages, a corpus or both"),
        (lambda: MemFree(corpus="none.jsonl"), "corpus must be a file of texts, there is none at"),
        (lambda: MemFree(passages=[], corpus_sha256="0"), "corpus_sha256 is that of a corpus"),
        (lambda: MemFree(passages=[], false_positives=1.0), "false_positives must be in "),
        (lambda: MemFree(passages=[], false_positives=0.0), "false_positives must be in "),
        (lambda: TokenSwap(words=[]), "words must be a list of at least one word"),
        (lambda: ColdStart(k=-1.0), "k must be in"),
        (lambda: GlobalSwitch(K=math.nan), "K must be in"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_without_the_safe_model_spends_are_unknown():
    own = RiskyOnly(compared=False).next_token(inputs())
    assert (own.spend == math.inf).all()
