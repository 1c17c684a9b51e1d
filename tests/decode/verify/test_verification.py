"""What rounding explains and what it does not: honest ledgers verify, changed ones do not."""

import math
from dataclasses import replace

import pytest
import torch
from forged_ledgers import changed, moved, put, refusals, with_budgets, write
from tiny_models import tiny_llama

from anchored import (
    Anchored,
    CPFuse,
    Decoder,
    Ledger,
    LedgerError,
    ModelPair,
    Pathwise,
    RiskyOnly,
    SafeOnly,
    verify,
    with_divergences,
)
from anchored.decode.rules import anchored as anchored_rule
from anchored.decode.verify.rounding import LOGIT_TOLERANCE, logit_tolerance
from anchored.decode.warpers import largest_logit
from anchored.kernels.spend import SPEND_QUANTUM

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain nine tides ago"
PROMPTS = [TEXT[row : row + 3 + 17 * row % 61] for row in (0, 3, 5, 7)]
"""Of 3 to 61 characters: a batch of them is ragged, and a replay alone rounds differently."""
DTYPES = [str(dtype).removeprefix("torch.") for dtype in LOGIT_TOLERANCE]


@pytest.fixture(scope="module")
def pairs(tokenizer) -> dict[str, ModelPair]:
    """By dtype, and by what is unusual about the models."""

    def made(safe, risky) -> ModelPair:
        return ModelPair(safe, risky, tokenizer)

    def scaled(model, times: float):
        model.lm_head.weight.data *= times
        return model

    deaf = tiny_llama(4)
    rows = torch.ones(320, dtype=torch.bool)
    rows[tokenizer(PROMPTS[0])["input_ids"]] = False
    deaf.get_input_embeddings().weight.data[rows] = math.nan
    wide = {"initializer_range": 0.6}
    return {
        **{
            name: made(tiny_llama(1).to(dtype), tiny_llama(2, layers=3).to(dtype))
            for name, dtype in zip(DTYPES, LOGIT_TOLERANCE, strict=True)
        },
        # Their divergence is mostly rounding.
        "agreeing": made(*(scaled(tiny_llama(1).bfloat16(), times) for times in (1.0, 1.004))),
        "sharp": made(*(scaled(tiny_llama(n, layers=n + 1).float(), 16.0) for n in (1, 2))),
        # Attention that is nearly a choice: rounding comes out up to 40 times as large.
        "enlarging": made(*(tiny_llama(n, layers=5 + n, **wide).float() for n in (1, 2))),
        # The risky model is NaN after most tokens, though not after those of the first prompt.
        "deaf": made(tiny_llama(3), deaf),
    }


def decoded(
    pair, rule, num_symbols=4, prompts=PROMPTS, *, level="token", **options
) -> list[Ledger]:
    settings = {"temperature": 0.7, "seed": range(len(prompts)), f"max_new_{level}s": num_symbols}
    decoder = Decoder(pair, rule, level=level, speculate=options.pop("speculate", "off"))
    return [result.ledger for result in decoder.generate(prompts, **{**settings, **options})]


K = Anchored(k=0.5)
K_INF = Anchored(k=0.5, divergence="max")
DRAWN = Pathwise(k=0.5, bank=5.0)
UNDEBTED = Anchored(k=0.5, debt="none")
LAX_INF = Anchored(k=1.0, divergence="max", debt="none")
UNBANKED = Pathwise(k=1.0, bank=0.0, debt="none")
LAX_DRAWN = Pathwise(k=0.0, bank=5000.0, debt="none")
COLD = {"num_symbols": 12, "temperature": 0.1}
LAST = {"prompts": PROMPTS[2:]}
NEARLY_GREEDY = {"num_symbols": 3, "temperature": 1e-7} | LAST


def is_large(step) -> bool:
    return 2.0**20 < step.spend < 1e9


