"""What a client may expect of either engine: import all, and give a fixture `served`."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from waiting import HANG_S

from anchored import Anchored, Decoder, Generation, ModelPair, Pathwise, verify
from anchored.decode.serving.journal_reader import journal_ledgers

PROMPTS = ["the keeper of the lamp", "import math", "Nine tides ago, the harbour bell", "salt"]
LENGTH = 12
MOST_K, MOST_TOKENS = 4.0, 100
"""Limits of a server under contract."""
RULES = {
    "anchored": Anchored(k=1.5),
    "pathwise": Pathwise(),
}
"""Rules of servers under contract, by name."""
KINDS = {
    "anchored": (
        {},
        {"k": 0.3},
        {"k": 3.0},
        {"K": 10.0},
        {"k": 1.0, "divergence": "max"},
        {"k": 2.0, "bank": 1.0},
    ),
    "pathwise": (
        {},
        {"k": 0.3},
        {"k": 0.0, "bank": 6.0},
        {"K": 10.0},
        {"k": 3.0, "bank": 0.0},
        {"bank": 2.0},
    ),
}
"""Budgets that requests ask for, by the name of the server's rule."""
WARPERS = (
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 40, "repetition_penalty": 1.2},
)


@dataclass(frozen=True)
class Served:
    """A server, the pair that it serves, and its rule."""

    client: openai.OpenAI
    pair: ModelPair
    rule: Anchored | Pathwise
    journal: Path
    template: str
    """Of chats, with {} for the content of one message."""

    def decoded(self, prompt: Any, nats: dict[str, Any], **options: Any) -> Generation:
        """The text as `Decoder.generate` makes it."""
        (result,) = self.samples(prompt, nats, **options)
        return result

    def samples(self, prompt: Any, nats: dict[str, Any], **options: Any) -> list[Generation]:
        """The texts as `Decoder.generate` makes them."""
        if self.rule.name == "pathwise" and "K" in nats:
            nats = {"k": 0.0, "bank": nats["K"]}
        if "K" in nats:
            nats = {"k": None, **nats}
        decoder = Decoder(self.pair, replace(self.rule, **nats), level="token")
        settings = {"repetition_penalty": 1.0, "max_new_tokens": LENGTH, **options}
        return decoder.generate([prompt], **settings)


def answered(endpoint: Any, *, stream: bool = False, **request: Any) -> tuple[list[int], str, Any]:
    """(token ids, the text, what was said of the spend)"""
    body = {"return_token_ids": True, **request.pop("body", {})}
    request = {"model": "anchored", "max_tokens": LENGTH, **request}
    answer = endpoint.create(stream=stream, extra_body=body, **request)
    token_ids, text, figures = [], "", None
    for part in answer if stream else [answer]:
        choice = part.choices[0]
        token_ids += getattr(choice, "token_ids", None) or []
        said = getattr(choice, "delta", None) or getattr(choice, "message", None)
        text += (choice.text if said is None else said.content) or ""
        figures = getattr(part, "anchored", None) or figures
    return token_ids, text, figures


@pytest.mark.parametrize("stream", [False, True])
def test_completions_are_the_decoders_and_say_what_they_spent(served, stream):
    kinds = KINDS[served.rule.name]

    def complete(number: int):
        warpers = dict(WARPERS[number % len(WARPERS)])
        temperature = warpers.pop("temperature")
        asked = {**kinds[number % len(kinds)], "seed": number}
        return answered(
            served.client.completions,
            stream=stream,
            prompt=PROMPTS[number % len(PROMPTS)],
            temperature=temperature,
            body={**warpers, "anchored": asked},
        )

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(complete, range(18)))
    ledgers = dict(journal_ledgers(served.journal))
    for number, (token_ids, text, figures) in enumerate(answers):
        prompt, warpers = PROMPTS[number % len(PROMPTS)], WARPERS[number % len(WARPERS)]
        result = served.decoded(prompt, kinds[number % len(kinds)], seed=number, **warpers)
        assert token_ids == result.token_ids
        assert text == result.text
        header = result.ledger.header
        assert figures["certified"] is True
        assert (figures["k"], figures["K"], figures.get("bank")) == (
            header.k,
            header.K,
            header.bank,
        )
        assert figures["debt"] == pytest.approx(header.debt, abs=1e-4)
        assert figures["spent"] == pytest.approx(result.ledger.spent, abs=1e-3)
        assert figures["spent"] <= figures["bound"]
        assert figures["charge"] == header.charge
        is_drawn = served.rule.name == "pathwise"
        assert figures.get("times_as_likely") == (
            pytest.approx(math.exp(figures["spent"])) if is_drawn else None
        )
        assert ledgers[figures["id"]].spent == figures["spent"]
    spends = [step.spend for ledger in ledgers.values() for step in ledger.steps]
    assert any(spend < 0.0 for spend in spends) is is_drawn


