"""Baselines and ablations: each law from its formula, in float64 and numpy, on few symbols."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.decode.rules.anchored import NoOpt
from anchored.decode.rules.memfree import CorpusNGrams, MemFree
from anchored.decode.rules.mixtures import RCAD, CPFuse, fused_weights, grid
from anchored.decode.rules.one_model import ColdStart, GlobalSwitch, RiskyOnly
from anchored.decode.rules.registry import RULES, make_rule
from anchored.decode.rules.rule import Past, StepInputs, opened
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


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def law(rule, given_inputs) -> np.ndarray:
    return rule.next_token(given_inputs).log_probs().exp().numpy()


def kl(p, q) -> float:
    return sum(a * math.log(a / b) if b else math.inf for a, b in zip(p, q, strict=True) if a)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_rcad_contrasts_both_readings_before_the_warpers(alpha):
    expected = softmax(((1 + alpha) * RISKY - alpha * PASSAGE) / TEMPERATURE)
    np.testing.assert_allclose(law(RCAD(alpha=alpha), inputs()), expected, atol=1e-6)


def test_rcad_gives_no_symbol_everything_because_the_passage_excludes_it():
    own = inputs()
    own.logits["passage"][0, 3] = -torch.inf
    own.logits["risky"][0, 4] = -torch.inf
    found = law(RCAD(alpha=1.0), own)
    assert 0.0 < found[0, 3] < 1.0 and found[0, 4] == 0.0


def test_cp_fuse_takes_the_grid_of_the_authors():
    values = grid(10)
    assert len(values) == 18
    assert values[:9] == pytest.approx([2 * place / 9 for place in range(9)])
    assert values[9:] == [2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("warping", ["after", "before"])
@given(owed=st.lists(st.floats(-40.0, 0.0), min_size=6, max_size=6))
@settings(deadline=None, max_examples=30)
def test_cp_fuse_is_the_least_loss_of_every_pair_of_weights(warping, owed):
    safe_owed, risky_owed = owed[:3], owed[3:]
    rule = CPFuse(warping=warping)
    found = law(rule, inputs(owed=(safe_owed, risky_owed)))
    before, after = (1.0, TEMPERATURE) if warping == "after" else (TEMPERATURE, 1.0)
    for row in range(3):
        is_shared = np.isfinite(SAFE[row])
        safe, risky = (np.log(softmax(z[row] / before)[is_shared]) for z in (SAFE, RISKY))
        # The losses that tie to rounding are told apart by nobody: any of them may be taken.
        losses = {}
        for b, c in itertools.product(grid(10), grid(10)):
            mixed = softmax(b * risky + c * safe)
            divergences = (kl(mixed, np.exp(risky)), kl(mixed, np.exp(safe)))
            losses[b, c] = max(divergences[0] - risky_owed[row], divergences[1] - safe_owed[row])
        least = min(losses.values())
        near = [pair for pair, loss in losses.items() if loss <= least + 1e-9]
        candidates = [softmax((b * risky + c * safe) / after) for b, c in near]
        assert min(abs(found[row][is_shared] - own).max() for own in candidates) < 1e-9
        assert (found[row][~is_shared] == 0.0).all()


def test_cp_fuse_finds_the_first_of_equal_losses():
    same = torch.tensor(RISKY).log_softmax(-1)
    weights = fused_weights(torch.stack([same, same]), torch.zeros(2, 3), 10)
    values = torch.tensor(grid(10), dtype=torch.float64)
    # b + c = 1 has no loss; the least b on the grid comes first, and 2/9 * 9 is not on the grid.
    assert (weights.sum(1) - 1.0).abs().max() < 0.12 and weights[0, 0] in values


def test_token_swap_keeps_the_mass_of_the_list_and_the_ratios_beside_it(caplog):
    rule = opened(TokenSwap(words=["the", "of", "outside"]), Words())
    assert "1 of 3 words, which are not one token of both models: outside" in caplog.text
    assert rule.used_words == {"swapped": ["the", "of"], "left_out": ["outside"]}
    found, safe, risky = (
        law(rule, inputs()),
        softmax(SAFE / TEMPERATURE),
        softmax(RISKY / TEMPERATURE),
    )
    listed, others = [1, 4], [0, 2, 3, 5, 6]
    np.testing.assert_allclose(found[:, others], risky[:, others], atol=1e-12)
    np.testing.assert_allclose(found[:, listed].sum(-1), risky[:, listed].sum(-1), atol=1e-12)
    np.testing.assert_allclose(found[:, 1] / found[:, 4], safe[:, 1] / safe[:, 4], rtol=1e-9)


def test_token_swap_leaves_the_list_alone_where_the_safe_model_excludes_it():
    own = inputs()
    own.logits["safe"][1, [1, 4]] = -torch.inf
    rule = TokenSwap(words=["the", "of"]).for_symbols(Words())
    np.testing.assert_allclose(law(rule, own)[1], softmax(RISKY / TEMPERATURE)[1], atol=1e-12)


def test_token_swap_is_refused_at_byte_level():
    class Bytes(Words):
        name = "byte"

    with pytest.raises(ValueError, match="cannot decode at byte level"):
        TokenSwap().for_symbols(Bytes())


def test_memfree_takes_the_last_symbol_from_every_blocked_n_gram():
    rule = MemFree(n=3, passages=["1 2 3 4", "1 2 5"]).for_symbols(Words())
    found = law(rule, inputs(texts=([1, 2], [6, 1, 2], [2, 1])))
    risky = softmax(RISKY / TEMPERATURE)
    for row in (0, 1):
        kept = [0, 1, 2, 4, 6]
        assert found[row, 3] == found[row, 5] == 0.0
        np.testing.assert_allclose(
            found[row, kept], risky[row, kept] / risky[row, kept].sum(), atol=1e-12
        )
    np.testing.assert_allclose(found[2], risky[2], atol=1e-12)


def test_memfree_falls_back_to_the_risky_model_where_everything_is_blocked():
    rule = MemFree(n=1, passages=["0 1 2 3 4 5 6"]).for_symbols(Words())
    np.testing.assert_allclose(law(rule, inputs()), softmax(RISKY / TEMPERATURE), atol=1e-12)


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


@pytest.mark.parametrize(("k", "cold"), [(0.0, 0), (0.1, 1), (0.25, 2), (1.5, 15)])
def test_cold_start_switches_after_its_steps(k, cold):
    texts = [[0] * max(cold - 1, 0), [0] * cold, [0] * (cold + 1)]
    found = law(ColdStart(k=k), inputs(texts=texts))
    safe, risky = softmax(SAFE / TEMPERATURE), softmax(RISKY / TEMPERATURE)
    expected = [safe[0] if cold else risky[0], risky[1], risky[2]]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_global_switch_asks_whether_anything_is_left():
    found = law(GlobalSwitch(K=3.0), inputs(budget=(1e-9, 0.0, 2.0)))
    safe, risky = softmax(SAFE / TEMPERATURE), softmax(RISKY / TEMPERATURE)
    np.testing.assert_allclose(found, [risky[0], safe[1], risky[2]], atol=1e-12)
    budget = GlobalSwitch(K=3.0).budget_for(horizon=10, k=None)
    assert budget.allowance(4, 2.5) == 0.5 and budget.allowance(5, 7.0) == 0.0


@pytest.mark.parametrize("divergence", ["kl", "max"])
def test_no_opt_takes_the_risky_model_whole_or_not_at_all(divergence):
    is_shared = np.isfinite(SAFE)
    safe = softmax(SAFE / TEMPERATURE)
    risky = softmax(np.where(is_shared, RISKY, -np.inf) / TEMPERATURE)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(risky > 0, np.log(risky / safe), 0.0)
    costs = (risky * ratios).sum(-1) if divergence == "kl" else ratios.max(-1)
    rule = NoOpt(k=1.0, divergence=divergence)
    enough = rule.next_token(inputs(budget=tuple(costs + 1e-4)))
    np.testing.assert_allclose(enough.log_probs().exp(), risky, atol=1e-7)
    assert (enough.spend >= torch.tensor(costs)).all()
    short = rule.next_token(inputs(budget=tuple(costs - 1e-4)))
    np.testing.assert_allclose(short.log_probs().exp(), safe, atol=1e-7)
    assert (short.spend == 0.0).all()


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
