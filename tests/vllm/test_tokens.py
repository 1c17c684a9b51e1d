"""A pair in vLLM draws the Decoder's tokens, and its journal becomes ledgers that verify."""

import gc

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import torch
from tiny_models import FAMILIES
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config
from vllm_requests import requests_of, run

import anchored
from anchored.decode.serving.journal_reader import journal_ledgers

from .conftest import SIZES, opened, state_of


def check(ended, pair, folder) -> None:
    compared = [(request, tokens, request.decoded(pair).token_ids) for request, tokens in ended]
    assert [each for each in compared if each[1] != each[2]] == []
    ledgers = dict(journal_ledgers(folder))
    assert all(ledger.certified and ledger.is_within_bound for ledger in ledgers.values())
    failures = {
        name: anchored.verify(journalled, pair).failures for name, journalled in ledgers.items()
    }
    assert {name: reasons for name, reasons in failures.items() if reasons} == {}


def test_two_hundred_mixed_requests_with_chunks_a_prefix_cache_and_aborts(folders, pair, tmp_path):
    with opened(folders, ledgers=tmp_path, enable_prefix_caching=True) as llm:
        requests = requests_of(pair.tokenizer, 204)
        ended = run(llm, requests, aborts_at=(20, 40))
        file = state_of(llm).recorder._journal._file
    gc.collect()
    assert file.closed  # an engine that was shut down holds nothing
    assert len(ended) == 200
    check(ended, pair, tmp_path)


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
    rule = anchored.Anchored(k=1.5, debt="none")
    with opened(
        folders,
        rule=rule,
        ledgers=tmp_path / "journal",
        enable_prefix_caching=True,
    ) as llm:
        state, cached = state_of(llm), []
        add = state.add_request

        def counted(slot, data):
            cached.append(data.num_computed_tokens)
            add(slot, data)

        state.add_request = counted
        ended = run(llm, requests_of(tokenizer, 30, rule))
    assert len(ended) == 30
    assert max(cached) >= 32
    check(ended, pair, tmp_path / "journal")
