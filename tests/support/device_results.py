"""Results of the engine on the device beside those of the eager one."""

from dataclasses import asdict

import pytest
from tiny_models import tiny_family, tiny_llama

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.ledger import Ledger

TOLERANCE_NATS = 5e-5
"""Of spends and log-probabilities; measured: 1e-5, in float32 models of 320 tokens. Where a budget
is all but spent log p* moves with its square root: with 2e-5 nats left, 8e-5 by eager steps and
7e-4 by these, against float64. Budgets are sums of spends."""

PROMPTS = ["the keeper of the lamp", "salt", "Nine tides ago, the harbour bell rang twice"]
KL, MAX = Anchored(k=1.0), Anchored(k=1.0, divergence="max")


def pair_of(tokenizer, family: str) -> ModelPair:
    """Float32 models of which some texts end early; two stop tokens are merged."""
    models = [tiny_family(family, seed).float() for seed in (1, 2)]
    models[1].generation_config.eos_token_id = [1, 2]
    return ModelPair(*models, tokenizer)


def stopping_llamas(tokenizer) -> ModelPair:
    """A float32 pair of which some texts end early; two stop tokens are merged."""
    safe, risky = tiny_llama(1).float(), tiny_llama(2, layers=3).float()
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 1.0
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe, risky, tokenizer)


def both(pair, rule, prompts=PROMPTS, *, batch_size=2, seed=0, **settings):
    """Results of the eager engine and of the one on the device."""
    seeds = [seed + index for index in range(len(prompts))]
    return [
        Decoder(pair, rule, batch_size=batch_size, engine=name).generate(
            prompts, seed=seeds, **settings
        )
        for name in ("eager", "device")
    ]


def assert_same(expected, actual) -> None:
    """Tokens, ends and accounting alike; figures within TOLERANCE_NATS."""
    for eager, device in zip(expected, actual, strict=True):
        assert device.token_ids == eager.token_ids
        assert device.text == eager.text and device.error == eager.error
        assert device.finish_reason == eager.finish_reason
        ours, theirs = device.ledger, eager.ledger
        assert without_debt(ours) == without_debt(theirs) and ours.certified == theirs.certified
        # Rows that join at other times are read beside other prompts, which moves rounding.
        assert ours.header.debt == pytest.approx(theirs.header.debt, abs=TOLERANCE_NATS)
        # A step reads, then draws: the prompt's last token is read once more.
        assert ours.safe_forwards == 1 + theirs.safe_forwards
        assert ours.risky_forwards == 1 + theirs.risky_forwards + theirs.skipped_risky
        for left, right in zip(ours.steps, theirs.steps, strict=True):
            assert (left.step, left.accepted) == (right.step, right.accepted)
            for name in ("budget", "spend", "log_prob", "safe_log_prob"):
                error = abs(getattr(left, name) - getattr(right, name))
                assert error < TOLERANCE_NATS * (len(ours.steps) if name == "budget" else 1)


def without_debt(ledger: Ledger) -> dict[str, object]:
    header = asdict(ledger.header)
    return {name: value for name, value in header.items() if name not in ("debt", "bound")}
