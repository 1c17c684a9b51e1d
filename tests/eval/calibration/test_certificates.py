"""The largest k that certifies texts: bounds of events, their search, and what p* then does."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored import Anchored, Decoder, event_bound
from anchored.decode.settings import SpendingOptions
from anchored.eval.calibration.certificates import (
    Measure,
    Recital,
    certified,
    measures,
    read_events,
    uncertified,
)
from anchored.eval.experiments.experiment import Experiment, Prompt

ADAPTIVE = SpendingOptions()
KL, MAX = Measure("kl"), Measure("max")


def recital(**values) -> Recital:
    return Recital(**{"id": "a", "num_steps": 64, "safe_log_prob": -200.0, "debt": 10.0, **values})


@pytest.mark.parametrize(
    ("values", "spending", "nats"),
    [
        ({}, {}, 2 * 64 - 10),
        ({"debt": 200.0}, {}, 0),
        ({}, {"bank": 20.0}, 2 * 64 - 10),
        ({}, {"budget": "global"}, 2 * 100 - 10),
        ({}, {"budget": "fixed"}, 2 * 64),
        ({"num_positions": 37}, {}, 2 * 100 - 10),
        ({"num_positions": 37}, {"bank": 20.0}, 20 + 2 * 64),
        ({"num_positions": 37, "debt": 100.0}, {"bank": 20.0}, 2 * 100 - 100),
        ({"num_positions": 37}, {"budget": "fixed"}, 2 * 64),
    ],
)
def test_an_event_can_spend_what_its_steps_may(values, spending, nats):
    spending = SpendingOptions(**spending)
    assert recital(**values).nats(2.0, spending, length=100) == nats


def test_a_passage_is_bounded_at_every_position_of_an_answer():
    passage = recital(num_steps=8, num_positions=93)
    at_one = event_bound(190.0, -200.0, divergence="max")
    assert passage.bound(2.0, MAX, ADAPTIVE, 100) == pytest.approx(93 * at_one, rel=1e-12)
    assert passage.bound(9.0, MAX, ADAPTIVE, 100) == 1.0


@settings(max_examples=25)
@given(
    st.lists(st.floats(-400, -1), min_size=1, max_size=5),
    st.floats(0, 30),
    st.sampled_from(measures([1.1, 2.0])),
    st.sampled_from([1e-9, 1e-3, 0.5]),
)
def test_the_largest_k_is_within_the_target_and_the_next_is_not(log_probs, debt, measure, target):
    events = [recital(id=str(i), safe_log_prob=p, debt=debt) for i, p in enumerate(log_probs)]
    row = certified(events, measure, ADAPTIVE, length=64, target=target, quantile=0.5)

    def bounds(k: float) -> list[float]:
        return [each.bound(k, measure, ADAPTIVE, 64) for each in events]

    judges = {"all": max, "mean": lambda values: math.fsum(values) / len(values)}
    judges["quantile"] = lambda values: sorted(values)[math.ceil(len(values) / 2) - 1]
    for name, judge in judges.items():
        k = getattr(row, name)
        assert k == 0.0 or judge(bounds(k)) <= target
        assert judge(bounds(round(k + 0.01, 2))) > target
    assert row.all <= min(row.quantile, row.mean)


def test_orders_certify_more_and_more():
    rows = [
        certified([recital(debt=0.0)], each, ADAPTIVE, length=64, target=1e-6)
        for each in measures([1.5, 1.1, 4.0])
    ]
    assert [row.measure for row in rows] == ["KL", "order 1.1", "order 1.5", "order 4", "max"]
    assert [row.all for row in rows] == sorted(row.all for row in rows)
    assert rows[-1].all == pytest.approx((200 - math.log(1e6)) / 64, abs=0.01)


def test_a_text_that_the_safe_model_writes_itself_is_named():
    events = [recital(), recital(id="likely", safe_log_prob=-2.0, debt=0.0)]
    assert uncertified(events, ADAPTIVE, length=64, target=1e-3) == ["likely"]


@pytest.fixture
def experiment(tmp_path):
    prompts = [
        Prompt(id=str(i), title="", prompt=prompt, reference=reference)
        for i, (prompt, reference) in enumerate(
            [("the keeper of", " every wave"), ("salt and rain", " the harbour bell rang twice")]
        )
    ]
    return Experiment(
        folder=tmp_path,
        prompts=prompts,
        settings=(),
        max_new_tokens=20,
        temperature=1.0,
        repetition_penalty=1.0,
    )


def test_events_are_the_texts_and_the_parts_of_them(pair, experiment):
    events = read_events(experiment, pair, ADAPTIVE, window=3)
    decoder = Decoder(pair, Anchored(k=0.0))
    for text, passage, prompt in zip(
        events.texts, events.passages, experiment.prompts, strict=True
    ):
        (score,) = decoder.score(prompt.prompt, prompt.reference)
        log_probs = score.safe_token_log_probs
        assert text.debt == passage.debt == pytest.approx(score.debt, rel=1e-12)
        assert text.num_steps == len(log_probs)
        assert text.safe_log_prob == pytest.approx(math.fsum(log_probs), rel=1e-12)
        parts = [math.fsum(log_probs[i : i + 3]) for i in range(len(log_probs) - 2)]
        total = math.log(math.fsum(map(math.exp, parts)))
        assert passage.safe_log_prob == pytest.approx(total, rel=1e-12)
        assert (passage.num_steps, passage.num_positions) == (3, 18)


@pytest.mark.parametrize("divergence", ["kl", "max"])
def test_at_the_certified_k_p_star_recites_no_text_more_often(pair, experiment, divergence):
    events = read_events(experiment, pair, ADAPTIVE, window=None)
    likeliest = max(event.safe_log_prob for event in events.texts)
    target = 100 * math.exp(likeliest)
    measure = Measure(divergence)
    row = certified(events.texts, measure, ADAPTIVE, length=20, target=target)
    assert row.all > 0.0
    decoder = Decoder(pair, Anchored(k=row.all, divergence=divergence))
    scores = decoder.score(
        [prompt.prompt for prompt in experiment.prompts],
        [prompt.reference for prompt in experiment.prompts],
        horizon=20,
    )
    assert all(math.exp(score.log_prob) <= target for score in scores)
