"""What a client may expect of either engine: import all, and give a fixture `served`."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
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
RULES = {"anchored": Anchored(k=1.5), "pathwise": Pathwise()}
"""Rules of servers under contract, by name."""
KINDS = {
    "anchored": ({}, {"K": 10.0}, {"k": 1.0, "divergence": "max"}, {"k": 2.0, "bank": 1.0}),
    "pathwise": ({}, {"K": 10.0}, {"k": 0.0, "bank": 6.0}, {"bank": 2.0}),
}
"""Budgets that requests ask for, by the name of the server's rule."""
WARPERS = ({}, {"top_p": 0.9}, {"top_k": 40, "repetition_penalty": 1.2, "temperature": 1.2})


@dataclass(frozen=True)
class Served:
    """A server, the pair that it serves, and its rule."""

    client: openai.OpenAI
    pair: ModelPair
    rule: Anchored | Pathwise
    journal: Path
    template: str
    """Of chats, with {} for the content of one message."""

    def decoded(self, prompts: Any, nats: dict[str, Any], **options: Any) -> list[Generation]:
        """The texts as `Decoder.generate` makes them."""
        if self.rule.name == "pathwise" and "K" in nats:
            nats = {"k": 0.0, "bank": nats["K"]}
        nats = {"k": None, **nats} if "K" in nats else nats
        decoder = Decoder(self.pair, replace(self.rule, **nats), level="token")
        settings = {"temperature": 0.8, "repetition_penalty": 1.0, "max_new_tokens": LENGTH}
        return decoder.generate(prompts, **{**settings, **options})

    def answered(
        self, *, chat: bool = False, stream: bool = False, **body: Any
    ) -> tuple[list[int], str, Any]:
        """(token ids, the text, what was said of the spend) of a request with these fields"""
        body = {"return_token_ids": True, "max_tokens": LENGTH, "temperature": 0.8, **body}
        content = {name: body.pop(name) for name in ("prompt", "messages") if name in body}
        endpoint = self.client.chat.completions if chat else self.client.completions
        answer = endpoint.create(model="anchored", stream=stream, extra_body=body, **content)
        token_ids, text, figures = [], "", None
        for part in answer if stream else [answer]:
            choice = part.choices[0]
            token_ids += getattr(choice, "token_ids", None) or []
            said = getattr(choice, "delta", None) or getattr(choice, "message", None)
            text += (choice.text if said is None else said.content) or ""
            figures = getattr(part, "anchored", None) or figures
        return token_ids, text, figures


def test_completions_are_the_decoders_and_say_what_they_spent(served):
    kinds = list(product(KINDS[served.rule.name], WARPERS))

    def complete(number: int) -> tuple[list[int], str, Any]:
        nats, warpers = kinds[number]
        more = {"anchored": {**nats, "seed": number}, "stream": number % 2 == 1}
        return served.answered(prompt=PROMPTS[number % 4], **warpers, **more)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(complete, range(len(kinds))))
    ledgers = dict(journal_ledgers(served.journal))
    is_drawn = served.rule.name == "pathwise"
    for number, (token_ids, text, figures) in enumerate(answers):
        nats, warpers = kinds[number]
        (result,) = served.decoded([PROMPTS[number % 4]], nats, seed=number, **warpers)
        assert (token_ids, text) == (result.token_ids, result.text)
        header, spent = result.ledger.header, figures["spent"]
        names = ("k", "K", "bank", "charge")
        assert [figures.get(name) for name in names] == [getattr(header, name) for name in names]
        assert figures["debt"] == pytest.approx(header.debt, abs=1e-4)
        assert spent == pytest.approx(result.ledger.spent, abs=1e-3)
        assert spent == ledgers[figures["id"]].spent <= figures["bound"]
        assert figures["certified"] is True
        likely = pytest.approx(math.exp(spent)) if is_drawn else None
        assert figures.get("times_as_likely") == likely
    spends = [step.spend for ledger in ledgers.values() for step in ledger.steps]
    assert any(spend < 0.0 for spend in spends) is is_drawn