@pytest.mark.parametrize("stream", [False, True])
def test_chats_are_the_decoders(served, stream):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    body = {"vllm_xargs": {"anchored_k": 2.0, "anchored_seed": 5}}
    request = {"messages": messages, "temperature": 0.8, "body": body}
    token_ids, text, figures = answered(served.client.chat.completions, stream=stream, **request)
    templated = served.template.format(PROMPTS[0])
    prompt = served.pair.tokenizer(templated, add_special_tokens=False)["input_ids"]
    result = served.decoded(prompt, {"k": 2.0}, seed=5, temperature=0.8)
    assert token_ids == result.token_ids
    assert text == result.text
    assert figures["k"] == 2.0
    assert figures["certified"] is True


def test_lm_eval_generates_by_the_server(served, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    served.pair.tokenizer.save_pretrained(tmp_path)
    model = LocalCompletionsAPI(
        base_url=f"{served.client.base_url}completions",
        model="anchored",
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
        tokenized_requests=False,
        seed=7,
    )
    wishes = {"until": ["e"], "max_gen_toks": LENGTH, "temperature": 0.8, "do_sample": True}
    asked = [Instance("generate_until", {}, (p, wishes), n) for n, p in enumerate(PROMPTS)]
    for prompt, text in zip(PROMPTS, model.generate_until(asked, disable_tqdm=True), strict=True):
        settings = {"seed": 7, "stop": "e", "temperature": 0.8, "max_new_tokens": LENGTH}
        assert text == served.decoded(prompt, {}, **settings).text


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_cuts_the_text_where_the_decoder_does(served, stream):
    ended, stop = [], ["e", "no such text", "<|turn|>"]
    for seed in range(6):
        request = {"prompt": PROMPTS[0], "stop": stop, "temperature": 1.0}
        _, text, figures = answered(
            served.client.completions,
            stream=stream,
            max_tokens=40,
            body={"anchored": {"k": 3.0, "seed": seed}},
            **request,
        )
        settings = {"seed": seed, "stop": stop, "temperature": 1.0, "max_new_tokens": 40}
        result = served.decoded(PROMPTS[0], {"k": 3.0}, **settings)
        assert text == result.text
        assert figures["certified"] is True
        ended.append(result.finish_reason)
    assert "stop_string" in ended


REFUSED = [
    {"anchored": {"k": 4.5}},
    {"anchored": {"K": 1000.0}},
    {"anchored": {"k": 1.0, "K": 2.0}},
    {"anchored": {"debt": -1.0}},
    {"anchored": {"kk": 1.0}},
    {"anchored": {"divergence": "tv"}},
    {"anchored": {"seed": -1}},
    {"anchored": {"client_id": "a b"}},
    {"anchored": {"passage": "salt"}},
    {"anchored": [1.0]},
    {"vllm_xargs": {"anchored_k": "much"}},
    {"max_tokens": MOST_TOKENS + 1},
    {"logit_bias": {"5": 3.0}},
    {"min_tokens": 3},
    {"presence_penalty": 0.5},
    {"n": 0},
    {"n": 257},
    {"logprobs": 21},
    {"tools": [{"type": "function"}]},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"use_beam_search": True},
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"stop": "a<|turn|>"},
    {"prompt": [1, 10_000]},
]


@pytest.mark.parametrize("wrong", REFUSED, ids=json.dumps)
def test_what_cannot_be_honored_is_answered_400(served, wrong):
    with pytest.raises(openai.BadRequestError) as refused:
        served.client.completions.create(
            model="anchored", prompt="salt", extra_body={"max_tokens": 4, **wrong}
        )
    assert "\n" not in refused.value.body["message"]


