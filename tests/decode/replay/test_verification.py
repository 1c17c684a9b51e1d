"""What rounding explains and what it does not: honest ledgers stand, steered ones do not."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from forged_ledgers import changed, refusal, summed_up, with_budgets, write
from tiny_models import tiny_llama

from anchored import (
    Anchored,
    CPFuse,
    Decoder,
    GlobalSwitch,
    Ledger,
    LedgerError,
    ModelPair,
    RiskyOnly,
    SafeOnly,
    verify,
    with_divergences,
)
from anchored.decode.replay.draw import Draw
from anchored.decode.replay.step_check import LOGIT_TOLERANCE, logit_tolerance
from anchored.decode.rules import anchored as anchored_rule
from anchored.decode.rules.rule import NextToken, StepInputs
from anchored.kernels.spend import SPEND_QUANTUM

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain nine tides ago"
PROMPTS = [TEXT[row : row + 3 + 17 * row % 61] for row in range(8)]
"""Of 3 to 61 characters: a batch of them is ragged, and a replay alone rounds differently."""
DTYPES = list(LOGIT_TOLERANCE)


@pytest.fixture(scope="module")
def pairs(tokenizer) -> dict[torch.dtype, ModelPair]:
    return {
        dtype: ModelPair(tiny_llama(1).to(dtype), tiny_llama(2, layers=3).to(dtype), tokenizer)
        for dtype in DTYPES
    }


def decoded(
    pair: ModelPair, rule, num_tokens: int, prompts: list[str] = PROMPTS, **sampling
) -> list[Ledger]:
    settings = {"max_new_tokens": num_tokens, "temperature": 0.7, "seed": range(len(prompts))}
    results = Decoder(pair, rule).generate(prompts, **{**settings, **sampling})
    return [result.ledger for result in results]


def assert_all_stand(ledgers: list[Ledger], pair: ModelPair) -> None:
    reports = [verify(ledger, pair) for ledger in ledgers]
    assert [str(report) for report in reports if not report] == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("temperature", [0.7, 0.1])
@pytest.mark.parametrize("divergence", ["kl", "max"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_honest_ledgers_of_a_ragged_batch_stand(pairs, dtype, divergence, temperature):
    rule = Anchored(k=0.5, divergence=divergence)
    assert_all_stand(decoded(pairs[dtype], rule, 4, temperature=temperature), pairs[dtype])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        (Anchored(k=0.5), {"top_k": 20}),
        (Anchored(k=0.5), {"top_p": 0.9}),
        (Anchored(k=0.5), {"min_p": 0.05}),
        (Anchored(k=0.5), {"repetition_penalty": 1.3}),
        (Anchored(k=0.5), {"temperature": 0.0}),
        (SafeOnly(), {"top_k": 20}),
        (RiskyOnly(), {"top_k": 20}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_honest_ledgers_of_warped_laws_and_of_one_model_stand(pairs, dtype, rule, sampling):
    assert_all_stand(decoded(pairs[dtype], rule, 6, **sampling), pairs[dtype])


def test_an_honest_ledger_of_models_that_agree_stands(pairs, tokenizer):
    # Their divergence is mostly rounding.
    near = tiny_llama(1).to(torch.bfloat16)
    near.lm_head.weight.data *= 1.004
    pair = ModelPair(pairs[torch.bfloat16].safe, near, tokenizer)
    assert_all_stand(decoded(pair, Anchored(k=0.5), 6), pair)


@pytest.mark.parametrize("temperature", [1e-4, 1e-6])
def test_honest_ledgers_of_the_lowest_temperatures_stand(pairs, temperature):
    # What solvers charge for their own rounding grows with the square of the warped logits.
    rule = Anchored(k=0.05, debt="none")
    ledgers = decoded(pairs[torch.float64], rule, 5, PROMPTS[4:], temperature=temperature)
    assert_all_stand(ledgers, pairs[torch.float64])


@pytest.mark.parametrize(
    "rule", [RiskyOnly(), CPFuse(grid_size=3), GlobalSwitch(K=1.0)], ids=lambda rule: rule.name
)
def test_honest_ledgers_of_rules_that_ban_nothing_stand_at_the_lowest_temperatures(pairs, rule):
    pair = pairs[torch.float64]
    ledgers = decoded(pair, rule, 3, PROMPTS[6:], temperature=1e-7)
    assert any(2.0**20 < step.spend < 1e9 for ledger in ledgers for step in ledger.steps)
    assert_all_stand(ledgers, pair)


def sharp(pair: ModelPair, times: float) -> ModelPair:
    """The same models with logits so many times as large."""
    models = [copy.deepcopy(model) for model in (pair.safe, pair.risky)]
    for model in models:
        model.lm_head.weight.data *= times
    return ModelPair(*models, pair.tokenizer)


def test_honest_ledgers_of_weights_below_the_normal_numbers_stand(pairs):
    pair = sharp(pairs[torch.float32], 16.0)
    rule = Anchored(k=1.0, divergence="max", debt="none")
    ledgers = decoded(pair, rule, 12, temperature=0.1)
    assert any(0.0 < step.weight < 2e-308 for ledger in ledgers for step in ledger.steps)
    assert_all_stand(ledgers, pair)


@pytest.fixture(scope="module")
def enlarging(tokenizer) -> ModelPair:
    """Attention that is nearly a choice: rounding comes out up to 40 times as large."""
    safe, risky = (tiny_llama(n, layers=5 + n, initializer_range=0.6).float() for n in (1, 2))
    return ModelPair(safe, risky, tokenizer)


@pytest.mark.parametrize("rule", [Anchored(k=1.0, debt="none"), Anchored(k=9.0)], ids=str)
def test_honest_ledgers_of_models_that_enlarge_rounding_stand(enlarging, rule):
    ledgers = decoded(enlarging, rule, 12, temperature=1.0)
    assert_all_stand(ledgers, enlarging)


def test_the_ledger_of_a_request_that_was_refused_stands(pair):
    rows = [[3] * 4, [3] * 127]
    _, refused = Decoder(pair, Anchored(k=0.5)).generate(rows, max_new_tokens=6)
    assert refused.error and not refused.ledger.certified
    assert verify(refused.ledger, pair)


def test_a_report_states_divergence_bound_and_tolerance(pairs):
    (ledger,) = decoded(pairs[torch.float32], Anchored(k=0.5, debt="none"), 6, PROMPTS[3:4])
    report = verify(ledger, pairs[torch.float32])
    assert report.bound == ledger.header.bound
    assert 0.0 < report.divergence <= report.bound + report.tolerance
    assert abs(report.divergence - ledger.spent) <= report.tolerance < 1e-3
    assert str(report) == f"OK: 6 tokens reproduced, {ledger.spent:.1f} of 3.0 nats spent"


def test_a_report_says_what_was_refused_and_where_no_bound_holds(pairs):
    pair = pairs[torch.float64]
    (risky,) = decoded(pair, RiskyOnly(), 1, PROMPTS[:1])
    assert str(verify(risky, pair)) == "OK: 1 token reproduced, no bound holds"
    other = replace(risky, header=replace(risky.header, seed=5, horizon=9))
    assert str(verify(other, pair)).startswith("REFUSED: finish_reason is 'length' after 1 steps")


def nothing_spent(header, steps, footer):
    """As if p* were p_s: every figure that says so, and the budgets that follow."""
    for step in steps:
        step.update(spend=0.0, weight=0.0, log_prob=step["safe_log_prob"])
    with_budgets(header, steps)
    summed_up(steps, footer)


@pytest.mark.parametrize("k", [0.1, 0.5])
@pytest.mark.parametrize("schedule", ["adaptive", "fixed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_spends_forged_to_nothing_are_refused(pairs, tmp_path, dtype, schedule, k):
    rule = Anchored(k=k, debt="none", budget=schedule)
    (ledger,) = decoded(pairs[dtype], rule, 8, PROMPTS[7:8])
    forged = write(changed(ledger, nothing_spent), tmp_path / "forged.jsonl")
    assert "differs" in refusal(forged, pairs[dtype])


def a_tenth_less_spent(header, steps, footer):
    for step in steps:
        step["spend"] = math.floor(0.9 * step["spend"] / SPEND_QUANTUM) * SPEND_QUANTUM
    with_budgets(header, steps)
    summed_up(steps, footer)


def moved(name: str, nats: float):
    def change(header, steps, footer):
        steps[2][name] -= nats

    return change


EDITS = [
    nothing_spent,
    a_tenth_less_spent,
    moved("log_prob", 0.02),
    moved("safe_log_prob", 0.02),
    lambda header, steps, footer: steps[2].update(token_id=(steps[2]["token_id"] + 1) % 320),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", EDITS)
@pytest.mark.parametrize("name", ["cold", "enlarging"])
def test_forgeries_are_refused_where_rounding_is_large(pairs, enlarging, tmp_path, name, change):
    pair, settings = {
        "cold": (pairs[torch.float64], {"temperature": 1e-5}),
        "enlarging": (enlarging, {"temperature": 1.0}),
    }[name]
    (ledger,) = decoded(pair, Anchored(k=0.5, debt="none"), 8, PROMPTS[7:], **settings)
    assert verify(ledger, pair)
    assert refusal(write(changed(ledger, change), tmp_path / "forged.jsonl"), pair)


def shaved(header, steps, footer):
    """A part of every spend, small enough for a step's own tolerance."""
    for step in steps:
        step["spend"] -= 2.0**-7 if step["spend"] > 0.4 else 0.0
    with_budgets(header, steps)
    summed_up(steps, footer)


