"""Tokens and ledgers of a pair in vLLM's CPU build are the Decoder's: tests/gpu has the same."""

from dataclasses import fields

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import torch
from vllm_pair import KINDS, assert_same_as_decoder, opened

import anchored
from anchored import Anchored, Decoder, Pathwise
from anchored.decode.vllm.pair_state import PairState

from .conftest import ENGINE, state_of


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


PROMPTS = ["the keeper of the lamp", "salt", "salt"]
CALLS = [
    {"max_new_tokens": 12, "seed": 7},
    {"seed": [1, 2, 3], "k": [0.2, 1.0, 3.0], "max_new_tokens": 6, "repetition_penalty": 1.0},
    {
        "num_return_sequences": 2,
        "temperature": 0.9,
        "stop": "e",
        "max_new_tokens": 12,
        "top_p": 0.9,
    },
    {"temperature": 0.0, "max_new_tokens": 4},
]


@pytest.fixture(scope="module", params=[Anchored(k=1.0), Pathwise()], ids=lambda rule: rule.name)
def fast(folders, tmp_path_factory, request):
    ledgers = tmp_path_factory.mktemp("journal")
    with opened(folders, rule=request.param, ledgers=ledgers, **ENGINE) as decoder:
        yield decoder


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_generations_are_the_decoders(fast, pair, call):
    plain = Decoder(pair, fast.rule).generate(PROMPTS, **call)
    for ours, other in zip(fast.generate(PROMPTS, **call), plain, strict=True):
        assert (ours.token_ids, ours.text, ours.pieces) == (
            other.token_ids,
            other.text,
            other.pieces,
        )
        assert (ours.prompt, ours.finish_reason) == (other.prompt, other.finish_reason)
        assert ours.ledger.certified == other.ledger.certified
        headers = [vars_of(each.ledger.header) for each in (ours, other)]
        for name in ("debt", "bound"):
            assert headers[0].pop(name) == pytest.approx(headers[1].pop(name), abs=1e-4)
        assert headers[0] == headers[1]
        assert ours.ledger.spent == pytest.approx(other.ledger.spent, abs=1e-3)
        assert anchored.verify(ours.ledger, pair).is_ok


def vars_of(header):
    return {field.name: getattr(header, field.name) for field in fields(header)}


def test_what_fails_and_what_is_refused_is_as_the_decoder_says(fast, pair):
    plain = Decoder(pair, fast.rule)
    long = [5] * 300
    for decoder in (fast, plain):
        good, bad = decoder.generate(["salt", long], max_new_tokens=4)
        assert not good.error and "exceeds the pair's context of 256" in bad.error
        with pytest.raises(ValueError, match="unknown sampling setting 'max_tokens'"):
            decoder.generate("salt", max_tokens=4)
        with pytest.raises(ValueError, match="k must be in"):
            decoder.generate("salt", k=-1.0)
    (first,) = fast.generate("salt", max_new_tokens=4)
    (later,) = fast.generate(continue_from=first, max_new_tokens=4)
    assert later.prompt == first.prompt + first.token_ids
    (same,) = plain.generate(continue_from=first, max_new_tokens=4)
    assert later.token_ids == same.token_ids
    assert later.ledger.total_bound == pytest.approx(same.ledger.total_bound, abs=1e-4)
    with pytest.raises(ValueError, match="has `generate` and `generate_each` alone"):
        next(fast.stream("salt"))
    with pytest.raises(ValueError, match=r"rule must be Anchored.* or Pathwise"):
        anchored.vllm.open_pair("safe", "risky", anchored.NoOpt(k=1.0))


def test_a_prompt_whose_logits_are_nan_fails_its_request(fast, pair, monkeypatch):
    model = state_of(fast.llm).model
    both = model.both_logits

    def broken(hidden):
        safe, risky = both(hidden)
        return safe, torch.full_like(risky, torch.nan)

    with monkeypatch.context() as patch:
        patch.setattr(model, "both_logits", broken)
        (failed,) = fast.generate("the keeper", max_new_tokens=4)
    assert "no distribution" in failed.error and failed.token_ids == []
    assert not failed.ledger.certified and anchored.verify(failed.ledger, pair)
    (later,) = fast.generate("the keeper", max_new_tokens=4)
    assert not later.error and later.ledger.certified


def test_texts_are_given_as_they_end_and_the_rest_is_aborted(fast):
    asked = fast.generate_each(["salt", "the keeper"], max_new_tokens=[2, 200], seed=3)
    index, first = next(asked)
    assert (index, len(first.token_ids)) == (0, 2)
    asked.close()
    assert not fast.llm.llm_engine.has_unfinished_requests()
    assert fast.llm._awaited == set() and fast.llm._ended == {}


def test_an_engine_without_triton_is_refused_in_one_line(folders, monkeypatch):
    """vLLM's CPU build outside of these tests: its own message is twenty lines of pydantic."""
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    with pytest.raises(ImportError, match=r"finds no Triton .* Model Runner V2 requires") as error:
        anchored.vllm.open_pair(*folders)
    assert "\n" not in str(error.value)
