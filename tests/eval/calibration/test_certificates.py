"""The largest k that certifies texts: bounds of events, their search, and what p* then does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored import Anchored, Decoder, Pathwise, event_bound
from anchored.decode.rules.registry import DebtOptions
from anchored.eval.calibration.certificates import (
    Events,
    Recital,
    certified_rows,
    certified_rules,
    largest_k,
    read_events,
    write_certificates,
)
from anchored.eval.experiments.experiment import Experiment, Prompt

MAX = Anchored(k=0.0, divergence="max")
DIVERGENCES = {"Anchored": "kl", "Anchored_inf": "max", "Pathwise": "max"}


def recital(**values) -> Recital:
    return Recital(**{"id": "a", "num_steps": 64, "safe_log_prob": -400.0, "debt": 10.0, **values})


@pytest.mark.parametrize(
    ("values", "rule", "nats"),
    [
        ({}, Pathwise(bank=20.0), 20 + 2 * 64 - 10),
        ({}, replace(MAX, budget="global"), 2 * 100 - 10),
        ({}, replace(MAX, budget="fixed"), 2 * 64),
        ({"num_positions": 37}, MAX, 2 * 100 - 10),
        ({"num_positions": 37}, Pathwise(bank=20.0), 20 + 2 * 64),
    ],
)
def test_an_event_can_spend_what_its_steps_may(values, rule, nats):
    num_positions = values.get("num_positions", 1)
    expected = num_positions * event_bound(nats, -400.0, divergence="max")
    assert recital(**values).bound(rule, 2.0, 100) == pytest.approx(expected, rel=1e-12, abs=0.0)


@settings(max_examples=25)
@given(
    st.lists(st.floats(-400, -1), min_size=1, max_size=5),
    st.floats(0, 30),
    st.sampled_from(["Anchored", "Anchored_inf", "Pathwise"]),
    st.sampled_from([5.0, 20.0]),
    st.sampled_from([1e-9, 1e-3, 0.5]),
)
def test_the_largest_k_is_within_the_target_and_the_next_is_not(
    log_probs, debt, name, bank, target
):
    events = [recital(id=str(i), safe_log_prob=p, debt=debt) for i, p in enumerate(log_probs)]
    k = largest_k(events, certified_rules(bank)[name], length=64, target=target)

    def worst(k: float) -> float:
        """The bound of the likeliest text, from the bound of a text alone."""
        nats = max(0.0, bank + 64 * k - debt)
        return event_bound(nats, max(log_probs), divergence=DIVERGENCES[name])

    assert k is None or (k > 0 and worst(k) <= target)
    assert worst(round((k or 0.0) + 0.01, 2)) > target


def events_of(*texts, passages=()):
    texts, passages = list(texts), list(passages)
    return Events(symbol="token", length=64, window=32, texts=texts, passages=passages)


def test_a_row_for_each_rule_says_what_it_allows_without_a_bank_and_with_each():
    likely = recital(id="likely", safe_log_prob=-30.0, debt=0.0)
    passages = [recital(num_steps=32, num_positions=33)]
    rows = certified_rows(events_of(recital(), likely, passages=passages), (5.0, 20.0), 1e-6)
    by_rule = {(row["recited"], row["rule"]): row for row in rows}
    assert [rule for _, rule in by_rule] == ["Anchored", "Anchored_inf", "Pathwise"] * 2
    for (_, name), row in by_rule.items():
        assert "bank 5" in row and ("no bank" in row) == (name != "Pathwise")
    # Its 30 nats, less 13.8 for the target, are less than a bank of 20.
    assert by_rule["a whole text", "Pathwise"]["bank 20"] is None
    assert by_rule["any 32 tokens of a text", "Pathwise"]["bank 20"] > 10


def test_the_options_to_start_with_are_named_last(tmp_path):
    for banks, words in (((5.0, 20.0, 40.0), "--bank 20 --k 5.87"), ((5.0, 40.0), "--bank 40 ")):
        out = write_certificates(tmp_path, events_of(recital()), banks=banks, target=1e-6, about={})
        last = out.splitlines()[-1]
        assert last.startswith(f"To start with: --rule pathwise {words}")
        assert (tmp_path / "certificates.md").read_text().endswith(f"{last}\n")


TEXTS = {"the keeper of": " every wave", "salt and rain": " the harbour bell rang twice"}


@pytest.fixture
def experiment(tmp_path):
    prompts = [Prompt(id=p, title="", prompt=p, reference=text) for p, text in TEXTS.items()]
    options = {"max_new_tokens": 20, "temperature": 1.0, "repetition_penalty": 1.0}
    return Experiment(folder=tmp_path, prompts=prompts, settings=(), **options)


def test_events_are_the_texts_and_the_parts_of_them(pair, experiment):
    events = read_events(experiment, pair, DebtOptions(), window=3)
    decoder = Decoder(pair, Anchored(k=0.0))
    for text, passage in zip(events.texts, events.passages, strict=True):
        (score,) = decoder.score(text.id, TEXTS[text.id])
        log_probs = score.safe_token_log_probs
        assert text.debt == passage.debt == pytest.approx(score.debt, rel=1e-12)
        assert text.num_steps == len(log_probs)
        assert text.safe_log_prob == pytest.approx(math.fsum(log_probs), rel=1e-12)
        parts = [math.fsum(log_probs[i : i + 3]) for i in range(len(log_probs) - 2)]
        total = math.log(math.fsum(map(math.exp, parts)))
        assert passage.safe_log_prob == pytest.approx(total, rel=1e-12)
        assert (passage.num_steps, passage.num_positions) == (3, 18)


@pytest.mark.parametrize(
    ("name", "bank"), [("Anchored", None), ("Anchored_inf", None), ("Pathwise", 2.0)]
)
def test_at_the_certified_k_p_star_recites_no_text_more_often(pair, experiment, name, bank):
    rule = certified_rules(bank)[name]
    events = read_events(experiment, pair, DebtOptions(), window=None)
    likeliest = max(event.safe_log_prob for event in events.texts)
    target = 1000 * math.exp(likeliest)
    k = largest_k(events.texts, rule, length=20, target=target)
    decoder = Decoder(pair, replace(rule, k=k))
    scores = decoder.score(list(TEXTS), list(TEXTS.values()), horizon=20)
    assert k > 0.0 and all(math.exp(score.log_prob) <= target for score in scores)
