"""Rows of a step drawn by slot: budgets, drafts, failures, and what joins and leaves."""

import math

import pytest
import torch

from anchored.decode.rules.anchored import Anchored, Pathwise
from anchored.decode.rules.budget import debt_nats, opened_accounts
from anchored.decode.rules.rule import token_spend
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm import fusion
from anchored.decode.vllm.fusion import Rows, SlotAccounts
from anchored.decode.vllm.pair_description import PairFacts
from anchored.decode.warpers import Warpers
from anchored.kernels import warp
from anchored.kernels.project import project
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import STEP, USED, allowance, charged

VOCAB_SIZE, NUM_SLOTS, NUM_STEPS, HORIZON = 40, 8, 5, 50
PROMPT = [0, 5, 6]
BUDGET, SPEND, LOG_PROB, IS_DRAWN, DEBT = 2, 3, 5, 7, -1
"""Fields of a record."""
USED_AFTER = 4
"""Column of `plainly_drawn`."""
CPU = torch.device("cpu")
FACTS = PairFacts(
    safe="",
    risky="",
    fingerprints={},
    quantization={},
    vocab_size=VOCAB_SIZE,
    banned_token_ids=[7],
    missing_token_ids=[],
    level_settings={},
    stop_token_ids=[1, 2],
    special_token_ids=[0],
    context_length=None,
)
PLAIN = SamplingConfig(temperature=0.9, repetition_penalty=1.0)
SAMPLINGS = [
    PLAIN,
    SamplingConfig(temperature=0.7, repetition_penalty=1.2),
    SamplingConfig(temperature=1.0, repetition_penalty=1.1, top_p=0.9),
    SamplingConfig(temperature=0.0, repetition_penalty=1.1),
]
RULES = [
    Pathwise(k=0.0, bank=3.0),
    Anchored(k=0.3, budget="global"),
    Anchored(k=0.3, budget="fixed"),
    Anchored(k=0.3),
    Anchored(k=0.3, bank=0.1),
    Pathwise(k=0.2, bank=0.5),
    Anchored(k=0.3, divergence="max"),
]
ONE = SAMPLINGS[1], Anchored(k=0.3)
MIXED = [(SAMPLINGS[slot % 4], RULES[slot % 7]) for slot in range(NUM_SLOTS)]
"""Sampling and rule of each slot, every request with others than its neighbours."""


def joined(*settings) -> SlotAccounts:
    """Slots that are taken by requests with these settings, or with the same ones."""
    slots = SlotAccounts(NUM_SLOTS, FACTS, CPU)
    for slot in range(NUM_SLOTS):
        join(slots, slot, *settings[slot % len(settings)])
    return slots


def join(slots, slot, sampling, rule, *, drawn=(), spends=(), debt=0.0):
    """drawn, spends: of the steps before, where the request comes back."""
    slots.join(
        slot,
        [*PROMPT, *drawn],
        prompt_len=len(PROMPT),
        account=opened_accounts([rule.budget_for(horizon=HORIZON, k=None)])[0],
        debt=torch.tensor(debt, dtype=torch.float64),
        spends=spends,
        key=slot,
        sampling=sampling,
        charge=rule.charge,
        is_failed=False,
    )


def rows_at(step: int, drafts=None, slots=range(NUM_SLOTS)) -> Rows:
    """A step's rows of requests that have drawn `step` tokens; drafts: of each, perhaps none."""
    drafts = drafts or [[] for _ in slots]
    offsets = [offset for draft in drafts for offset in range(len(draft) + 1)]
    token_ids = [token for draft in drafts for token in (6, *draft)]
    return Rows.of(
        slots=torch.tensor(list(slots)),
        host_slots=list(slots),
        offsets=torch.tensor(offsets),
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor([2 + step + offset for offset in offsets]),
        num_rows=1 + max(map(len, drafts)),
    )


