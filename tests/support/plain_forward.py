"""The figures that ledgers should record: those of plain forwards, and of another way to decode."""

from collections.abc import Sequence

import pytest
import torch

from anchored import Generation, Ledger, ModelPair
from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers


@torch.inference_mode()
def plain_log_probs(pair: ModelPair, ledger: Ledger) -> list[float]:
    """log p_s of the ledger's tokens under its warpers, in nats, without cache or padding."""
    warpers = Warpers(SamplingConfig(**ledger.header.sampling), pair.stop_token_ids)
    text, log_probs = list(ledger.header.prompt_token_ids), []
    for step in ledger.steps:
        logits = pair.safe(torch.tensor([text]), use_cache=False).logits[:, -1, : pair.vocab_size]
        seen = torch.zeros(logits.shape, dtype=torch.bool)
        seen[0, text] = True
        log_probs.append(warpers(logits, seen).double().log_softmax(-1)[0, step.token_id].item())
        text.append(step.token_id)
    return log_probs


def assert_recorded(pair: ModelPair, result: Generation, *, rounding: float = 1e-4) -> None:
    """The ledger holds them, up to the rounding of float32, in nats."""
    recorded = [step.safe_log_prob for step in result.ledger.steps]
    assert recorded == pytest.approx(plain_log_probs(pair, result.ledger), abs=rounding, rel=0)


def assert_same(expected: Sequence[Generation], actual: Sequence[Generation]) -> None:
    """Equal texts, and figures that differ by rounding alone."""
    for plain, result in zip(expected, actual, strict=True):
        assert result.token_ids == plain.token_ids and result.error == plain.error
        assert result.text == plain.text and result.finish_reason == plain.finish_reason
        assert result.ledger.is_within_bound and result.ledger.certified == plain.ledger.certified
        for left, right in zip(result.ledger.steps, plain.ledger.steps, strict=True):
            assert left.accepted == right.accepted
            for figure in ("budget", "spend", "weight", "log_prob", "safe_log_prob"):
                assert getattr(left, figure) == pytest.approx(getattr(right, figure), abs=1e-5)
