"""Rows of a step drawn by slot: budgets, drafts, failures, and what joins and leaves."""

import math

import pytest
import torch

from anchored.decode.rules.anchored import Anchored
from anchored.decode.rules.budget import debt_nats
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.fusion import Rows, SlotAccounts
from anchored.decode.vllm.settings import PairFacts
from anchored.decode.warpers import Warpers
from anchored.kernels.spend import SPENT, new_accounts

VOCAB_SIZE, NUM_SLOTS = 40, 8
CPU = torch.device("cpu")
FACTS = PairFacts(
    safe="",
    risky="",
    fingerprints={},
    quantization={},
    vocab_size=VOCAB_SIZE,
    banned_token_ids=[7],
    level_settings={},
    stop_token_ids=[1, 2],
    special_token_ids=[0],
    context_length=None,
)
PLAIN = SamplingConfig(temperature=0.9, repetition_penalty=1.0)


def joined(sampling: SamplingConfig = PLAIN, *, k=0.3, horizon=50, num_slots=NUM_SLOTS):
    """Every slot taken by a request of three tokens."""
    slots = SlotAccounts(num_slots, FACTS, CPU)
    for slot in range(num_slots):
        join(slots, slot, sampling, k=k, horizon=horizon)
    return slots


def join(slots, slot, sampling=PLAIN, *, k=0.3, horizon=50, divergence="kl", key=None):
    budget = Anchored(k=k).budget_for(horizon=horizon, k=None)
    slots.join(
        slot,
        [0, 5, 6],
        prompt_len=3,
        account=new_accounts([budget.per_step], [budget.total], [0.0], "adaptive", CPU)[0],
        debt=torch.tensor(0.0, dtype=torch.float64),
        key=slot if key is None else key,
        sampling=sampling,
        divergence=divergence,
        is_failed=False,
    )


def rows_at(step: int, drafts=None, slots=range(NUM_SLOTS)) -> Rows:
    """A step's rows of requests that have drawn `step` tokens; drafts: of each, perhaps none."""
    drafts = drafts or [[] for _ in slots]
    offsets = [offset for own in drafts for offset in range(len(own) + 1)]
    token_ids = [token for own in drafts for token in (6, *own)]
    return Rows.of(
        slots=torch.tensor(list(slots)),
        host_slots=list(slots),
        offsets=torch.tensor(offsets),
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor([2 + step + offset for offset in offsets]),
        num_rows=1 + max(map(len, drafts)),
    )


