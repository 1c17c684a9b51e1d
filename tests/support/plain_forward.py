"""The figures that a ledger should record: forwards of one text alone, without cache or padding."""

import pytest
import torch

from anchored import Generation, Ledger, ModelPair
from anchored.decode.settings import SamplingConfig
from anchored.decode.warpers import Warpers


@torch.inference_mode()
def plain_log_probs(pair: ModelPair, ledger: Ledger) -> list[float]:
    """log p_s of the ledger's tokens under its warpers, in nats."""
    warpers = Warpers(SamplingConfig(**ledger.header.sampling), pair.stop_token_ids)
    text, log_probs = list(ledger.header.prompt_token_ids), []
    for step in ledger.steps:
        logits = pair.safe(torch.tensor([text]), use_cache=False).logits[:, -1, : pair.vocab_size]
        seen = torch.zeros(logits.shape, dtype=torch.bool)
        seen[0, text] = True
        log_probs.append(warpers(logits, seen).double().log_softmax(-1)[0, step.token_id].item())
        text.append(step.token_id)
    return log_probs


def assert_recorded(pair: ModelPair, result: Generation) -> None:
    """The ledger holds them, up to the rounding of float32."""
    recorded = [step.safe_log_prob for step in result.ledger.steps]
    assert recorded == pytest.approx(plain_log_probs(pair, result.ledger), abs=1e-4, rel=0)
