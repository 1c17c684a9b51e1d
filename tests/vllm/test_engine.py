"""Calls of a Decoder whose steps are vLLM's: what it draws, refuses and does where all fails."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

from drawn_tokens import follows
from vllm import LLM, SamplingParams
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.exceptions import VLLMValidationError
from waiting import until

import anchored
from anchored import Decoder, Pathwise
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalError, JournalReader
from anchored.decode.serving.server_options import JournalOptions
from anchored.decode.vllm import engine, offline, pair_state

from .conftest import ENGINE, opened, state_of

PROMPT = "the keeper of the lamp"
PROMPTS = [PROMPT, "salt", "salt"]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def fast(folders, journal):
    with opened(folders, rule=Pathwise(), ledgers=journal) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def settings(folders, tmp_path_factory):
    made, _ = engine.prepare(*folders, tmp_path_factory.mktemp("journal"), JournalOptions())
    return made


CALLS = [
    {"seed": [1, 2, 3], "k": [0.2, 1.0, 3.0], "max_new_tokens": 6, "repetition_penalty": 1.0},
    {"num_return_sequences": 2, "temperature": 0.9, "stop": "e", "top_p": 0.9, "seed": 1},
    {"temperature": 0.0, "max_new_tokens": 4},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_generations_are_the_decoders(fast, pair, call):
    call = {"max_new_tokens": 12, **call}
    plain = Decoder(pair, fast.rule).generate(PROMPTS, **call)
    for ours, other in zip(fast.generate(PROMPTS, **call), plain, strict=True):
        for name in ("token_ids", "text", "pieces", "prompt", "finish_reason"):
            assert getattr(ours, name) == getattr(other, name)
        assert ours.ledger.certified == other.ledger.certified == (call.get("temperature") != 0.0)
        headers = [asdict(each.ledger.header) for each in (ours, other)]
        for name in ("debt", "bound"):
            assert headers[0].pop(name) == pytest.approx(headers[1].pop(name), abs=1e-4)
        assert headers[0] == headers[1]
        assert ours.ledger.spent == pytest.approx(other.ledger.spent, abs=1e-3)
        assert anchored.verify(ours.ledger, pair).is_ok


def test_what_fails_and_what_is_refused_is_as_the_decoder_says(fast, pair):
    plain = Decoder(pair, fast.rule)
    for decoder in (fast, plain):
        good, bad = decoder.generate(["salt", [5] * 300], max_new_tokens=4, seed=1)
        assert not good.error and "exceeds the pair's context of 256" in bad.error
        with pytest.raises(ValueError, match="k must be in"):
            decoder.generate("salt", k=-1.0)
    (first,) = fast.generate("salt", max_new_tokens=4, seed=1)
    later, same = (
        decoder.generate(continue_from=first, max_new_tokens=4, seed=2)[0]
        for decoder in (fast, plain)
    )
    assert later.prompt == first.prompt + first.token_ids and later.token_ids == same.token_ids
    assert later.ledger.total_bound == pytest.approx(same.ledger.total_bound, abs=1e-4)
    with pytest.raises(ValueError, match="has `generate` and `generate_each` alone"):
        next(fast.stream("salt"))
    with pytest.raises(ValueError, match=r"rule must be Anchored.* or Pathwise"):
        anchored.vllm.open_pair("safe", "risky", anchored.NoOpt(k=1.0))
    with pytest.raises(VLLMValidationError, match=r"by anchored.vllm.open_pair or anchored serve"):
        fast.llm.generate([PROMPT], SamplingParams(), use_tqdm=False)


def test_texts_come_as_they_end_and_the_rest_is_aborted_and_ends_once_it_is_forgotten(
    fast, journal, monkeypatch
):
    monkeypatch.setattr(pair_state, "NUM_PARKED", 0)
    texts = fast.generate_each(["salt", "the keeper"], max_new_tokens=[2, 200], seed=3)
    index, first = next(texts)
    assert (index, len(first.token_ids)) == (0, 2)
    texts.close()
    assert not fast.llm.llm_engine.has_unfinished_requests()
    assert len(fast.generate(["salt"] * 64, max_new_tokens=1, seed=1)) == 64
    until(lambda: all(record.has_ended for record in JournalReader(journal).ended_records()))


def test_a_row_of_nan_ends_its_request_alone_uncertified(fast, pair, monkeypatch):
    call = {"seed": list(range(4)), "max_new_tokens": 8, "temperature": 0.9}
    alone = fast.generate([PROMPT] * 4, **call)
    model, calls = state_of(fast).model, []
    both = model.both_logits

    def broken(hidden):
        safe, risky = both(hidden)
        calls.append(len(hidden))
        if len(calls) == 9:
            risky[2] = float("nan")
        return safe, risky

    with monkeypatch.context() as patch:
        patch.setattr(model, "both_logits", broken)
        texts = fast.generate([PROMPT] * 4, **call)
    (failed,) = [text for text in texts if text.error]
    assert "no distribution" in failed.error and not failed.ledger.certified
    for text, before in zip(texts, alone, strict=True):
        drawn = len(text.token_ids) if text is failed else None
        assert text.token_ids == before.token_ids[:drawn]


def test_a_prompt_that_was_not_read_here_is_an_error_and_no_debt(fast, monkeypatch):
    """As of a graph that replays prompts: nobody saw their hidden states."""
    model = state_of(fast).model
    compute = model.compute_logits

    def unseen(hidden):
        model.hidden, rows = None, compute(hidden)
        model.last_hidden = hidden[:0]
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(model, "compute_logits", unseen)
        (text,) = fast.generate(PROMPT, max_new_tokens=8, seed=1)
    assert "its debt is not known" in text.error and not text.ledger.certified


def test_a_journal_that_cannot_be_written_fails_the_request(fast, monkeypatch):
    def full(writer, rows):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(JournalError):
        patch.setattr(JournalWriter, "steps", full)
        patch.setattr(offline, "WAIT_S", 0.1)
        fast.generate(PROMPT, max_new_tokens=8, seed=11)
    (text,) = fast.generate(PROMPT, max_new_tokens=8, seed=12)
    assert text.ledger.certified is True


def test_a_request_that_comes_back_with_a_token_of_others_draws_nothing(fast):
    state, params = state_of(fast), SamplingParams(max_tokens=8)
    data = {"req_id": "other", "prefill_token_ids": [0, 5, 9], "prompt_len": 2, "mm_features": []}
    state.add_request(3, SimpleNamespace(**data, sampling_params=params))
    assert state.slots.is_failed[3]
    state.remove_request("other")


def test_other_releases_and_an_engine_without_triton_are_refused_in_one_line(
    folders, monkeypatch, caplog
):
    """vLLM's CPU build outside of these tests: its message is twenty lines of pydantic."""
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", False)
    with pytest.raises(ImportError, match=r"finds no Triton .* Model Runner V2 requires") as error:
        anchored.vllm.open_pair(*folders)
    assert "\n" not in str(error.value)
    for release in ("0.30.2", "0.34.0"):
        monkeypatch.setattr(engine, "version", lambda name, release=release: release)
        with pytest.raises(ImportError, match=rf"vLLM {release} is not supported"):
            engine.check_version()
    monkeypatch.setattr(engine, "version", lambda name: "0.33.0")
    assert engine.check_version() == "0.33.0"
    assert caplog.messages == ["no pair was ever run in vLLM 0.33.0: its code was only read"]


