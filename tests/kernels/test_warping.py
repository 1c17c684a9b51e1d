"""Raw logits warped by the walk as it reads them: the law, its spend and its draw are those of
warped logits, at which no copy was made."""

import math
from dataclasses import replace

import pytest
import torch

from anchored.kernels import reference
from anchored.kernels.spend import new_accounts
from anchored.kernels.walk import walk
from anchored.kernels.warping import Stops, Warping

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB_SIZE = 1100
SHAPE = (1, 1, VOCAB_SIZE)
STOP_TOKEN_IDS = [1030, 3, 7]
"""Of two blocks, the first of them the end."""
BUDGET = 0.375
SHORTFALL_NATS = 1e-5 * BUDGET
"""Searches may end this far apart, though the logits differ by rounding alone."""
FIGURES = ("budget", "weight", "spend", "log_probs", "safe_log_probs")


def raw_logits(seed, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    risky, safe = (
        (3.0 * torch.randn(SHAPE, generator=generator)).to(dtype).to(DEVICE) for _ in range(2)
    )
    risky[..., 20:30], safe[..., 25:40] = -math.inf, -math.inf
    return risky, safe


def warping(seed, *, temperature=0.7, stops=True, penalty=True):
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(SHAPE, generator=generator) < 0.02
    seen[..., 7] = True
    return Warping(
        temperature=torch.tensor([temperature], device=DEVICE),
        penalty=torch.tensor([1.1], device=DEVICE) if penalty else None,
        seen=seen.to(DEVICE) if penalty else None,
        stops=Stops.of(STOP_TOKEN_IDS, VOCAB_SIZE, DEVICE) if stops else None,
    )


def exactly_warped(logits, how):
    """(B, G, V) float64: the penalty and the end in float32, as the kernel reads them, and the
    temperature in float64."""
    scores, temperature = logits.float(), how.temperature.double()[:, None, None]
    if how.penalty is not None:
        penalty = how.penalty[:, None, None]
        factor = torch.where(scores > 0, 1.0 / penalty, penalty)
        scores = torch.where(how.seen, scores * factor, scores)
    if how.stops is not None:
        stops = sorted(STOP_TOKEN_IDS)
        ends = (scores[..., stops].double() / temperature).logsumexp(-1) * temperature[..., 0]
        scores[..., stops] = -math.inf
        scores[..., stops[0]] = ends.float()
    return scores.double() / temperature


def walked(risky, safe, how, *, divergence="kl", backend="triton"):
    return walk(
        risky,
        safe,
        accounts=new_accounts([BUDGET], [BUDGET], [0.0], "fixed", DEVICE),
        seeds=torch.tensor([5], device=DEVICE),
        drafts=torch.zeros(1, 0, dtype=torch.int64, device=DEVICE),
        warping=how,
        divergence=divergence,
        backend=backend,
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("divergence", "parts"),
    [
        ("kl", {}),
        ("kl", {"temperature": 1.3}),
        ("max", {}),
        ("kl", {"stops": False}),
        ("max", {"penalty": False}),
    ],
)
def test_a_walk_of_raw_logits_is_that_of_warped_ones(divergence, parts):
    (risky, safe), how = raw_logits(1), warping(1, **parts)
    actual = walked(risky, safe, how, divergence=divergence)
    warped = [exactly_warped(logits, how) for logits in (risky, safe)]
    expected = walked(*warped, None, divergence=divergence)
    assert torch.equal(actual.token_ids, expected.token_ids)
    assert torch.equal(actual.accepted, expected.accepted)
    for name in FIGURES:
        error = (getattr(actual, name) - getattr(expected, name)).abs()
        assert error.max() < SHORTFALL_NATS, name


def test_the_spend_is_that_of_the_warped_models_and_torch_warps_alike():
    (risky, safe), how = raw_logits(4), warping(4, temperature=0.4)
    expected, actual = (walked(risky, safe, how, backend=name) for name in ("torch", "triton"))
    assert torch.equal(actual.token_ids, expected.token_ids)
    for name in FIGURES:
        assert (getattr(actual, name) - getattr(expected, name)).abs().max() < 1e-5, name
    risky, safe = (exactly_warped(logits, how)[:, 0] for logits in (risky, safe))
    law = reference.tilted_log_probs(risky, safe, actual.weight[:, 0])
    divergence = reference.kl_divergence(law, safe)
    assert divergence <= actual.spend <= actual.budget == BUDGET
    assert BUDGET - divergence <= SHORTFALL_NATS


def test_an_end_that_stands_alone_in_its_block_has_the_weight_of_all_stops():
    generator = torch.Generator().manual_seed(8)
    risky, safe = (torch.randn(SHAPE, generator=generator).to(DEVICE) for _ in range(2))
    risky[..., 1030], safe[..., 1030] = 9.0, 6.0
    how = replace(warping(8, penalty=False), stops=Stops.of([3, 1030], VOCAB_SIZE, DEVICE))
    result = walked(risky, safe, how)
    risky, safe = (how.warped(logits).double()[:, 0] for logits in (risky, safe))
    law = reference.tilted_log_probs(risky, safe, result.weight[:, 0])
    assert BUDGET - 1e-5 <= reference.kl_divergence(law, safe) <= result.spend + 1e-6
    assert result.spend <= BUDGET


def test_an_end_that_no_model_allows_is_banned():
    (risky, safe), how = raw_logits(5), warping(5)
    for logits in (risky, safe):
        logits[..., STOP_TOKEN_IDS] = -math.inf
    result = walked(risky, safe, how)
    assert result.is_valid.all() and result.token_ids[0, 0] not in STOP_TOKEN_IDS
    risky[0, 0, STOP_TOKEN_IDS[0]] = math.nan
    assert not walked(risky, safe, how).is_valid.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torch_warps_in_the_order_of_transformers(dtype):
    (logits, _), how = raw_logits(6, dtype), warping(6, stops=False)
    scores, penalty = logits.float(), how.penalty[:, None, None]
    penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
    expected = torch.where(how.seen, penalised, scores) / how.temperature[:, None, None]
    assert torch.equal(how.warped(logits), expected)
