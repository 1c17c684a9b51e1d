"""A draft goes on while the tokens that are expected of it are worth its time."""

import pytest

from anchored.decode.engine.draft_length import EXPLORED, LONGEST, LengthByWorth, RoundTimes


def learnt(*, safe_s: float, risky_s: float, verified_s: float, kept: float) -> LengthByWorth:
    """After rounds of every explored length on a machine with these costs."""
    length = LengthByWorth()
    for drafted in EXPLORED * 3:
        num_verified = drafted + 1
        num_new = sum(kept**place for place in range(num_verified))
        length.took(
            RoundTimes(
                num_columns=drafted,
                draft_s=drafted * safe_s,
                num_verified=num_verified,
                verify_s=risky_s + num_verified * verified_s,
                num_new=num_new,
            )
        )
    for place in range(1000):
        u2 = (place + 0.5) / 1000
        length.was_kept(u2, u2 < kept)
    return length


def reach(length: LengthByWorth, u2: float) -> int:
    """Tokens drafted when all have this u2."""
    drafts = [u2]
    while length.goes_on([drafts]) and len(drafts) < LONGEST:
        drafts.append(u2)
    return len(drafts)


def test_costs_are_learnt_from_rounds_of_different_lengths():
    length = learnt(safe_s=0.2, risky_s=1.0, verified_s=0.01, kept=0.8)
    assert length.safe_s == pytest.approx(0.2)
    assert length.verified_s == pytest.approx(0.01)


def test_cheap_drafts_that_are_kept_go_far_and_dear_ones_do_not():
    cheap = learnt(safe_s=0.03, risky_s=1.0, verified_s=0.004, kept=0.9)
    dear = learnt(safe_s=2.0, risky_s=1.0, verified_s=0.5, kept=0.3)
    assert reach(cheap, 0.1) == LONGEST
    assert reach(dear, 0.9) == 1


def test_a_draft_that_will_hardly_be_kept_is_the_last():
    length = learnt(safe_s=0.1, risky_s=1.0, verified_s=0.01, kept=0.7)
    assert reach(length, 0.2) > 4 > reach(length, 0.95)


def test_a_full_batch_pays_for_every_verified_token():
    memory_bound = learnt(safe_s=0.1, risky_s=1.0, verified_s=0.0, kept=0.2)
    compute_bound = learnt(safe_s=0.1, risky_s=0.0, verified_s=1.0, kept=0.2)
    assert memory_bound.goes_on([[0.1]] * 16)
    assert not compute_bound.goes_on([[0.1]] * 16)


def test_rounds_without_a_budget_teach_nothing():
    length = LengthByWorth()
    length.took(RoundTimes(num_columns=9, draft_s=1.0, num_verified=0, verify_s=0.0, num_new=9))
    assert length.safe_s == 0.0


def rounds(length: LengthByWorth, count: int, *, plain_s: float, drafted_s: float) -> int:
    """Let rounds of one token go by on a machine with these costs; returns how many were plain."""
    num_plain = 0
    for _ in range(count):
        begins = length.begins()
        num_plain += not begins
        length.took(
            RoundTimes(
                num_columns=int(begins),
                draft_s=0.0,
                num_verified=1,
                verify_s=drafted_s if begins else plain_s,
                num_new=1,
            )
        )
    return num_plain


def test_drafts_that_cost_more_than_they_give_are_given_up_but_for_a_trial_now_and_then():
    dear, cheap = LengthByWorth(), LengthByWorth()
    assert rounds(dear, 400, plain_s=1.0, drafted_s=1.3) == pytest.approx(375, abs=8)
    assert rounds(cheap, 400, plain_s=1.3, drafted_s=1.0) == pytest.approx(25 + 6, abs=8)
    assert rounds(dear, 400, plain_s=1.3, drafted_s=1.0) < 60  # the machine has changed