# The first of every three are in the fast suite.
HONEST = [
    ("bfloat16", K, {"top_k": 20}, None),
    ("float16", K_INF, {}, None),
    ("float64", SafeOnly(), {"temperature": 0.1, "top_k": 20}, None),
    ("bfloat16", DRAWN, {"num_symbols": 20, "top_k": 20}, None),
    ("float16", DRAWN, {"speculate": 3}, None),
    ("bfloat16", DRAWN, {"level": "byte", "num_symbols": 12}, None),
    ("bfloat16", K, {"top_p": 0.9}, None),
    ("bfloat16", K, {"min_p": 0.05}, None),
    ("float16", RiskyOnly(), {"top_k": 20}, None),
    ("bfloat16", K, {"temperature": 0.0}, None),
    ("agreeing", DRAWN, {}, lambda step: step.spend < 0.0),
    # The ends of numbers.
    ("float32", K_INF, {"repetition_penalty": 1e300} | LAST, None),
    ("float32", K, {"temperature": 4e-5} | LAST, None),
    ("enlarging", UNDEBTED, COLD | {"temperature": 1.0}, lambda step: step.spend > 0.0),
    ("enlarging", Anchored(k=9.0), {"temperature": 1.0}, lambda step: step.weight == 1.0),
    ("agreeing", K, {}, lambda step: step.spend > 0.0),
    # Rules that ban nothing.
    ("float64", CPFuse(grid_size=3), NEARLY_GREEDY, is_large),
    ("float64", RiskyOnly(), NEARLY_GREEDY, is_large),
    # What solvers charge for their rounding grows with the square of the warped logits.
    ("float64", UNDEBTED, {"temperature": 1e-6} | LAST, None),
    # Weights below the normal numbers, or 0; no step uses more than 600 nats.
    ("sharp", LAX_DRAWN, COLD, lambda step: step.budget > 700.0 and step.weight < 1e-10),
    ("sharp", UNBANKED, COLD, lambda step: step.weight == 0.0 < step.spend),
    ("sharp", LAX_INF, COLD, lambda step: 0.0 < step.weight < 2e-308),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "rule", "settings", "is_meant"), HONEST)
def test_honest_ledgers_of_a_ragged_batch_verify(pairs, name, rule, settings, is_meant):
    ledgers = decoded(pairs[name], rule, **settings)
    if is_meant:
        assert any(is_meant(step) for ledger in ledgers for step in ledger.steps)
    reports = verify(ledgers, pairs[name])
    assert [str(report) for report in reports if not report] == []


def test_the_ledger_of_a_request_that_was_refused_verifies(pair):
    _, refused = Decoder(pair, K).generate([[3] * 4, [3] * 127], max_new_tokens=6)
    assert refused.error and not refused.ledger.certified
    assert verify(refused.ledger, pair)


def test_a_report_says_what_holds_and_what_was_refused(pairs):
    (ledger,) = decoded(pairs["float32"], UNDEBTED, 6, PROMPTS[1:2])
    report = verify(ledger, pairs["float32"])
    assert report.bound == ledger.header.bound
    assert 0.0 < report.divergence <= report.bound + report.tolerance
    assert abs(report.divergence - ledger.spent) <= report.tolerance < 1e-3
    assert str(report) == f"OK: 6 tokens reproduced, {ledger.spent:.1f} of 3.0 nats spent"
    (risky,) = decoded(pairs["float64"], RiskyOnly(), 1, PROMPTS[:1])
    assert str(verify(risky, pairs["float64"])) == "OK: 1 token reproduced, no bound holds"
    other = replace(risky, header=replace(risky.header, seed=5, horizon=9))
    refused = str(verify(other, pairs["float64"]))
    assert refused.startswith("REFUSED: finish_reason is 'length' after 1 steps")


def nothing_spent(header, steps, footer):
    """As if p* were p_s: every figure that says so, and the budgets that follow."""
    for step in steps:
        step.update(spend=0.0, weight=0.0, log_prob=step["safe_log_prob"])
    with_budgets(header, steps, footer)


def a_tenth_less_spent(header, steps, footer):
    for step in steps:
        step["spend"] = math.floor(0.9 * step["spend"] / SPEND_QUANTUM) * SPEND_QUANTUM
    with_budgets(header, steps, footer)


def less_free(header, steps, footer):
    """Costs before any cap binds, each lower by less than a step's tolerance."""
    del steps[5:]
    footer["finish_reason"] = "aborted"
    moved({step["step"]: -0.5 for step in steps})(header, steps, footer)


def shaved(header, steps, footer):
    """A part of every spend, small enough for a step's tolerance."""
    for step in steps:
        step["spend"] -= 2.0**-7 if step["spend"] > 0.4 else 0.0
    with_budgets(header, steps, footer)


FIXED = Anchored(k=0.5, debt="none", budget="fixed")
BANKED = Pathwise(k=0.5, bank=20.0, debt="none")
FORGED = [
    ("bfloat16", FIXED, 0.7, nothing_spent, "differs"),
    ("bfloat16", FIXED, 0.7, shaved, "budget left differs"),
    ("bfloat16", BANKED, 0.7, less_free, "nats in steps 0 to "),
    ("bfloat16", BANKED, 0.7, nothing_spent, "differs"),
    # Where rounding is large.
    *(
        ("float64", UNDEBTED, 1e-5, change, "")
        for change in (
            *(a_tenth_less_spent, put(2, token_id=lambda token: (token + 1) % 320)),
            *(put(2, **{name: lambda nats: nats - 0.02}) for name in ("log_prob", "safe_log_prob")),
        )
    ),
    *(("enlarging", UNDEBTED, 1.0, change, "") for change in (a_tenth_less_spent, nothing_spent)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "rule", "temperature", "change", "why"), FORGED)
