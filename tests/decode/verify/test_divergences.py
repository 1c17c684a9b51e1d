"""Divergences are added to a ledger by a replay, and agree with their definition."""

import math
from dataclasses import replace

import pytest
import torch

from anchored import Anchored, Decoder, Ledger, RiskyOnly, with_divergences

PROMPT = "the keeper of the lamp wrote"
PLAIN = {"temperature": 1.0, "repetition_penalty": 1.0}


@torch.inference_mode()
def model_log_probs(pair, ledger):
    """log p_s and log p_r (steps, V) along the ledger by plain forwards."""
    tokens = ledger.header.prompt_token_ids + ledger.token_ids
    start = len(ledger.header.prompt_token_ids) - 1
    for model in (pair.safe, pair.risky):
        logits = model(torch.tensor([tokens])).logits[0, start:-1, : pair.vocab_size]
        yield logits.double().log_softmax(-1)


def kl(left, right):
    return (left.exp() * (left - right)).sum(-1)


def test_figures_are_those_of_the_definition_and_all_else_stays(pair, tmp_path):
    (result,) = Decoder(pair, Anchored(k=0.5)).generate(PROMPT, max_new_tokens=12, seed=3, **PLAIN)
    ledger, longer = result.ledger, with_divergences(result.ledger, pair)
    safe, risky = model_log_probs(pair, ledger)
    weight = torch.tensor([step.weight for step in ledger.steps], dtype=torch.float64)[:, None]
    star = ((1 - weight) * safe + weight * risky).log_softmax(-1)
    for name, nats in {"kl_risky_safe": kl(risky, safe), "kl_star_risky": kl(star, risky)}.items():
        recorded = [getattr(step, name) for step in longer.steps]
        assert recorded == pytest.approx(nats.tolist(), abs=1e-6)
    assert len(longer.header.prompt_ratios) == len(ledger.header.prompt_token_ids) - 1
    assert all(map(math.isfinite, longer.header.prompt_ratios))
    longer.save(tmp_path / "longer.jsonl")
    assert Ledger.load(tmp_path / "longer.jsonl") == longer
    assert with_divergences(tmp_path / "longer.jsonl", pair) == longer
    header = replace(longer.header, prompt_ratios=None)
    steps = [replace(step, kl_risky_safe=None, kl_star_risky=None) for step in longer.steps]
    assert replace(longer, header=header, steps=steps) == ledger
    assert "kl_" not in "".join(ledger.lines()) and "prompt_ratios" not in ledger.lines()[0]


def test_tokens_that_a_distribution_lacks_make_it_infinite(pair, tmp_path):
    (result,) = Decoder(pair, RiskyOnly()).generate(PROMPT, max_new_tokens=4, top_k=3)
    longer = with_divergences(result.ledger, pair)
    longer.save(tmp_path / "risky.jsonl")
    assert any(step.kl_risky_safe == math.inf for step in longer.steps)
    assert all(step.kl_star_risky == pytest.approx(0.0, abs=1e-6) for step in longer.steps)
    assert Ledger.load(tmp_path / "risky.jsonl") == longer