def logits(num_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(2.0 * torch.randn(2, num_rows, VOCAB_SIZE, generator=generator))


SAMPLINGS = [
    PLAIN,
    SamplingConfig(temperature=0.7, repetition_penalty=1.2),
    SamplingConfig(temperature=1.0, repetition_penalty=1.1, top_p=0.9),
    SamplingConfig(temperature=0.0, repetition_penalty=1.1),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drafts_that_are_drawn_give_the_tokens_and_spends_of_single_rows(sampling):
    single, drafted = joined(sampling), joined(sampling)
    risky, safe = logits(3 * NUM_SLOTS, 0)
    tokens, spends = [], []
    for step in range(3):
        own, records = single.decide(rows_at(step), risky[step::3], safe[step::3])
        tokens.append(own[:, 0])
        spends.append(records[:, 0, 3])
    guesses = torch.stack(tokens[:2], dim=1)
    guesses[1::2, 1] = (guesses[1::2, 1] + 1) % VOCAB_SIZE  # a wrong one: the row behind is unread
    emitted, records = drafted.decide(rows_at(0, guesses.tolist()), risky, safe)
    assert torch.equal(emitted[:, :2], torch.stack(tokens[:2], dim=1))
    assert torch.equal(emitted[::2, 2], tokens[2][::2])
    assert records[1::2, 2, 7].sum() == 0.0
    assert torch.equal(records[::2, :, 3], torch.stack(spends, dim=1)[::2])
    assert torch.equal(drafted.accounts[::2], single.accounts[::2])


def test_rows_of_requests_with_fewer_drafts_are_those_of_their_own():
    ragged, plain = joined(), joined()
    risky, safe = logits(NUM_SLOTS, 1)
    drafts = [[9, 9] if slot == 3 else [] for slot in range(NUM_SLOTS)]
    at = [min(slot, 3) + max(slot - 3, 0) + (2 if slot > 3 else 0) for slot in range(NUM_SLOTS)]
    wide = [x.new_zeros(NUM_SLOTS + 2, VOCAB_SIZE).index_copy(0, torch.tensor(at), x)
            for x in (risky, safe)]  # fmt: skip
    emitted, _ = ragged.decide(rows_at(0, drafts), *wide)
    assert torch.equal(emitted[:, :1], plain.decide(rows_at(0), risky, safe)[0])


def test_rows_of_other_laws_are_drawn_in_one_step():
    mixed = SlotAccounts(NUM_SLOTS, FACTS, CPU)
    for slot in range(NUM_SLOTS):
        join(mixed, slot, SAMPLINGS[slot % 4], divergence="max" if slot % 3 == 0 else "kl")
    risky, safe = logits(NUM_SLOTS, 2)
    emitted, records = mixed.decide(rows_at(0), risky, safe)
    for slot in range(NUM_SLOTS):
        alone = SlotAccounts(NUM_SLOTS, FACTS, CPU)
        join(alone, slot, SAMPLINGS[slot % 4], divergence="max" if slot % 3 == 0 else "kl")
        own, record = alone.decide(rows_at(0, slots=[slot]), risky[[slot]], safe[[slot]])
        assert torch.equal(own[0], emitted[slot])
        assert torch.equal(record[0], records[slot])


def test_requests_side_by_side_are_each_warped_by_their_own_settings():
    slots, (logits_of_rows, _) = joined(), logits(2, 8)
    join(slots, 1, SAMPLINGS[1])
    seen = torch.rand(2, 1, VOCAB_SIZE) < 0.3
    warped = slots._warped(rows_at(0, slots=[0, 1]), logits_of_rows[:, None], seen)
    for row, sampling in enumerate(SAMPLINGS[:2]):
        alone = Warpers(sampling, FACTS.stop_token_ids)(logits_of_rows[[row]], seen[row])
        torch.testing.assert_close(warped[row], alone)


def test_a_banned_token_and_the_second_stop_token_are_never_drawn():
    slots = joined(k=5.0)
    risky, safe = logits(NUM_SLOTS, 3)
    for x in (risky, safe):
        x[:, 7], x[:, 2] = 50.0, 40.0
    emitted, _ = slots.decide(rows_at(0), risky, safe)
    assert emitted.tolist() == [[1]] * NUM_SLOTS  # the end, of both stop tokens


@pytest.mark.parametrize("name", ["risky", "safe"])
def test_a_row_of_nan_ends_its_request_alone_and_spends_nothing(name):
    slots, own = joined(), dict(zip(("risky", "safe"), logits(NUM_SLOTS, 4), strict=True))
    expected, _ = joined().decide(rows_at(0), **own)
    own[name][2, 3] = math.nan
    emitted, records = slots.decide(rows_at(0), **own)
    others = [slot for slot in range(NUM_SLOTS) if slot != 2]
    assert torch.equal(emitted[others], expected[others])
    assert emitted[2].item() == slots.end
    assert slots.is_failed.nonzero().flatten().tolist() == [2]
    assert records[2, 0, 7] == 0.0
    assert slots.accounts[2, SPENT] == 0.0


def test_prompts_that_are_still_read_are_not_charged():
    slots = joined()
    slots.text_lens[1] = 10
    slots.decide(rows_at(0), *logits(NUM_SLOTS, 5))
    assert slots.accounts[:, 4].tolist() == [1.0, 0.0] + [1.0] * (NUM_SLOTS - 2)
    assert not slots.is_failed.any()


def test_an_account_that_does_not_stand_where_the_text_does_fails():
    slots = joined()
    emitted, _ = slots.decide(rows_at(1), *logits(NUM_SLOTS, 6))
    assert slots.is_failed.all()
    assert emitted.tolist() == [[slots.end]] * NUM_SLOTS
    assert slots.accounts[:, SPENT].sum() == 0.0


def test_a_slot_forgets_the_request_before():
    slots, fresh = joined(SAMPLINGS[1]), joined(SAMPLINGS[1])
    for step in range(3):
        slots.decide(rows_at(step), *logits(NUM_SLOTS, step))
    for slot in range(NUM_SLOTS):
        slots.leave(slot)
        join(slots, slot, SAMPLINGS[1])
    step = rows_at(0), *logits(NUM_SLOTS, 9)
    for own, other in zip(slots.decide(*step), fresh.decide(*step), strict=True):
        assert torch.equal(own, other)


def test_a_debt_of_nan_fails_and_an_infinite_one_leaves_the_safe_model_alone():
    slots = joined(k=3.0)
    slots.set_debt(0, debt_nats(torch.tensor([1.0, math.nan]), mode="top", window=5).double())
    slots.set_debt(1, debt_nats(torch.tensor([1.0, math.inf]), mode="top", window=5).double())
    _, records = slots.decide(rows_at(0), *logits(NUM_SLOTS, 7))
    assert slots.is_failed.nonzero().flatten().tolist() == [0]
    assert records[1, 0, 3] == 0.0
    assert records[1, 0, 2] == 0.0
    assert (records[2:, 0, 3] > 0.0).all()


@pytest.mark.slow
def test_nothing_is_overspent_over_a_hundred_thousand_tokens():
    num_slots, horizon, spent = 100, 50, []
    for batch in range(20):
        slots = SlotAccounts(num_slots, FACTS, CPU)
        for slot in range(num_slots):
            k = (0.0, 0.01, 0.1, 1.0, 5.0)[slot % 5]
            join(slots, slot, SAMPLINGS[slot % 3], k=k, horizon=horizon, key=1000 * batch + slot)
        bounds = slots.accounts[:, 1].clone()
        sums = torch.zeros(num_slots, dtype=torch.float64)
        for step in range(horizon):
            own = logits(num_slots, 100 * batch + step)
            _, records = slots.decide(rows_at(step, slots=range(num_slots)), *own)
            sums += records[:, 0, 3]
            assert (records[:, 0, 7] == 1.0).all()
        assert (sums <= bounds).all()
        assert torch.equal(sums, slots.accounts[:, SPENT])
        spent.append(sums)
    assert torch.stack(spent).sum() > 0.0