def test_chats_are_the_decoders(served):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    templated = served.template.format(PROMPTS[0])
    prompt = served.pair.tokenizer(templated, add_special_tokens=False)["input_ids"]
    (result,) = served.decoded([prompt], {"k": 2.0}, seed=5)
    nats = {"k": 2.0, "seed": 5}
    for stream in (False, True):
        answer = served.answered(chat=True, stream=stream, messages=messages, anchored=nats)
        assert answer[:2] == (result.token_ids, result.text)
        assert answer[2]["k"] == 2.0 and answer[2]["certified"] is True


def test_a_stop_cuts_the_text_where_the_decoder_does(served):
    stop, length = ["e", "no such text", "<|turn|>"], 40
    prompts, seeds = [PROMPTS[0]] * 4, list(range(4))
    expected = served.decoded(prompts, {}, seed=seeds, stop=stop, max_new_tokens=length)
    assert "stop_string" in {result.finish_reason for result in expected}
    for seed, result in zip(seeds, expected, strict=True):
        body = {"prompt": PROMPTS[0], "stop": stop, "seed": seed, "max_tokens": length}
        _, text, figures = served.answered(stream=seed % 2 == 0, **body)
        assert text == result.text and figures["certified"] is True


def test_what_cannot_be_honored_or_is_not_there_is_refused_in_one_line(served):
    too_many = {"max_tokens": MOST_TOKENS + 1}
    for wrong in ({"anchored": {"k": MOST_K + 0.5}}, too_many, {"prompt": [1, 10_000]}):
        with pytest.raises(openai.BadRequestError) as refused:
            served.answered(**{"prompt": "salt", **wrong})
        assert "\n" not in refused.value.body["message"]
    assert [model.id for model in served.client.models.list()] == ["anchored"]
    with pytest.raises(openai.NotFoundError):
        served.client.responses.create(model="anchored", input="salt")
    with pytest.raises(openai.NotFoundError):
        served.client.completions.create(model="other", prompt="salt", max_tokens=1)


def test_a_client_can_only_raise_the_debt_and_a_greedy_text_certifies_nothing(served):
    total = 24.0 + (served.rule.bank or 0.0)
    for debt in (0.0, 9.0):
        nats = {"k": 2.0, "seed": 1, "debt": debt}
        _, _, figures = served.answered(prompt=PROMPTS[0], anchored=nats)
        assert figures["debt"] > 0.0 and figures["bound"] == total - figures["debt"]
    assert figures["debt"] == 9.0
    _, text, figures = served.answered(prompt=PROMPTS[2], anchored={"k": 1.0}, temperature=0.0)
    (result,) = served.decoded([PROMPTS[2]], {"k": 1.0}, temperature=0.0)
    assert text == result.text and figures["certified"] is False


def test_samples_of_several_prompts_are_those_of_generate(served):
    answer = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[:2],
        n=2,
        max_tokens=LENGTH,
        temperature=0.8,
        extra_body={"anchored": {"k": 2.0, "seed": 3}},
    )
    assert "anchored" not in (answer.model_extra or {})
    expected = served.decoded(PROMPTS[:2], {"k": 2.0}, seed=3, num_return_sequences=2)
    for place, (choice, result) in enumerate(zip(answer.choices, expected, strict=True)):
        assert choice.index == place and choice.text == result.text
        assert choice.anchored["id"] == f"{answer.id}-{place}"
        assert choice.anchored["spent"] == pytest.approx(result.ledger.spent, abs=1e-3)
    num_read = sum(len(served.pair.encode(prompt)) for prompt in PROMPTS[:2])
    assert answer.usage.prompt_tokens == num_read


