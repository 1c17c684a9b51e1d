"""Every rule and its formula in float64: 2 to 257 symbols, logits at all ends, each warper.

What a rule gives must be a distribution wherever each model's is one, whatever its inputs.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from logit_kinds import EXTREME_KINDS, random_logits

from anchored.decode.rules.anchored import NoOpt, SafeOnly
from anchored.decode.rules.memfree import MemFree
from anchored.decode.rules.mixtures import RCAD, CPFuse, TokenSwap, fused_weights, grid
from anchored.decode.rules.rule import Past, StepInputs
from anchored.decode.rules.unbounded import ColdStart, GlobalSwitch, RiskyOnly
from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers
from anchored.kernels import reference

NUM_ROWS = 12
VOCAB_SIZES = (2, 7, 257)
SAMPLINGS = (
    SamplingConfig(temperature=1.0, repetition_penalty=1.0),
    SamplingConfig(temperature=0.7, repetition_penalty=1.3, top_k=3),
    SamplingConfig(temperature=1.4, top_p=0.6, min_p=0.05),
    SamplingConfig(temperature=0.0),
)


class Symbols:
    """The text of a symbol is its number; its level is that of tokens, or of as many bytes."""

    symbols_per_token, compares_models = 1, True

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.name = vocab_size, "token"

    def encode_continuation(self, text):
        return [int(symbol) for symbol in text.split()]

    def symbol_of(self, text):
        return int(text)


def step_inputs(kind: str, vocab_size: int, sampling: SamplingConfig, seed: int) -> StepInputs:
    generator = torch.Generator().manual_seed(seed)
    risky, safe = random_logits(kind, NUM_ROWS, vocab_size, generator)
    passage, _ = random_logits(kind, NUM_ROWS, vocab_size, generator)
    seen = torch.rand(NUM_ROWS, vocab_size, generator=generator) < 0.2
    stops = [0, vocab_size - 1] if vocab_size > 2 else [0]
    texts = torch.randint(vocab_size, (NUM_ROWS, 4), generator=generator).tolist()
    earlier = -30.0 * torch.rand(2, NUM_ROWS, generator=generator, dtype=torch.float64)
    return StepInputs(
        logits={"safe": safe, "risky": risky, "passage": passage},
        warp=Warpers(sampling, stops).after(seen),
        budget=torch.rand(NUM_ROWS, generator=generator, dtype=torch.float64).mul(4.0).floor(),
        uniform=torch.rand(NUM_ROWS, 3, generator=generator, dtype=torch.float64),
        past=Past(
            [text[: row % 5] for row, text in enumerate(texts)],
            {"safe": earlier[0], "risky": earlier[1]},
        ),
    )


def softmax(logits) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def kl(star: torch.Tensor, safe: torch.Tensor) -> float:
    """Of log-probabilities (V,), term by term."""
    terms = zip(star.tolist(), safe.tolist(), strict=True)
    return math.fsum(
        math.inf if q == -math.inf else math.exp(p) * (p - q) for p, q in terms if p > -math.inf
    )


def warped(inputs: StepInputs, name: str) -> np.ndarray:
    return softmax(inputs.warped(name))


def memfree_probs(inputs: StepInputs, blocked: list[int], n: int) -> np.ndarray:
    logits = inputs.warped("risky").double().numpy()
    grams = {tuple(blocked[i : i + n]) for i in range(len(blocked) - n + 1)}
    for row, text in zip(logits, inputs.past.texts, strict=True):
        head = text[len(text) - n + 1 :]
        is_blocked = np.array([(*head, symbol) in grams for symbol in range(len(row))])
        if np.isfinite(row[~is_blocked]).any():
            row[is_blocked] = -np.inf
    return softmax(logits)


def swapped_probs(inputs: StepInputs, words: list[int]) -> np.ndarray:
    probs, safe = warped(inputs, "risky"), inputs.warped("safe").double().numpy()
    for row, safe_logits in zip(probs, safe, strict=True):
        if np.isfinite(safe_logits[words]).any():
            row[words] = row[words].sum() * softmax(safe_logits[words])
    return probs


def contrasted_probs(inputs: StepInputs, alpha: float) -> np.ndarray:
    plain, after = (inputs.logits[name].double() for name in ("risky", "passage"))
    least = after.masked_fill(after == -torch.inf, torch.inf).amin(-1, keepdim=True)
    mixed = (1.0 + alpha) * plain - alpha * torch.maximum(after, least)
    return softmax(inputs.warp(mixed.masked_fill(plain == -torch.inf, -torch.inf)))


def switched_probs(inputs: StepInputs, is_safe) -> np.ndarray:
    return np.where(np.array(is_safe)[:, None], warped(inputs, "safe"), warped(inputs, "risky"))


def affordable_probs(inputs: StepInputs) -> np.ndarray:
    """p_r on what both models allow, where the budget pays for all of it."""
    risky, safe = inputs.warped("risky"), inputs.warped("safe")
    whole = reference.tilted_log_probs(risky, safe, torch.ones(NUM_ROWS))
    nats = reference.kl_divergence(whole, safe)
    is_paid = (inputs.budget > 0.0) & (nats <= inputs.budget)
    return np.where(is_paid[:, None], whole.exp(), softmax(safe))


def passage(size: int) -> list[int]:
    return [symbol % size for symbol in range(0, 3 * size, 2)]


def listed(size: int) -> list[int]:
    return [0, 1, size // 2]


def text_of(symbols: list[int]) -> str:
    return " ".join(map(str, symbols))


FORMULAS = {
    "no_opt": lambda inputs, size: (NoOpt(k=1.0), affordable_probs(inputs)),
    "risky_only": lambda inputs, size: (RiskyOnly(), warped(inputs, "risky")),
    "safe_only": lambda inputs, size: (SafeOnly(), warped(inputs, "safe")),
    "cold_start": lambda inputs, size: (
        ColdStart(k=0.2), switched_probs(inputs, [len(text) < 2 for text in inputs.past.texts])
    ),
    "global_switch": lambda inputs, size: (
        GlobalSwitch(K=9.0), switched_probs(inputs, (inputs.budget <= 0).tolist())
    ),
    "rcad": lambda inputs, size: (RCAD(alpha=0.5), contrasted_probs(inputs, 0.5)),
    "token_swap": lambda inputs, size: (
        TokenSwap(words=[*map(str, listed(size))]), swapped_probs(inputs, sorted({*listed(size)}))
    ),
    "memfree": lambda inputs, size: (
        MemFree(n=2, passages=[text_of(passage(size))]), memfree_probs(inputs, passage(size), 2)
    ),
    "memfree, of everything": lambda inputs, size: (
        MemFree(n=1, passages=[text_of(passage(size))]), memfree_probs(inputs, passage(size), 1)
    ),
}  # fmt: skip
"""(the rule, its distribution by the formula) for these inputs and so many symbols."""
CASES = [*itertools.product(EXTREME_KINDS, VOCAB_SIZES, range(len(SAMPLINGS)))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_rule_is_its_formula(name):
    for seed, (kind, vocab_size, sampling) in enumerate(CASES):
        inputs = step_inputs(kind, vocab_size, SAMPLINGS[sampling], seed)
        rule, expected = FORMULAS[name](inputs, vocab_size)
        drawn = rule.open(Symbols(vocab_size)).next_token(inputs)
        probs = drawn.log_probs().double().exp().numpy()
        where = f"{kind}, {vocab_size} symbols, {SAMPLINGS[sampling]}"
        assert drawn.is_valid.all(), where
        np.testing.assert_allclose(probs, expected, atol=1e-6, err_msg=where)
        np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-6, err_msg=where)
        chosen = probs[range(NUM_ROWS), drawn.token_ids]
        assert (chosen > 0).all(), where
        safe = inputs.warped("safe").double().log_softmax(-1)
        spends = [kl(*pair) for pair in zip(drawn.log_probs().double(), safe, strict=True)]
        if rule.is_certified:  # a solver's margin grows with the logits
            assert (drawn.spend.numpy() >= np.array(spends) - 1e-5).all(), where
            assert (drawn.spend <= inputs.budget).all(), where
        else:
            np.testing.assert_allclose(drawn.spend, spends, rtol=1e-5, atol=1e-5, err_msg=where)


@pytest.mark.parametrize("warping", ["after", "before"])
def test_cp_fuse_is_a_distribution_of_what_both_models_allow(warping):
    rule = CPFuse(grid_size=3, warping=warping)
    for seed, (kind, vocab_size, sampling) in enumerate(CASES):
        inputs = step_inputs(kind, vocab_size, SAMPLINGS[sampling], seed)
        drawn = rule.open(Symbols(vocab_size)).next_token(inputs)
        where = f"{kind}, {vocab_size} symbols, {SAMPLINGS[sampling]}"
        raw = warping == "after"
        both = [inputs.logits[n] if raw else inputs.warped(n) for n in ("risky", "safe")]
        is_shared = (both[0].isfinite() & both[1].isfinite()).numpy()
        if raw and vocab_size > 2:  # stop tokens become one after the fusion
            is_shared[:, 0] |= is_shared[:, -1]
            is_shared[:, -1] = False
        # A symbol that either model excludes is excluded; where all are, there is no mixture.
        assert torch.equal(drawn.is_valid, torch.from_numpy(is_shared.any(-1))), where
        probs = drawn.log_probs().double().exp().numpy()
        valid = drawn.is_valid.numpy()
        assert (probs[valid][~is_shared[valid]] == 0.0).all(), where
        np.testing.assert_allclose(probs[valid].sum(-1), 1.0, atol=1e-9, err_msg=where)


def official_weights(l1: np.ndarray, l2: np.ndarray, g1: float, g2: float, size: int):
    """One step of the authors' solver, told from its description: every pair of the grid in order,
    the first with the least loss. l1, l2: (V,) log-probabilities; g1, g2: of the text so far."""
    axis = [*np.linspace(0.0, 2.0, size)[:-1], *np.arange(2.0, 11.0)]
    best = (math.inf, (0.0, 0.0))
    for b1 in axis:
        for b2 in axis:
            log_q = b1 * l1 + b2 * l2
            log_q = log_q - (log_q.max() + np.log(np.exp(log_q - log_q.max()).sum()))
            q = np.exp(log_q)
            loss = max(-(q * l1).sum() - g1, -(q * l2).sum() - g2) + (q * log_q).sum()
            if loss < best[0] - 1e-12:
                best = (loss, (float(b1), float(b2)))
    return best[1]


@pytest.mark.parametrize("earlier", [(0.0, 0.0), (-12.5, -3.0), (-3.0, -40.0)])
def test_cp_fuse_takes_the_weights_of_the_authors_solver(earlier):
    for case in range(3):
        v = np.arange(50)
        logits = np.stack([3.0 * np.sin(0.7 * v + case), 3.0 * np.cos(1.3 * v + 2 * case)])
        log_probs = np.log(softmax(logits))
        expected = official_weights(*log_probs, *earlier, size=10)
        rows, debts = torch.tensor(log_probs)[:, None], torch.tensor(earlier)[:, None]
        weights = tuple(fused_weights(rows, debts.double(), 10)[0].tolist())
        assert weights == pytest.approx(expected, abs=1e-12), case
        if earlier == (0.0, 0.0) and case == 0:  # by the authors' program
            assert weights == pytest.approx((0.4444444444444444, 0.4444444444444444), abs=1e-12)
    assert len(grid(10)) == 18