def test_engine_arguments_that_cannot_go_with_a_pair_are_refused(settings, monkeypatch):
    for options in (
        {"enable_lora": True},
        {"max_model_len": 257},
        {"speculative_config": {"rejection_sample_method": "synthetic"}},
        {"compilation_config": CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL)},
    ):
        with pytest.raises(ValueError, match=r"cannot go with a pair|must be"):
            engine.engine_arguments(settings, options)
    for mode in ("FULL_AND_PIECEWISE", "NONE"):  # graphs of decodes alone
        engine.engine_arguments(settings, {"compilation_config": {"cudagraph_mode": mode}})
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT=1 cannot go with a pair"):
        engine.engine_arguments(settings, {})


def test_without_the_hook_texts_and_figures_are_the_safe_models(settings, pair):
    changes = {"max_num_seqs": 64, "max_num_batched_tokens": 1024}
    arguments = engine.engine_arguments(settings, {**ENGINE, **changes})
    llm = LLM(**{**arguments, "logits_processors": []})
    sampling = SamplingParams(max_tokens=1, temperature=1.0, logprobs=5, prompt_logprobs=1)
    prompt = pair.encode(PROMPT)
    outputs = llm.generate([{"prompt_token_ids": prompt}] * 600, sampling, use_tqdm=False)
    with torch.no_grad():
        log_probs = {
            name: model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            for name, model in pair.models.items()
        }
    drawn = torch.tensor([output.outputs[0].token_ids[0] for output in outputs])
    assert follows(drawn, log_probs["safe"][-1].double().exp())
    assert not follows(drawn, log_probs["risky"][-1].double().exp())
    for output in outputs[:50]:
        rows = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
        for row, by_token in zip(log_probs["safe"], rows, strict=True):
            told = {token: entry.logprob for token, entry in by_token.items()}
            assert told == pytest.approx({token: row[token].item() for token in told}, abs=1e-3)
    # Nobody's requests, as those by which an engine warms up, leave no ledger.
    assert list(JournalReader(settings.journal).ended_records()) == []
    llm.llm_engine.engine_core.shutdown()