def test_a_text_goes_on_after_its_end_where_a_client_asks_for_it(served):
    settings, length = {"temperature": 2.0}, 40
    prompts, seeds = [PROMPTS[0]] * 32, list(range(32))
    texts = served.decoded(prompts, {"k": 3.0}, seed=seeds, max_new_tokens=length, **settings)
    seed, plain = next((n, t) for n, t in enumerate(texts) if t.finish_reason == "stop_token")
    body = {"prompt": PROMPTS[0], "max_tokens": length, "ignore_eos": True, **settings}
    longer, _, figures = served.answered(anchored={"k": 3.0, "seed": seed}, **body)
    assert len(longer) == length and longer[: len(plain.token_ids)] == plain.token_ids
    assert figures["certified"] is True and figures["spent"] <= figures["bound"]
    ledger = dict(journal_ledgers(served.journal))[figures["id"]]
    assert verify(ledger, served.pair).failures == []


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
    with torch.no_grad():
        rows = served.pair.safe(torch.tensor([token_ids])).logits[0, :-1].log_softmax(-1)
    first, *values = [value for each in told for value in each.token_logprobs]
    assert first is None
    expected = rows.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
    assert values == pytest.approx(expected, abs=1e-3)
    _, *top = [place for each in told for place in each.top_logprobs]
    assert [max(place.values()) for place in top] == pytest.approx(rows.amax(-1).tolist(), abs=1e-3)
    text = "".join(choice.text for choice in choices)
    assert text.startswith(PROMPTS[0])
    tokens = [token for each in told for token in each.tokens]
    offsets = [offset for each in told for offset in each.text_offset]
    assert (tokens[0], offsets[0]) == ("<|begin|>", 0)
    for token, offset in zip(tokens[1:], offsets[1:], strict=True):
        assert token.startswith(("bytes:", "<|")) or text[offset:].startswith(token)


def test_a_chat_tells_log_probabilities_and_goes_on_with_its_answers(served):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    for seed in range(2):
        answer = served.client.chat.completions.create(
            model="anchored",
            messages=messages,
            max_tokens=4,
            logprobs=True,
            top_logprobs=2,
            n=None,
            seed=seed,
            extra_body={"tools": [], "echo": None},
        )
        (choice,) = answer.choices
        told, said = choice.logprobs.content, choice.message.model_dump()
        assert [len(place.top_logprobs) for place in told] == [2] * len(told)
        heard = bytes(byte for place in told for byte in place.bytes).decode("utf-8", "replace")
        assert heard == said["content"] and said["refusal"] is None
        messages += [{**said, "name": None}, {"role": "user", "content": PROMPTS[1]}]


def test_a_begun_answer_goes_on_whether_that_is_said_or_not(served):
    begun = {"role": "assistant", "content": "salt and"}
    messages = [{"role": "user", "content": PROMPTS[0]}, begun]
    said = {"add_generation_prompt": False, "continue_final_message": True}
    plain, other = (
        served.answered(chat=True, messages=messages, seed=5, **body)[1] for body in ({}, said)
    )
    assert plain == other
    for name, value in said.items():
        with pytest.raises(openai.BadRequestError):
            served.answered(chat=True, messages=messages[:1], **{name: value})


def test_each_part_of_a_stream_counts_where_a_client_asks_for_it(served):
    parts = served.client.completions.create(
        model="anchored",
        prompt=PROMPTS[0],
        max_tokens=LENGTH,
        stream=True,
        seed=1,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"ignore_eos": True},
    )
    counts = [part.usage.completion_tokens for part in parts]
    assert counts == sorted(counts) and counts[-1] == LENGTH


def test_a_prompt_becomes_tokens_and_text_again(served):
    def said(path: str, **body: Any) -> httpx.Response:
        address = str(served.client.base_url).removesuffix("/v1/")
        return httpx.post(f"{address}{path}", json=body, timeout=HANG_S)

    prompt = said("/tokenize", model="anchored", prompt=PROMPTS[0]).json()
    assert prompt["tokens"] == served.pair.encode(PROMPTS[0])
    assert prompt["count"] == len(prompt["tokens"]) and prompt["max_model_len"] == 256
    assert said("/detokenize", tokens=prompt["tokens"]).json() == {"prompt": PROMPTS[0]}
    chat = said("/tokenize", messages=[{"role": "user", "content": "salt"}]).json()
    text = served.template.format("salt")
    assert chat["tokens"] == served.pair.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert said("/tokenize", prompt=3).status_code == 400
    answer = said("/detokenize", tokens=[10_000])
    assert answer.status_code == 400 and answer.headers["x-request-id"].startswith("req-")
