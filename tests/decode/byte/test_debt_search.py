"""Debts from the nodes that the largest ratios depend on, against those from all nodes."""

import pytest
import torch
from byte_pairs import PROMPTS, tiny_byte_pair
from byte_streams import CONTINUATION, PROMPT

from anchored import ByteSettings, PromptCache
from anchored.decode.byte.byte_level import ByteLevel
from anchored.decode.byte.debt_search import SLACK
from anchored.decode.engine.prompts import read_prompts
from anchored.decode.rules.prefix_debt import prefix_debt
from anchored.decode.settings import SamplingConfig

TEXTS = [
    list(text.encode())
    for text in (PROMPT + CONTINUATION + "".join(PROMPTS), "the lamp " * 9 + PROMPT, "s", PROMPT)
]


@pytest.fixture(scope="module")
def pair():
    return tiny_byte_pair()


def level_of(pair, debt="exact", cache=None):
    # An empty cache is as false as none.
    cache = PromptCache(0) if cache is None else cache
    return ByteLevel(pair, ByteSettings(debt=debt), cache)


def read(level, prompts, num_ratios, **changes):
    """(ratios by prompt, nodes by prompt of both models, the streams)."""
    streams = level.open_streams(
        len(prompts), 400, SamplingConfig(), scores_prompts=True, num_ratios=num_ratios, **changes
    )
    rows = list(range(len(prompts)))
    reading = read_prompts(level, streams, prompts, rows)
    nodes = [sum(own.counts(row).num_nodes for own in streams.values()) for row in rows]
    return reading.ratios, nodes, streams


@pytest.mark.parametrize("window", [1, 3, 5, 40, 500])
def test_debts_are_those_of_all_nodes(pair, window):
    whole, all_nodes, _ = read(level_of(pair), TEXTS, None)
    part, some_nodes, _ = read(level_of(pair), TEXTS, window)
    for more, less in zip(whole, part, strict=True):
        exact = prefix_debt(more, window=window)
        assert prefix_debt(less, window=window) == pytest.approx(exact, abs=1e-9)
        assert (less >= more - 1e-9).all()
    if window <= 5:
        assert some_nodes[0] < 0.9 * all_nodes[0]


def test_bounded_debts_lie_above_the_exact_ones_within_the_slack(pair):
    whole, _, _ = read(level_of(pair), TEXTS, None)
    exact, more_nodes, _ = read(level_of(pair), TEXTS, 5)
    bounded, fewer_nodes, _ = read(level_of(pair, "bounded"), TEXTS, 5)
    for truth, own in zip(whole, bounded, strict=True):
        assert (own >= truth - 1e-9).all()
        assert prefix_debt(own) <= SLACK * prefix_debt(truth) + 1e-9
    assert sum(fewer_nodes) < sum(more_nodes)
    assert any(prefix_debt(b) > prefix_debt(e) for b, e in zip(bounded, exact, strict=True))


def test_next_bytes_do_not_depend_on_how_the_debt_was_found(pair):
    tail = list(CONTINUATION.encode())
    laws = []
    for num_ratios in (None, 5):
        _, _, streams = read(level_of(pair), TEXTS[:2], num_ratios)
        fed = [stream.feed_rows([0, 1], [tail[:4], tail]) for stream in streams.values()]
        laws.append(torch.stack(fed).exp())
    assert laws[1] == pytest.approx(laws[0], abs=1e-12)


def test_a_kept_prompt_is_looked_into_further_for_more_ratios(pair):
    cache = PromptCache()
    level = level_of(pair, cache=cache)
    (whole,), _, _ = read(level_of(pair), TEXTS[:1], None)
    for window in (1, 20, 500, 3):
        # Equal prompts are read once, and both rows know what is found.
        ratios, _, _ = read(level, [TEXTS[0], TEXTS[0]], window)
        for own in ratios:
            exact = prefix_debt(whole, window=window)
            assert prefix_debt(own, window=window) == pytest.approx(exact, abs=1e-9)
    (again,), _, _ = read(level, TEXTS[:1], None)
    assert again == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("windows", [(40, 1), (5, 1), (1, 5), (500, 3)])
def test_a_bounded_debt_does_not_depend_on_what_other_rules_asked_for(pair, windows):
    level = level_of(pair, "bounded", PromptCache())
    read(level, TEXTS, windows[0])
    for _ in range(2):
        shared, _, _ = read(level, TEXTS, windows[1])
        fresh, _, _ = read(level_of(pair, "bounded"), TEXTS, windows[1])
        assert all(map(torch.equal, shared, fresh))


def test_only_as_many_ratios_as_the_rule_asks_for_are_looked_into(pair):
    _, few, _ = read(level_of(pair), TEXTS[:1], 1)
    _, more, _ = read(level_of(pair), TEXTS[:1], 30)
    assert few[0] < more[0]