def test_endpoints_that_nobody_looked_at_are_not_served(served):
    with pytest.raises(openai.NotFoundError):
        served.client.responses.create(model="anchored", input="salt")


def test_another_model_is_not_there(served):
    assert [model.id for model in served.client.models.list()] == ["anchored"]
    with pytest.raises(openai.NotFoundError):
        served.client.completions.create(model="other", prompt="salt", max_tokens=1)


def test_a_client_can_only_raise_the_debt(served):
    def owed(debt: float) -> dict:
        body = {"anchored": {"k": 2.0, "seed": 1, "debt": debt}}
        return answered(served.client.completions, prompt=PROMPTS[0], body=body)[2]

    plain, more = owed(0.0), owed(9.0)
    assert plain["debt"] > 0.0
    total = 24.0 + (served.rule.bank or 0.0)
    assert plain["bound"] == total - plain["debt"]
    assert (more["debt"], more["bound"]) == (9.0, total - 9.0)


def test_a_greedy_text_is_the_decoders_and_certifies_nothing(served):
    _, text, figures = answered(
        served.client.completions,
        prompt=PROMPTS[2],
        temperature=0.0,
        body={"anchored": {"k": 1.0}},
    )
    result = served.decoded(PROMPTS[2], {"k": 1.0}, temperature=0.0)
    assert text == result.text
    assert figures["certified"] is False


def test_texts_of_one_request_are_told_apart(served):
    answer = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[:3],
        max_tokens=LENGTH,
        temperature=0.8,
        extra_body={"anchored": {"k": 2.0, "seed": 3}},
    )
    assert "anchored" not in (answer.model_extra or {})
    for place, choice in enumerate(answer.choices):
        result = served.decoded(PROMPTS[place], {"k": 2.0}, seed=3, temperature=0.8)
        assert choice.index == place and choice.text == result.text
        assert choice.anchored["id"].startswith(f"{answer.id}-{place}")
        assert choice.anchored["spent"] == pytest.approx(result.ledger.spent, abs=1e-3)


def test_samples_of_a_prompt_are_those_of_generate(served):
    answer = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[:2],
        n=2,
        max_tokens=LENGTH,
        temperature=0.8,
        extra_body={"anchored": {"k": 2.0, "seed": 3}},
    )
    for place, prompt in enumerate(PROMPTS[:2]):
        settings = {"seed": 3, "temperature": 0.8, "num_return_sequences": 2}
        samples = served.samples(prompt, {"k": 2.0}, **settings)
        choices = answer.choices[2 * place : 2 * place + 2]
        assert [choice.text for choice in choices] == [sample.text for sample in samples]
    num_read = sum(len(served.pair.encode(prompt)) for prompt in PROMPTS[:2])
    assert answer.usage.prompt_tokens == num_read


def test_a_text_goes_on_after_its_end_where_a_client_asks_for_it(served):
    request = {"prompt": PROMPTS[0], "temperature": 2.0, "max_tokens": MOST_TOKENS}
    plain: list[int] = [0] * MOST_TOKENS
    for seed in range(6):  # the texts of most seeds end before their length
        if len(plain) == MOST_TOKENS:
            body = {"anchored": {"k": 3.0, "seed": seed}}
            plain, _, _ = answered(served.client.completions, body=body, **request)
    assert len(plain) < MOST_TOKENS
    body = {**body, "ignore_eos": True}
    longer, _, figures = answered(served.client.completions, body=body, **request)
    assert len(longer) == MOST_TOKENS and longer[: len(plain)] == plain
    assert figures["certified"] is True and figures["spent"] <= figures["bound"]
    ledger = dict(journal_ledgers(served.journal))[figures["id"]]
    assert verify(ledger, served.pair).failures == []