def logits(seed: int, *, steps: int = 1, slots: int = NUM_SLOTS) -> torch.Tensor:
    """(2, slots * steps, V) of the risky and the safe model, request by request."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(2, slots * steps, VOCAB_SIZE, generator=generator)


def plainly_drawn(slot: int, both: torch.Tensor) -> torch.Tensor:
    """(steps, 5): token, budget, spend and log p* of a mixed request's rows, by its rule alone, and
    the nats that are used up after each."""
    sampling, rule = MIXED[slot]
    warp = Warpers(sampling, FACTS.stop_token_ids, FACTS.banned_token_ids)
    account, figures = opened_accounts([rule.budget_for(horizon=HORIZON, k=None)]), []
    seen = torch.zeros(1, VOCAB_SIZE, dtype=torch.bool)
    seen[0, PROMPT] = True
    for step, rows in enumerate(both.unbind(1)):
        nats = allowance(account)
        uniform = uniforms(torch.tensor([slot]), torch.tensor([step]))
        warped = [warp(row[None], seen) for row in rows]
        if sampling.is_greedy:
            drawn = project(*warped, nats, charge=rule.charge)
            token = drawn.log_probs().argmax(-1)
            spend = token_spend(drawn, token)
        else:
            drawn = project(*warped, nats, uniform, charge=rule.charge)
            token, spend = drawn.token_ids, drawn.spend
        seen[0, token] = True
        account = charged(account, spend[:, None])
        of_token = drawn.token_log_probs(token)
        figures.append(torch.stack([token, nats, spend, of_token, account[:, USED]], -1))
    return torch.cat(figures)


@pytest.fixture(params=["torch", "triton"])
def warping(request, monkeypatch):
    """Rows are warped by PyTorch, or as on a GPU, in Triton's interpreter."""
    if request.param == "triton":
        pytest.importorskip("triton")
        monkeypatch.setattr(warp, "takes_triton", lambda device: True)


@pytest.fixture(scope="module")
def both() -> torch.Tensor:
    return logits(0, steps=NUM_STEPS)


@pytest.fixture(scope="module")
def expected(both) -> torch.Tensor:
    """(slots, steps, 5) as `plainly_drawn`."""
    rows = both.unflatten(1, (NUM_SLOTS, NUM_STEPS)).unbind(1)
    figures = [plainly_drawn(slot, slot_rows) for slot, slot_rows in enumerate(rows)]
    least = [of_slot[:, 2].min().item() for of_slot in figures]
    assert least[5] < 0.0  # its Pathwise gives nats back, as slots 0 and 7 may
    assert all(least[slot] >= 0.0 for slot in (1, 2, 3, 4, 6))
    return torch.stack(figures)


