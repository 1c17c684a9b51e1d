"""What an engine refuses, what it falls back to, and what it forgets."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

from drawn_tokens import follows
from vllm import LLM, SamplingParams
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.exceptions import VLLMValidationError

import anchored
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalError
from anchored.decode.serving.server_options import JournalOptions
from anchored.decode.vllm import admission, engine, pair_state

from .conftest import ENGINE, opened, state_of

PROMPT = "the keeper of the lamp"


@pytest.fixture(scope="module")
def llm(folders, tmp_path_factory):
    with opened(folders, ledgers=tmp_path_factory.mktemp("journal")) as instance:
        yield instance


def params(number: int = 0, **changes) -> SamplingParams:
    extra = {"anchored_k": 1.5, "anchored_seed": number, **changes.pop("extra", {})}
    return SamplingParams(**{"max_tokens": 8, "temperature": 0.9, **changes}, extra_args=extra)


def test_every_field_of_sampling_params_is_looked_at():
    """A new release of vLLM with a new field fails here: honor it or refuse it."""
    fields = set(SamplingParams.__struct_fields__)
    assert fields <= admission.KNOWN
    assert admission.KNOWN - fields <= {"_watermarking_skipped"}  # 0.31 lacks it
    tables = admission.SAMPLING_NAMES, admission.ASKED, admission.AFTER_THE_TEXT, admission.NEUTRAL
    assert sum(map(len, tables)) == len(admission.KNOWN)


CHANGED = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "watermarking": True,
    "ignore_eos": True,
    "min_tokens": 2,
    "structured_outputs": SimpleNamespace(json="{}"),
    "logit_bias": {5: 1.0},
    "allowed_token_ids": [5],
    "bad_words": ["a"],
    "_bad_words_token_ids": [[5]],
    "thinking_token_budget": 3,
    "trace_decode_token_ids": [5],
}


@pytest.mark.parametrize("name", admission.NEUTRAL)
def test_what_acts_after_the_projection_is_refused(llm, name):
    sampling = params()
    admission.admit(sampling, llm.settings)
    if name in admission.ON_BY_DEFAULT and getattr(sampling, name) == CHANGED[name]:
        pytest.skip("on by default here, and without effect")
    setattr(sampling, name, CHANGED[name])
    with pytest.raises(ValueError, match=rf"{name}=.* cannot be honored"):
        admission.admit(sampling, llm.settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": {"anchored_k": -1.0}}, "k must be in"),
        ({"max_tokens": None}, "must be given"),
        ({"stop": ["a", "<|turn|>"]}, r"stop '<\|turn\|>' .* give stop_token_ids=\[2\]"),
    ],
)
def test_what_no_budget_or_end_follows_from_is_refused(llm, changes, message):
    with pytest.raises(ValueError, match=message):
        admission.admit(params(**changes), llm.settings)


def test_the_engine_answers_what_is_refused_before_it_draws(llm):
    with pytest.raises(VLLMValidationError, match="logit_bias"):
        llm.generate([PROMPT], params(logit_bias={5: 2.0}), use_tqdm=False)
    with pytest.raises(VLLMValidationError, match="unknown field kk"):
        llm.generate([PROMPT], params(extra={"anchored_kk": 2.0}), use_tqdm=False)


@pytest.mark.parametrize("release", ["0.30.2", "0.33.0", "1.0"])
def test_other_releases_are_refused_by_name(monkeypatch, release):
    monkeypatch.setattr(engine, "version", lambda name: release)
    with pytest.raises(ImportError, match=rf"vLLM {release} is not supported"):
        engine.check_version()


@pytest.mark.parametrize(
    "given",
    [
        {"enable_lora": True},
        {"pipeline_parallel_size": 2},
        {"enable_prompt_embeds": True},
        {"trust_remote_code": True},
        {"quantization": "fp8"},
        {"watermark_config": {"algorithm": "synthid"}},
        {"max_model_len": 257},
        {"speculative_config": {"rejection_sample_method": "synthetic"}},
        {"compilation_config": {"cudagraph_mode": "FULL"}},
        {"compilation_config": CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL)},
    ],
    ids=str,
)
def test_engine_arguments_that_cannot_go_with_a_pair_are_refused(llm, given):
    with pytest.raises(ValueError, match=r"cannot go with a pair|must be"):
        engine.engine_arguments(llm.settings, given)


def test_graphs_that_replay_decodes_alone_can_go_with_a_pair(llm, monkeypatch):
    for mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"):
        engine.engine_arguments(llm.settings, {"compilation_config": {"cudagraph_mode": mode}})
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT=1 cannot go with a pair"):
        engine.engine_arguments(llm.settings, {})


def test_a_prompt_that_was_not_read_here_is_an_error_and_no_debt(llm, monkeypatch):
    """As of a graph that replays prompts: nobody saw their hidden states."""
    model = state_of(llm).model
    compute = model.compute_logits

    def unseen(hidden):
        model.hidden, rows = None, compute(hidden)
        model.last_hidden = hidden[:0]
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(model, "compute_logits", unseen)
        (output,) = llm.generate([PROMPT], params(), use_tqdm=False)
    assert "its debt is not known" in output.anchored["error"]
    assert not output.anchored["certified"]


def test_requests_by_which_the_engine_warms_up_leave_no_ledger(llm, monkeypatch):
    files = list(Path(llm.settings.journal).iterdir())
    before = [file.read_bytes() for file in files]
    with monkeypatch.context() as patch:
        patch.setattr(pair_state, "WARM_UP", ("",))  # which every id begins with
        with pytest.raises(JournalError):
            llm.generate([PROMPT], params(), use_tqdm=False)
    assert [file.read_bytes() for file in files] == before


def test_a_row_of_nan_ends_its_request_alone_uncertified(llm, monkeypatch):
    alone = llm.generate([PROMPT] * 4, [params(n) for n in range(4)], use_tqdm=False)
    model = state_of(llm).model
    both, calls = model.both_logits, []

    def broken(hidden):
        safe, risky = both(hidden)
        calls.append(len(hidden))
        if len(calls) == 9:
            risky[2] = float("nan")
        return safe, risky

    with monkeypatch.context() as patch:
        patch.setattr(model, "both_logits", broken)
        outputs = llm.generate([PROMPT] * 4, [params(n) for n in range(4)], use_tqdm=False)
    (failed,) = [output for output in outputs if not output.anchored["certified"]]
    assert "no distribution" in failed.anchored["error"]
    for output, before in zip(outputs, alone, strict=True):
        if output is not failed:
            assert output.outputs[0].token_ids == before.outputs[0].token_ids
        else:
            drawn = output.outputs[0].token_ids[:-1]
            assert drawn == before.outputs[0].token_ids[: len(drawn)]


def test_a_journal_that_cannot_be_written_fails_the_request(llm, monkeypatch):
    append, num_lines = JournalWriter._append, 0

    def full_after_three(writer, line):
        nonlocal num_lines
        num_lines += 1
        if num_lines > 3:
            raise OSError("no space left on device")
        append(writer, line)

    with monkeypatch.context() as patch, pytest.raises(JournalError):
        patch.setattr(JournalWriter, "_append", full_after_three)
        llm.generate([PROMPT], params(11), use_tqdm=False)
    (output,) = llm.generate([PROMPT], params(12), use_tqdm=False)
    assert output.anchored["certified"] is True


def test_a_call_may_have_more_requests_than_records_are_remembered(llm, monkeypatch):
    """As many as run at once are enough: results are compared as they end."""
    monkeypatch.setattr(llm._journal, "_num_kept", ENGINE["max_num_seqs"])
    count = 2 * ENGINE["max_num_seqs"]
    sampling = [params(number, max_tokens=1) for number in range(count)]
    before = [record.request_id for record in llm._journal.records()]
    outputs = llm.generate([PROMPT] * count, sampling, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1] * count
    assert all(output.anchored["certified"] for output in outputs)
    assert [record.request_id for record in llm._journal.records()] == before


def test_greedy_texts_say_that_nothing_bounds_them(llm, pair):
    (output,) = llm.generate([PROMPT], params(temperature=0.0), use_tqdm=False)
    assert output.anchored["certified"] is False
    decoder = anchored.Decoder(pair, anchored.Anchored(k=1.5), level="token")
    (result,) = decoder.generate(
        [PROMPT], max_new_tokens=8, temperature=0.0, repetition_penalty=1.0
    )
    assert list(output.outputs[0].token_ids) == result.token_ids


@pytest.mark.parametrize(
    ("token_ids", "changes"),
    [([0, 5], {"logit_bias": {5: 2.0}}), ([0, 5, 9], {})],
    ids=["came past the front end", "came back with a token that is not ours"],
)
def test_a_request_that_cannot_be_draws_nothing(llm, token_ids, changes):
    state = state_of(llm)
    data = SimpleNamespace(
        req_id="other",
        prefill_token_ids=token_ids,
        prompt_len=2,
        sampling_params=params(**changes),
        mm_features=[],
    )
    state.add_request(3, data)
    assert state.slots.is_failed[3]
    state.remove_request("other")


def test_without_the_hook_texts_and_figures_are_the_safe_models(folders, pair, tmp_path):
    settings, _ = engine.prepare(*folders, anchored.Anchored(k=1.0), tmp_path, JournalOptions())
    changes = {"max_num_seqs": 64, "max_num_batched_tokens": 1024}
    given = engine.engine_arguments(settings, {**ENGINE, **changes})
    llm = LLM(**{**given, "logits_processors": []})
    sampling = SamplingParams(
        max_tokens=1, temperature=1.0, logprobs=5, prompt_logprobs=1, seed=None
    )
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
    figures = [
        (
            entry.logprob,
            log_probs["safe"][place, token].item(),
            log_probs["risky"][place, token].item(),
        )
        for output in outputs[:50]
        for place, by_token in [
            (len(prompt) - 1, output.outputs[0].logprobs[0]),
            *((at - 1, entries) for at, entries in enumerate(output.prompt_logprobs) if entries),
        ]
        for token, entry in by_token.items()
    ]
    assert all(abs(served - safe) < 1e-3 for served, safe, _ in figures)
    assert not any(served == risky for served, _, risky in figures)
    llm.llm_engine.engine_core.shutdown()
