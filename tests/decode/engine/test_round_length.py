"""The length of drafts on the device that gives most tokens a second."""

from anchored.decode.engine.draft_length import LENGTHS, RoundLength


def settled(*, kept: float, draft_s: float, lengths=LENGTHS) -> int:
    """The length chosen where a risky forward takes a second and drafts are kept so often."""
    length = RoundLength(lengths)
    for _ in range(40):
        chosen = length.chosen()
        length.took(chosen, 1.0 + draft_s * (chosen + 1), num_kept=round(100 * kept), num_drawn=100)
    return length.chosen()


def test_every_length_is_tried_once():
    length, tried = RoundLength(LENGTHS), []
    for _ in LENGTHS:
        tried.append(length.chosen())
        length.took(tried[-1], 1.0, num_kept=1, num_drawn=2)
    assert sorted(tried) == sorted(LENGTHS) and length.longest == max(LENGTHS)


def test_cheap_drafts_that_are_kept_are_long_and_dear_ones_are_none():
    assert settled(kept=0.95, draft_s=0.02) == 8
    assert settled(kept=0.6, draft_s=0.1) in (2, 4)
    assert settled(kept=0.1, draft_s=0.5) == 0


def test_a_length_that_was_asked_for_stays():
    assert settled(kept=0.0, draft_s=2.0, lengths=(3,)) == 3