def test_spends_that_are_a_little_too_small_everywhere_are_refused(pairs, tmp_path):
    pair = pairs[torch.bfloat16]
    ledger = decoded(pair, Anchored(k=0.5, debt="none", budget="fixed"), 8, PROMPTS[7:8])[0]
    forged = write(changed(ledger, shaved), tmp_path / "forged.jsonl")
    assert "budget left differs" in refusal(forged, pair)


@pytest.fixture(scope="module")
def deaf_pair(tokenizer) -> ModelPair:
    """A risky model that is NaN after most tokens, though not after those of the first prompt."""
    risky = tiny_llama(4)
    rows = torch.ones(320, dtype=torch.bool)
    rows[tokenizer(PROMPTS[0])["input_ids"]] = False
    with torch.no_grad():
        risky.get_input_embeddings().weight[rows] = float("nan")
    return ModelPair(tiny_llama(3), risky, tokenizer)


def test_the_risky_model_is_not_looked_at_where_nothing_may_be_spent(deaf_pair):
    rule = Anchored(k=0.0, debt="none")
    (ledger,) = decoded(deaf_pair, rule, 8, PROMPTS[:1])
    assert ledger.certified and verify(ledger, deaf_pair)
    with pytest.raises(LedgerError, match="step 1: the replayed logits are no distribution"):
        with_divergences(ledger, deaf_pair)
    (score,) = Decoder(deaf_pair, rule).score(PROMPTS[:1], [ledger.token_ids], temperature=0.7)
    assert score.error == "" and math.isfinite(score.log_prob)


