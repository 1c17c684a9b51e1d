"""Baselines and ablations: each law from its formula, in float64 and numpy, on few symbols."""

import sys

import pytest
import torch

from anchored.decode.rules.memfree import CorpusNGrams, MemFree
from anchored.decode.rules.registry import RULES, make_rule


class Words:
    """Tokens are single words, but "outside", which takes two."""

    name, vocab_size, symbols_per_token, compares_models = "token", 7, 1, True

    def encode_continuation(self, text):
        spelled = {" the": [1], " of": [4], " outside": [5, 6]}
        return spelled.get(text) or [int(word) for word in text.split()]

    def symbol_of(self, text):
        symbols = self.encode_continuation(text)
        return symbols[0] if len(symbols) == 1 else None


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


@pytest.mark.parametrize("name", RULES)
def test_settings_make_the_rule_again(name):
    needed = {
        "anchored": {"k": 0.5},
        "anchored_inf": {"k": 0.5},
        "no_opt": {"K": 20.0},
        "cold_start": {"k": 0.5},
        "global_switch": {"K": 20.0},
        "memfree": {"passages": ["1 2 3"], "n": 2, "compared": False},
    }
    rule = make_rule(name, needed.get(name, {}))
    assert rule.name == name
    assert make_rule(name, rule.settings()) == rule
    assert rule.is_certified == (name in ("anchored", "anchored_inf", "safe_only", "no_opt"))