def test_forged_figures_are_refused(pairs, tmp_path, name, rule, temperature, change, why):
    (ledger,) = decoded(pairs[name], rule, 8, PROMPTS[3:], temperature=temperature)
    assert verify(ledger, pairs[name])
    failures = refusals(write(changed(ledger, change), tmp_path / "forged.jsonl"), pairs[name])
    assert any(why in failure for failure in failures)


def test_the_risky_model_is_not_looked_at_where_nothing_may_be_spent(pairs):
    pair, rule = pairs["deaf"], Anchored(k=0.0, debt="none")
    (ledger,) = decoded(pair, rule, 8, PROMPTS[:1])
    assert ledger.certified and verify(ledger, pair)
    with pytest.raises(LedgerError, match="step 1: the replayed logits are no distribution"):
        with_divergences(ledger, pair)
    (score,) = Decoder(pair, rule).score(PROMPTS[:1], [ledger.token_ids], temperature=0.7)
    assert score.error == "" and math.isfinite(score.log_prob)


@pytest.mark.parametrize(
    ("level", "length"), [("token", 60), pytest.param("byte", 120, marks=pytest.mark.slow)]
)
def test_the_figures_of_another_temperature_are_refused_though_each_is_within_rounding(
    pairs, level, length, monkeypatch
):
    """With more rounding, as of a model of larger logits, no step by itself tells 0.8 from 0.7."""
    monkeypatch.setitem(LOGIT_TOLERANCE, torch.bfloat16, 3.0 * LOGIT_TOLERANCE[torch.bfloat16])
    pair = pairs["bfloat16"]
    (ledger,) = decoded(pair, UNDEBTED, length, PROMPTS[:1], level=level)
    assert verify(ledger, pair)
    for temperature in (0.6, 0.8):
        settings = ledger.header.sampling | {"temperature": temperature}
        header = replace(ledger.header, sampling=settings)
        failures = verify(replace(ledger, header=header), pair).failures
        assert any("another temperature" in failure for failure in failures)


def test_a_debt_is_checked_within_the_rounding_of_a_ratio(pairs):
    pair = pairs["float16"]
    (ledger,) = decoded(pair, Anchored(k=2.0, budget="fixed"), 2, PROMPTS[3:])
    assert verify(ledger, pair) and ledger.header.debt > 0.1
    # Both models' tolerances, of the row and of the ratio: at most twice that of each row.
    prompt = torch.tensor([ledger.header.prompt_token_ids])
    rows = [model(prompt).logits[0, -1, : pair.vocab_size] for model in pair.models.values()]
    sizes = [largest_logit(row.double()).item() for row in rows]
    tolerance = sum(logit_tolerance(size, pair.dtype) for size in sizes)
    for times, is_refused in ((0.5, False), (3.0, True), (-3.0, True)):
        debt = ledger.header.debt + times * tolerance
        forged = replace(ledger, header=replace(ledger.header, debt=debt))
        assert any("debt" in why for why in verify(forged, pair).failures) == is_refused


@pytest.mark.parametrize("rule", [FIXED, Pathwise(k=0.2, bank=0.0, debt="none")])
def test_a_solver_that_overspends_is_noticed_though_the_replay_repeats_it(pairs, monkeypatch, rule):
    project = anchored_rule.project

    def twice(risky, safe, budget, uniform=None, **named):
        return replace(project(risky, safe, 2.0 * budget, uniform, **named), spend=budget)

    monkeypatch.setattr(anchored_rule, "project", twice)
    (ledger,) = decoded(pairs["float32"], rule, 6, ["the keeper"])
    assert all(step.spend <= step.budget for step in ledger.steps)
    figure = "spend differs" if rule is FIXED else "log_prob differs"
    assert any(figure in failure for failure in verify(ledger, pairs["float32"]).failures)


def test_results_lists_and_files_are_verified_and_else_it_says_what_to_write(pair, tmp_path):
    decoder = Decoder(pair, Anchored(k=1.0))
    results = decoder.generate(PROMPTS[:2], max_new_tokens=3)
    first = results[0].ledger
    first.save(tmp_path / "a.jsonl")
    stream = decoder.stream(PROMPTS[0], max_new_tokens=3)
    list(stream)
    mixed = [*results, str(tmp_path / "a.jsonl"), stream, replace(first, finish_reason="error")]
    reports = verify(mixed, pair)
    assert [report.is_ok for report in reports] == [True, True, True, True, False]
    assert verify(first, pair) == reports[0] == reports[2] and verify([], pair) == []
    assert with_divergences(results[0], pair) == with_divergences(first, pair)
    for arguments, message in (
        ((pair, first), r"write verify\(ledger, pair\), .* got ModelPair and Ledger"),
        ((5, pair), "ledger must be a ledger, a result or a file of one, got int"),
    ):
        with pytest.raises(ValueError, match=message):
            verify(*arguments)
