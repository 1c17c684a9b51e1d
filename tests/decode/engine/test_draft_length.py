"""The length of drafts that gives most tokens a second."""

from anchored.decode.engine.speculative_batch import LENGTHS, RETRIED, DraftLength


def look(length: DraftLength, *, kept: float, draft_s: float, plain_s: float = 1.0) -> int:
    """One round where a risky forward takes a second, a draft so long, and is kept so often."""
    chosen = length.chosen()
    round_s = plain_s if chosen == 0 else 1.0 + draft_s * (chosen + 1)
    length.took(chosen, round_s, num_kept=round(100 * kept), num_drawn=100)
    return chosen


def choices(length: DraftLength, count: int, **costs: float) -> list[int]:
    return [look(length, **costs) for _ in range(count)]


def usual(*, lengths=LENGTHS, **costs: float) -> int:
    """The length that is chosen most of the time."""
    chosen = choices(DraftLength(lengths), 100, **costs)
    return max(set(chosen), key=chosen.count)


def test_every_length_is_tried_once():
    tried = choices(DraftLength(LENGTHS), len(LENGTHS), kept=0.5, draft_s=0.1)
    assert sorted(tried) == sorted(LENGTHS)
    assert DraftLength(LENGTHS).longest == max(LENGTHS)


def test_cheap_drafts_that_are_kept_are_long_and_dear_ones_are_none():
    assert usual(kept=0.95, draft_s=0.02) == 8
    assert usual(kept=0.6, draft_s=0.1) in (2, 4)
    assert usual(kept=0.1, draft_s=0.5) == 0


def test_a_length_that_was_asked_for_stays():
    assert set(choices(DraftLength((3,)), 100, kept=0.0, draft_s=2.0)) == {3}


def test_a_machine_that_changes_is_noticed():
    length = DraftLength(LENGTHS)
    assert choices(length, 400, kept=0.9, draft_s=0.5)[-1] < 8
    chosen = choices(length, 40 * RETRIED, kept=0.9, draft_s=0.001)
    assert chosen[-5:].count(8) >= 4
