"""Ledgers survive a round trip, show every change, and are replayed against the models."""

import dataclasses
import json
import math

import pytest

from anchored import Anchored, Decoder, Ledger, LedgerError, Pathwise, event_bound, verify

PROMPT = "the keeper of the lamp wrote"


@pytest.fixture(scope="module")
def drawn(pair) -> Ledger:
    """A ledger of drawn tokens, which some gave back."""
    decoder = Decoder(pair, Pathwise(k=0.5, bank=3.0, debt="none"))
    (result,) = decoder.generate(PROMPT, max_new_tokens=12, seed=7, temperature=1.0)
    assert min(step.spend for step in result.ledger.steps) < 0.0 and result.ledger.certified
    return result.ledger


def changed_figure(lines: list[str]) -> list[str]:
    step = json.loads(lines[3])
    return [*lines[:3], json.dumps({**step, "spend": step["spend"] / 2 + 1}), *lines[4:]]


FILES = {
    "a changed figure": (changed_figure, "a figure was changed"),
    "swapped lines": (
        lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
        "line 5 holds step 4, expected 3: lines were reordered",
    ),
    "cut": (lambda lines: lines[:10], "cut off after 9 steps: the footer is missing"),
    "list": (b"[1, 2]\n", "line 1 is not a JSON object"),
    "binary": (b"\xff\xfe\x00", "it is not UTF-8 text"),
    "deep": (b"[" * 100_000, "line 1 is cut off or not JSON"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_whole_ledger_is_refused(drawn, tmp_path, pair, name):
    path, (content, message) = tmp_path / "ledger.jsonl", FILES[name]
    if callable(content):
        drawn.save(path)
        content = "\n".join([*content(path.read_text().splitlines()), ""]).encode()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=message):
        verify(path, pair)


def test_nats_that_were_given_back_are_saved_and_read_again(drawn, pair, tmp_path):
    drawn.save(tmp_path / "ledger.jsonl")
    read = Ledger.load(tmp_path / "ledger.jsonl")
    assert read == drawn and read.certified and verify(read, pair)
    assert read.header.charge == "drawn" and read.header.bank == 3.0
    texts = {"passage": "-inf", "words": {"swapped": ["-inf"], "left_out": []}}
    named = dataclasses.replace(drawn, header=dataclasses.replace(drawn.header, **texts))
    named.save(tmp_path / "named.jsonl")
    assert Ledger.load(tmp_path / "named.jsonl") == named  # a text that reads like a figure


def test_an_event_is_bounded_by_what_the_charge_says(pair, drawn):
    """KL bounds it where steps are charged their mean, else the largest log-ratio of a text."""
    (mean,), (worst,) = (
        Decoder(pair, Anchored(k=1.0, divergence=kind)).generate(PROMPT, max_new_tokens=2)
        for kind in ("kl", "max")
    )
    for ledger, kind in ((mean.ledger, "kl"), (worst.ledger, "max"), (drawn, "max")):
        expected = event_bound(ledger.header.bound, -90.0, divergence=kind)
        assert ledger.event_bound(-90.0) == expected


def with_spends(ledger: Ledger, spends: list[float], **header) -> Ledger:
    """Certified, it says, with budgets that allow for each of the spends."""
    step = dataclasses.replace(ledger.steps[0], budget=100.0)
    steps = [dataclasses.replace(step, step=i, spend=nats) for i, nats in enumerate(spends)]
    changed = dataclasses.replace(ledger.header, **header)
    return dataclasses.replace(ledger, header=changed, steps=steps, certified=True)


@pytest.mark.parametrize(
    ("spends", "charge", "is_kept"),
    [
        ([2.0, -1.0, 3.0], "drawn", True),
        ([5.0, -3.0, 1.0], "drawn", False),  # the whole is within the bound, the first step is not
        ([-9.0, 4.0, 101.0], "drawn", False),  # more than the step's budget
        ([-9.0, math.nan, 1.0], "drawn", False),
        ([2.0, -1.0, 3.0], "mean", False),
        ([1.0, 1.0, 2.0], "mean", True),
    ],
)
def test_every_prefix_keeps_the_bound_and_only_a_drawn_token_gives_nats_back(
    drawn, spends, charge, is_kept
):
    ledger = with_spends(drawn, spends, charge=charge, bound=4.0)
    assert ledger.claims_bound and ledger.certified == is_kept
    if not is_kept:
        assert ledger.total_bound == math.inf
        with pytest.raises(ValueError, match="no bound holds"):
            ledger.event_bound(-9.0)