@dataclass(frozen=True, slots=True)
class Steered(Anchored):
    """Takes, of the tokens that rounding may give, the one that is most the risky model's."""

    most: float = 0.5
    """Tolerances that a draw may need."""

    def settings(self):
        return {name: value for name, value in Anchored.settings(self).items() if name != "most"}

    def next_token(self, inputs: StepInputs) -> NextToken:
        drawn = Anchored.next_token(self, inputs)
        rows = zip(*map(inputs.warped, ("safe", "risky")), drawn.log_probs(), strict=True)
        token_ids = [
            self._chosen(*row, inputs.uniform[at].tolist(), drawn.token_ids[at].item())
            for at, row in enumerate(rows)
        ]
        is_draft = torch.tensor([is_draft for _, is_draft in token_ids])
        token_ids = torch.tensor([token_id for token_id, _ in token_ids])
        accepted = torch.where(token_ids == drawn.token_ids, drawn.accepted, is_draft)
        return replace(drawn, token_ids=token_ids, accepted=accepted, stored_log_probs=None)

    def _chosen(self, safe, risky, star, uniform: list[float], drawn: int) -> tuple[int, bool]:
        """A token, and whether it is the safe model's draft."""
        tolerance = logit_tolerance(safe, torch.bfloat16)
        draw = Draw(
            uniform=(uniform[0], uniform[1], uniform[2]),
            safe=safe.double().log_softmax(-1),
            star=star.double(),
            safe_tolerance=tolerance,
            star_tolerance=torch.full_like(star.double(), 0.7 * tolerance),
            ratio_tolerance=torch.full_like(star.double(), 0.7 * tolerance),
        )
        needed = torch.stack([draw.needed(accepted=False), draw.needed(accepted=True)])
        ratios = risky.double().log_softmax(-1) - draw.safe
        least, is_draft = needed.min(0)
        best = int(ratios.masked_fill((least > self.most) & (least > 0.0), -math.inf).argmax())
        return best, bool(is_draft[best])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("most", "why"), [(0.05, "nats of log p_r/p_s"), (0.4, "tokens follow only")]
)
def test_ledgers_steered_within_the_tolerance_of_each_draw_are_refused(pairs, most, why):
    pair = pairs[torch.bfloat16]
    rule = Steered(k=0.5, debt="none", most=most)
    ledgers = decoded(pair, rule, 60, PROMPTS[:3], repetition_penalty=1.0)
    for ledger in ledgers:
        report = verify(ledger, pair)
        assert any(why in failure for failure in report.failures), report


def overspending(project):
    """A solver at fault: twice the budget is spent, the budget is reported."""

    def wrong(risky, safe, budget, uniform=None):
        return replace(project(risky, safe, 2.0 * budget, uniform), spend=budget)

    return wrong


@pytest.mark.parametrize(
    ("divergence", "name", "figure"),
    [("kl", "project_kl", "spend differs"), ("max", "project_max", "log_prob differs")],
)
def test_a_solver_that_overspends_is_found_though_the_replay_repeats_it(
    pairs, monkeypatch, divergence, name, figure
):
    monkeypatch.setattr(anchored_rule, name, overspending(getattr(anchored_rule, name)))
    pair = pairs[torch.float32]
    rule = Anchored(k=0.2, divergence=divergence, debt="none", budget="fixed")
    (ledger,) = decoded(pair, rule, 6, ["the keeper"])
    assert all(step.spend <= step.budget for step in ledger.steps)
    assert any(figure in failure for failure in verify(ledger, pair).failures)