def log_probs_of(served: Served, token_ids: list[int]) -> torch.Tensor:
    """(T - 1, V) log-probabilities of the safe model after each prefix."""
    with torch.no_grad():
        return served.pair.safe(torch.tensor([token_ids])).logits[0, :-1].log_softmax(-1)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_the_safe_models_of_the_prompt_too(served, stream):
    answer = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[0],
        max_tokens=3,
        logprobs=5,
        echo=True,
        stream=stream,
        extra_body={"anchored": {"k": 4.0, "seed": 11}, "return_token_ids": True},
    )
    choices = [part.choices[0] for part in (answer if stream else [answer])]
    told = [choice.logprobs for choice in choices if choice.logprobs]
    drawn = [token for choice in choices for token in choice.token_ids]
    token_ids = [*served.pair.encode(PROMPTS[0]), *drawn]
    log_probs = log_probs_of(served, token_ids)
    first, *values = [value for each in told for value in each.token_logprobs]
    assert first is None
    expected = log_probs.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
    assert values == pytest.approx(expected, abs=1e-3)
    _, *top = [place for each in told for place in each.top_logprobs]
    for place, row in zip(top, log_probs, strict=True):
        likeliest = row.topk(5).values.tolist()
        assert max(place.values()) == pytest.approx(likeliest[0], abs=1e-3)
    text = "".join(choice.text for choice in choices)
    assert text.startswith(PROMPTS[0])
    tokens = [token for each in told for token in each.tokens]
    offsets = [offset for each in told for offset in each.text_offset]
    assert (tokens[0], offsets[0]) == ("<|begin|>", 0)
    for token, offset in zip(tokens[1:], offsets[1:], strict=True):
        assert token.startswith(("bytes:", "<|")) or text[offset:].startswith(token)


def test_a_chat_tells_log_probabilities_and_goes_on_with_its_own_messages(served):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    for _ in range(3):
        answer = served.client.chat.completions.create(
            model="anchored",
            messages=messages,
            max_tokens=4,
            logprobs=True,
            top_logprobs=2,
            n=None,
            presence_penalty=None,
            extra_body={"tools": [], "echo": None},
        )
        (choice,) = answer.choices
        told = choice.logprobs.content
        assert [len(place.top_logprobs) for place in told] == [2] * len(told)
        said = choice.message.model_dump()
        heard = bytes(byte for place in told for byte in place.bytes).decode("utf-8", "replace")
        assert heard == said["content"]
        assert said["refusal"] is None
        messages += [{**said, "name": None}, {"role": "user", "content": PROMPTS[1]}]


def test_a_begun_answer_goes_on_whether_that_is_said_or_not(served):
    begun = {"role": "assistant", "content": "salt and"}
    messages = [{"role": "user", "content": PROMPTS[0]}, begun]
    said = {"add_generation_prompt": False, "continue_final_message": True}
    texts = {
        answered(served.client.chat.completions, messages=messages, body={**body, "seed": 5})[1]
        for body in ({}, said)
    }
    assert len(texts) == 1
    with pytest.raises(openai.BadRequestError):
        answered(served.client.chat.completions, messages=messages[:1], body=said)


def test_each_part_of_a_stream_counts_where_a_client_asks_for_it(served):
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[0],
        max_tokens=LENGTH,
        stream=True,
        stream_options=options,
        extra_body={"ignore_eos": True},
    )
    counts = [part.usage.completion_tokens for part in parts]
    assert counts == sorted(counts) and counts[-1] == LENGTH


def test_a_prompt_becomes_tokens_and_text_again(served):
    def asked(path: str, **body: Any) -> Any:
        address = str(served.client.base_url).removesuffix("/v1/")
        return httpx.post(f"{address}{path}", json=body, timeout=HANG_S)

    said = asked("/tokenize", model="anchored", prompt=PROMPTS[0]).json()
    assert said["tokens"] == served.pair.encode(PROMPTS[0])
    assert said["count"] == len(said["tokens"]) and said["max_model_len"] == 256
    assert asked("/detokenize", tokens=said["tokens"]).json() == {"prompt": PROMPTS[0]}
    chat = asked("/tokenize", messages=[{"role": "user", "content": "salt"}]).json()
    text = served.template.format("salt")
    assert chat["tokens"] == served.pair.tokenizer(text, add_special_tokens=False)["input_ids"]
    for path, body in (("/tokenize", {"prompt": 3}), ("/detokenize", {"tokens": [10_000]})):
        assert asked(path, **body).status_code == 400


def test_every_answer_has_an_id(served):
    raw = served.client.completions.with_raw_response.create(
        model="anchored", prompt=PROMPTS[0], max_tokens=1
    )
    assert raw.headers["x-request-id"].startswith("req-")
    assert raw.parse()._request_id == raw.headers["x-request-id"]
