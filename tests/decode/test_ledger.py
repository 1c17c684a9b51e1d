"""Ledgers survive a round trip, show every change, and are replayed against the models."""

import dataclasses
import json
import math

import pytest
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, Ledger, LedgerError, ModelPair, RiskyOnly, SafeOnly, verify

PROMPT = "the keeper of the lamp wrote"


@pytest.fixture(scope="module")
def ledger(pair) -> Ledger:
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPT, max_new_tokens=20, seed=7)
    return result.ledger


@pytest.fixture
def path(ledger, tmp_path):
    ledger.save(tmp_path / "ledger.jsonl")
    return tmp_path / "ledger.jsonl"


def rewrite(path, change) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")


def test_a_ledger_survives_a_round_trip(ledger, path):
    assert Ledger.load(path) == ledger


def test_infinite_figures_survive_a_round_trip(pair, tmp_path):
    (result,) = Decoder(pair, RiskyOnly()).generate(PROMPT, max_new_tokens=3)
    result.ledger.save(tmp_path / "risky.jsonl")
    assert Ledger.load(tmp_path / "risky.jsonl").header.bound == math.inf


def test_a_changed_figure_is_refused(path):
    def change(lines):
        step = json.loads(lines[3])
        return [*lines[:3], json.dumps({**step, "spend": step["spend"] / 2 + 1}), *lines[4:]]

    rewrite(path, change)
    with pytest.raises(LedgerError, match="a figure was changed"):
        Ledger.load(path)


def test_a_changed_total_is_refused(path):
    rewrite(path, lambda lines: [*lines[:-1], lines[-1].replace('"length"', '"stop_token"')])
    with pytest.raises(LedgerError, match="a figure was changed"):
        Ledger.load(path)


def test_two_lines_swapped_are_refused(path):
    rewrite(path, lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]])
    with pytest.raises(LedgerError, match="line 5 holds step 4, expected 3: lines were reordered"):
        Ledger.load(path)


def test_an_end_cut_off_is_refused(path):
    rewrite(path, lambda lines: lines[:10])
    with pytest.raises(LedgerError, match="cut off after 9 steps: the footer is missing"):
        Ledger.load(path)


def test_a_line_cut_in_the_middle_is_refused(path):
    path.write_text(path.read_text()[:-40])
    with pytest.raises(LedgerError, match="line 22 is cut off or not JSON"):
        Ledger.load(path)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other").write_text('{"a": 1}\n')
    with pytest.raises(LedgerError, match="not the header"):
        Ledger.load(tmp_path / "other")


@pytest.mark.parametrize(
    "rule",
    [
        Anchored(k=1.0),
        Anchored(k=1.0, divergence="max"),
        Anchored(K=15.0, budget="global"),
        Anchored(k=0.3, budget="fixed"),
        SafeOnly(),
        RiskyOnly(),
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_replay_agrees_and_draws_every_token_again(pair, rule, temperature):
    (result,) = Decoder(pair, rule).generate(PROMPT, max_new_tokens=20, temperature=temperature)
    report = verify(result.ledger, pair)
    assert report.is_ok, report
    assert report.tokens_drawn_again == len(result.token_ids)
    assert report.max_spend_error < 1e-8


def test_a_float32_pair_from_folders_verifies_within_its_tolerance(pair_folders, tmp_path):
    pair = ModelPair.from_pretrained(*pair_folders)
    results = Decoder(pair, Anchored(k=1.0)).generate([PROMPT, "salt"], max_new_tokens=30)
    for index, result in enumerate(results):
        result.ledger.save(tmp_path / f"{index}.jsonl")
        report = verify(tmp_path / f"{index}.jsonl", ModelPair.from_pretrained(*pair_folders))
        assert report.is_ok, report
        assert report.tokens_drawn_again == len(result.token_ids)
        assert report.tolerance < 1e-3


def forged(ledger: Ledger, position: int, **changes) -> Ledger:
    """A ledger whose hash is right but whose content is not."""
    steps = list(ledger.steps)
    steps[position] = dataclasses.replace(steps[position], **changes)
    return dataclasses.replace(ledger, steps=steps)


def test_a_forged_token_is_found(ledger, pair):
    other = (ledger.steps[5].token_id + 1) % pair.vocab_size
    assert not verify(forged(ledger, 5, token_id=other), pair).is_ok


def test_a_forged_last_spend_is_found(ledger, pair):
    report = verify(forged(ledger, 19, spend=0.0), pair)
    assert "spend differs" in report.failures[0]


def test_a_forged_budget_is_found(ledger, pair):
    report = verify(forged(ledger, 3, budget=99.0), pair)
    assert "the budget does not follow" in report.failures[0]


def test_a_forged_seed_is_found(ledger, pair):
    header = dataclasses.replace(ledger.header, seed=8)
    report = verify(dataclasses.replace(ledger, header=header), pair)
    assert "the seed gives another token" in report.failures[0]


def test_a_forged_debt_is_found(ledger, pair):
    header = dataclasses.replace(ledger.header, debt=0.0, bound=ledger.header.K)
    assert not verify(dataclasses.replace(ledger, header=header), pair).is_ok


def test_another_model_is_found(ledger, pair, tokenizer):
    report = verify(ledger, ModelPair(pair.safe, tiny_llama(9, layers=3), tokenizer))
    assert "the risky model is not the recorded one" in report.failures[0]