def assert_drawn(records: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(records[:, [0, BUDGET, SPEND, LOG_PROB]], expected[:, :USED_AFTER])


@pytest.mark.parametrize("num_tiles", [1, 4])
def test_mixed_requests_are_drawn_as_each_alone_by_its_rule(
    both, expected, warping, num_tiles, monkeypatch
):
    monkeypatch.setattr(fusion, "TILE_BYTES", 4 * VOCAB_SIZE * NUM_SLOTS // num_tiles)
    slots = joined(*MIXED)
    for step in range(NUM_STEPS):
        emitted, records = slots.decide(rows_at(step), *both[:, step::NUM_STEPS])
        assert torch.equal(emitted[:, 0].double(), expected[:, step, 0])
        assert_drawn(records[:, 0], expected[:, step])


def drafted(both, expected, wrong=()):
    """Rows of every request after its tokens as drafts, but for those that are wrong, and their
    logits; a third of the requests drafts nothing."""
    drafts = [[int(token) for token in figures[:-1, 0]] for figures in expected]
    for slot in wrong:
        drafts[slot][1] = (drafts[slot][1] + 1) % VOCAB_SIZE
    drafts = [[] if slot % 3 == 2 else draft for slot, draft in enumerate(drafts)]
    at = [NUM_STEPS * s + row for s, draft in enumerate(drafts) for row in range(1 + len(draft))]
    return rows_at(0, drafts), both[:, at]


def test_drafts_that_are_drawn_give_the_tokens_and_spends_of_single_rows(both, expected, warping):
    slots, wrong = joined(*MIXED), range(1, NUM_SLOTS, 3)
    rows, of_rows = drafted(both, expected, wrong)
    emitted, records = slots.decide(rows, *of_rows)
    for slot in range(NUM_SLOTS):
        count = (NUM_STEPS, 2, 1)[slot % 3]  # all, up to the wrong one, one row
        assert records[slot, :, IS_DRAWN].tolist() == [1.0] * count + [0.0] * (NUM_STEPS - count)
        assert torch.equal(emitted[slot, :count].double(), expected[slot, :count, 0])
        assert_drawn(records[slot, :count], expected[slot, :count])
        assert slots.accounts[slot, STEP] == count
        torch.testing.assert_close(
            slots.accounts[slot, USED], expected[slot, count - 1, USED_AFTER]
        )


def test_a_row_of_nan_ends_its_request_alone_and_spends_nothing(both, expected, warping):
    slots, (rows, of_rows) = joined(*MIXED), drafted(both, expected)
    slot, model, row = 3, 1, 1
    of_rows[model, rows.index[slot, row], 3] = math.nan
    emitted, records = slots.decide(rows, *of_rows)
    others = [other for other in range(NUM_SLOTS) if other != slot]
    assert torch.equal(emitted[others, 0].double(), expected[others, 0, 0])
    assert slots.is_failed.nonzero().flatten().tolist() == [slot]
    assert records[slot, :, IS_DRAWN].tolist() == [1.0] * row + [0.0] * (NUM_STEPS - row)
    assert emitted[slot, row] == slots.end
    assert slots.accounts[slot, STEP] == row
    assert slots.accounts[slot, USED] == records[slot, :row, SPEND].sum()


def test_a_banned_token_and_the_second_stop_token_are_never_drawn(warping):
    slots = joined((PLAIN, Anchored(k=5.0)))
    of_rows = logits(3)
    of_rows[..., 7], of_rows[..., 2] = 50.0, 40.0
    emitted, _ = slots.decide(rows_at(0), *of_rows)
    assert emitted.tolist() == [[1]] * NUM_SLOTS  # the end, of both stop tokens


def test_prompts_that_are_still_read_are_not_charged_and_an_account_of_another_step_fails():
    slots = joined(ONE)
    slots.text_lens[1] = 10
    slots.decide(rows_at(0), *logits(5))
    assert slots.accounts[:, STEP].tolist() == [1.0, 0.0] + [1.0] * (NUM_SLOTS - 2)
    assert not slots.is_failed.any()
    slots = joined(ONE)
    emitted, _ = slots.decide(rows_at(1), *logits(6))
    assert slots.is_failed.all() and emitted.tolist() == [[slots.end]] * NUM_SLOTS
    assert slots.accounts[:, USED].sum() == 0.0


@pytest.mark.parametrize(
    ("rule", "was_full", "debt"),
    [
        (Anchored(k=0.9, bank=0.3), True, 0.5),
        (Pathwise(k=0.2, bank=2.0), False, 0.5),  # what is given back is in its bank
    ],
    ids=str,
)
def test_a_request_that_comes_back_goes_on_with_its_balance(rule, was_full, debt):
    """Preempted after some steps, whose spends alone are known of it."""
    slot = 2
    slots = SlotAccounts(NUM_SLOTS, FACTS, CPU)
    join(slots, slot, PLAIN, rule, debt=debt)
    drawn, spends = [], []
    for step in range(6):
        step_logits = 0.02 * logits(step, slots=1) if step % 2 else logits(step, slots=1)
        emitted, records = slots.decide(rows_at(step, slots=[slot]), *step_logits)
        drawn.append(emitted.item())
        spends.append(records[0, 0, SPEND].item())
    account = slots.accounts[slot].clone()
    assert account[USED] > sum(spends) if was_full else account[USED] == sum(spends)
    assert (min(spends) < 0.0) is (rule.charge == "drawn")
    slots.leave(slot)
    join(slots, slot, PLAIN, rule, drawn=drawn, spends=spends, debt=debt)
    assert torch.equal(slots.accounts[slot], account)


def test_a_debt_of_nan_fails_and_an_infinite_one_leaves_the_safe_model_alone():
    slots = joined((PLAIN, Anchored(k=3.0)))
    slots.set_debt(0, debt_nats(torch.tensor([1.0, math.nan]), mode="top", window=5).double())
    slots.set_debt(1, debt_nats(torch.tensor([1.0, math.inf]), mode="top", window=5).double())
    _, records = slots.decide(rows_at(0), *logits(7))
    assert slots.is_failed.nonzero().flatten().tolist() == [0]
    assert records[:2, 0, DEBT].tolist() == [math.inf] * 2
    assert records[1, 0, [BUDGET, SPEND]].tolist() == [0.0] * 2
    assert (records[2:, 0, SPEND] > 0.0).all()


def test_nothing_is_overspent_over_five_thousand_tokens():
    rules = [
        (Pathwise(k=k, bank=3.0) if slot < 50 else Anchored(k=k))
        for slot in range(100)
        for k in [(0.0, 0.01, 0.1, 1.0, 5.0)[slot % 5]]
    ]
    slots = SlotAccounts(100, FACTS, CPU)
    for slot, rule in enumerate(rules):
        join(slots, slot, SAMPLINGS[slot % 3], rule)
    bounds, sums = slots.accounts[:, 1].clone(), torch.zeros(100, dtype=torch.float64)
    for step in range(HORIZON):
        step_logits = logits(step, slots=100)
        _, records = slots.decide(rows_at(step, slots=range(100)), *step_logits)
        sums += records[:, 0, SPEND]
        assert (records[:, 0, IS_DRAWN] == 1.0).all()
        assert (sums <= bounds).all() and (sums <= slots.accounts[:, USED]).all()
    assert torch.equal(sums[50:], slots.accounts[50:, USED]) and sums.sum() > 0.0
