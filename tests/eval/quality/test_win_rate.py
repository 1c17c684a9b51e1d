"""Win rates: which pairs are drawn, both orders, ties, failures, and the interval."""

import math

import pytest
from chat_server import Say, user_text

from anchored.eval.quality.win_rate import (
    WinRateConfig,
    choice,
    comparisons,
    win_rate_rows,
    win_rate_summary,
)
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.statistics import share_interval

WHOLE = WinRateConfig(num_comparisons=1000)


def test_a_choice_comes_after_its_mark():
    assert choice("A is better. [RESULT] A") == "A"
    assert choice("[RESULT]: **b**") == "B"
    for answer in ("[RESULT] A or [RESULT] B", "[RESULT] A's", "A"):
        assert choice(answer) is None


def text(setting, words, *, id="p", seed=0):
    return RecordedText(setting=setting, id=id, seed=seed, text=words, prompt="BEGIN")


def test_pairs_are_of_one_prompt_and_seed_and_the_same_for_all_settings():
    texts = [
        text(setting, f"{setting} {id} {seed}", id=id, seed=seed)
        for setting in ("a", "b", "c")
        for id in "pqrs"
        for seed in (0, 1)
    ]
    pairs = comparisons(texts, WHOLE)
    assert len(pairs) == 3 * 2 * 8
    for pair in pairs:
        assert (pair.text.id, pair.text.seed) == (pair.competitor.id, pair.competitor.seed)
        assert pair.text.setting != pair.competitor.setting
    few = comparisons(texts, WinRateConfig(num_comparisons=4, pool=("c",)))
    drawn = [
        [(each.text.id, each.text.seed) for each in few if each.text.setting == s] for s in "ab"
    ]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4 and len(few) == 8


def judge(body):
    """The longer continuation wins; "first" takes the first one; "broken" is an error."""
    _, _, rest = user_text(body).partition("### Continuation A\n")
    first, _, second = rest.partition("\n\n### Continuation B\n")
    if "broken" in first + second:
        return Say(status=400, raw="no")
    if "first" in first + second:
        return Say("[RESULT] A")
    if len(first) == len(second):
        return Say("[RESULT] TIE")
    return Say("[RESULT] A" if len(first) > len(second) else "[RESULT] B")


def test_both_orders_count_ties_are_halves_and_failures_are_no_loss(server, chat_client):
    others = {"p": "xxx", "q": "first x", "r": "same", "s": "twin", "t": "broken", "u": "x"}
    contents = {"p": "yyyyyy", "q": "y", "r": "same", "s": "niwt", "t": "y", "u": "y" * 9}
    texts = [text("a", words, id=id) for id, words in contents.items()]
    texts += [text("b", words, id=id) for id, words in others.items()]
    server.script = judge
    client = chat_client()
    rows = win_rate_rows(texts, client, WHOLE)
    by_id = {row["id"]: row for row in rows if row["setting"] == "a"}
    assert by_id["p"]["results"] == ["win", "win"] and by_id["p"]["score"] == 1.0
    assert by_id["q"]["results"] == ["win", "loss"] and by_id["q"]["score"] == 0.5
    assert [by_id[id]["score"] for id in "rstu"] == [0.5, 0.5, None, 1.0]
    assert by_id["t"]["problem"] == "status 400: 'no'"
    a, b = win_rate_summary(rows)
    assert (a["setting"], a["win_rate"], b["win_rate"]) == ("a", 3.5 / 5, 1.5 / 5)
    assert [a[name] for name in ("num_compared", "num_failed", "num_inconsistent")] == [5, 1, 1]
    low, high = a["interval"]
    assert 0.4 <= low < 0.7 < high <= 1.0
    # Equal texts are not sent, and b asks what a has paid for; what failed is sent again.
    assert len(server.requests) == 4 * 2 + 2 * 2


def test_the_interval_counts_prompts_not_comparisons():
    rows = [
        {"setting": "a", "id": id, "seed": seed, "score": score, "results": ["win", "win"]}
        for id, score in (("p", 1.0), ("q", 0.0), ("r", 1.0), ("s", 0.0))
        for seed in range(50)
    ]
    apart = [{**row, "id": number} for number, row in enumerate(rows)]
    all_won = [{**row, "score": 1.0} for row in rows]
    for some, interval in (
        (rows, [0.150, 0.850]),  # Wilson's of 2 of 4
        (apart, [0.431, 0.569]),
        (all_won, [0.510, 1.0]),
    ):
        assert win_rate_summary(some)[0]["interval"] == pytest.approx(interval, abs=5e-4)
    ties = [{**row, "score": 1.0 if row["id"] == 0 else 0.5} for row in apart]
    low, high = win_rate_summary(ties)[0]["interval"]
    assert 0.49 < low < 0.5025 < high < 0.52  # sharper than of as many wins and losses


@pytest.mark.parametrize(("share", "count"), [(0.05, 16), (0.5, 8), (0.9, 150)])
def test_an_interval_holds_the_share_of_all_as_often_as_it_says(share, count):
    held = 0.0
    for number in range(count + 1):
        mean = number / count
        error = math.sqrt(mean * (1 - mean) / count)
        low, high = share_interval(mean, error, count=count, confidence=0.95)
        odds = math.comb(count, number) * share**number * (1 - share) ** (count - number)
        held += odds * (low <= share <= high)
    assert 0.90 <= held <= 0.97
