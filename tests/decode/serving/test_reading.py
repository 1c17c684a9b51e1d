"""Bodies as requests to a pair, and the refusals of what they cannot have."""

import json
from dataclasses import replace

import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, Pathwise
from anchored.decode.serving.anchored_options import Limits, seed_of_text
from anchored.decode.serving.answers import CHATS, COMPLETIONS
from anchored.decode.serving.body import HARMLESS, HONORED, REFUSED, Body, parsed
from anchored.decode.serving.reading import Reader
from anchored.decode.settings import SamplingConfig


@pytest.fixture(scope="module")
def pair():
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return ModelPair(tiny_llama(1), tiny_llama(2), tokenizer)


@pytest.fixture(scope="module")
def reader(pair):
    decoder = Decoder(pair, Anchored(k=1.5))
    return Reader(decoder, Limits(rule=decoder.rule, max_horizon=50), 100)


def read(reader, values, form=COMPLETIONS, **more):
    body = Body.of(parsed(json.dumps(values).encode()))
    return reader.requests(body, form, "text", **more)


def chat(content, **more):
    return {"messages": [{"role": "user", "content": content}], **more}


def test_what_cannot_be_honored_is_refused_with_its_reason_unless_it_asks_for_nothing():
    for name, refusal in REFUSED.items():
        for neutral in (*refusal.neutral, None, "", [], {}):
            Body.of({"prompt": "a", name: neutral})
        with pytest.raises(ValueError, match=f"{name}=.* cannot be honored") as refused:
            Body.of({"prompt": "a", name: 7.5})
        assert refusal.reason in str(refused.value)
    with pytest.raises(ValueError, match="cannot be honored"):
        Body.of({"prompt": "a", "min_tokens": False})  # which is not 0


def test_null_is_the_default_of_every_field_and_some_change_no_text():
    names = [name for table in (HONORED, HARMLESS, REFUSED) for name in table]
    assert len(names) == len(set(names))
    assert Body.of({"prompt": "a", **{name: {"any": 1} for name in HARMLESS}}) == Body(prompt="a")
    nothing = dict.fromkeys([*HONORED, *HARMLESS])
    assert Body.of(nothing) == Body()
    assert Body().sampling == SamplingConfig(temperature=1.0, repetition_penalty=1.0)
    assert Body.of({"top_k": -1}).sampling == Body().sampling


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "a", "best": 1}, "'best' is not known"),
        ({"prompt": "a", "max_tokens": 51}, "max_tokens must be at most 50"),
        ({"prompt": "a", "max_tokens": 2, "max_completion_tokens": 3}, "not both"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "include_usage=1 is not known"),
        ({"prompt": "a", "seed": -1}, "seed must be in"),
        ({"prompt": "a", "n": 257}, "at most 256 texts"),
        ({"prompt": "a", "logprobs": 21}, "at most 20 likeliest"),
        ({"prompt": "a", "top_logprobs": 2}, "as logprobs says"),
        ({"prompt": "a", "messages": []}, "messages belongs to the other endpoint"),
        ({}, "prompt is missing"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "a " * 90}, "context length is 100 tokens, .* and max_tokens 16"),
        ({"prompt": "a" * 10_000}, "100 tokens, .* got a prompt of 10000 characters"),
        ({"prompt": ["a", [5] * 101]}, "got a prompt of 101 token ids"),
        ({"prompt": "a", "stop_token_ids": [50]}, "50 is no special token"),
        ({"prompt": "a", "stop": ["b"] * 65}, "stop has at most 64 items"),
        ({"prompt": "a", "stop": "b" * 1025}, "a stop has at most 1024 characters, got 1025"),
        ({"prompt": "a", "anchored": {"passage": "b"}}, "reads no passage"),
        ({"prompt": "a", "anchored": {"K": "available"}}, "need a server with accounts"),
        ({"prompt": "a", "anchored": {"group": "b"}}, "need a server with accounts"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_one_line_says_what_is_wrong(reader, values, message):
    with pytest.raises(ValueError, match=message) as refused:
        read(reader, values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation is empty"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "parts of the type text"),
        ([{"role": "user", "content": "a" * 10_000}], "got a prompt of 10000 characters"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_conversation_is_refused(reader, messages, message):
    with pytest.raises(ValueError, match=message):
        read(reader, {"messages": messages}, CHATS)


def test_a_chat_without_a_length_gets_the_rest_of_the_context_within_the_limit(reader):
    (short,) = read(reader, chat("a"), CHATS)
    assert short.max_new_tokens == 50
    (long,) = read(reader, chat("a " * 70), CHATS)
    assert long.max_length == 100
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    assert read(reader, chat(parts, seed=1), CHATS) == read(reader, chat("a b", seed=1), CHATS)


def test_texts_of_one_request_have_seeds_of_their_ids_or_places_of_one_seed(reader):
    by_id = read(reader, {"prompt": ["a", "a"]})
    assert [text.seed for text in by_id] == [seed_of_text(f"text-{n}", None, None) for n in (0, 1)]
    by_seed = read(reader, {"prompt": ["a", "a", "b"], "anchored": {"seed": 3, "sample": 2}})
    assert [(text.seed, text.place) for text in by_seed] == [(3, 2), (3, 3), (3, 2)]


@pytest.mark.parametrize("rule", [Anchored(k=1.5), Pathwise()], ids=lambda rule: rule.name)
def test_requests_whose_rules_differ_in_nats_alone_share_what_draws_them(pair, rule):
    reader = Reader(Decoder(pair, rule), Limits(rule=rule), 100)
    kinds = [{}, {"k": 2.0}, {"K": 9.0}, {"bank": 1.0}]
    rules = [read(reader, {"prompt": "a", "anchored": kind})[0].rule for kind in kinds]
    assert len({rule.next_token for rule in rules}) == 1
    assert [each.rule for each in rules[:2]] == [rule, replace(rule, k=2.0)]
    if rule.name == "anchored":
        kind = {"prompt": "a", "anchored": {"divergence": "max"}}
        assert read(reader, kind)[0].rule.next_token != rules[0].next_token


@pytest.mark.parametrize(("body", "horizon"), [({}, 96), ({"max_tokens": 10}, 10)], ids=str)
def test_all_that_is_left_is_shared_by_the_tokens_that_a_chat_may_have(pair, body, horizon):
    rule = Pathwise()
    reader = Reader(Decoder(pair, rule), Limits(rule=rule), 100, secret=b"of the server")
    values = chat("the keeper", anchored={"K": "available"}, **body)
    (text,) = read(reader, values, CHATS, available=25.0)
    assert text.max_new_tokens == horizon
    budget = text.rule.budget_for(horizon=horizon, k=None)
    assert (budget.bank, budget.total) == (20.0, pytest.approx(25.0, abs=1e-6))


def test_with_accounts_nobody_knows_a_seed_and_what_certifies_nothing_is_refused(pair):
    named = {"secret": b"of the server", "chat_length": 40}
    reader = Reader(Decoder(pair, Pathwise()), Limits(rule=Pathwise()), 100, **named)
    one, other = read(reader, {"prompt": ["a", "a"], "seed": 3})
    assert len({one.seed, other.seed, 3}) == 3
    assert read(reader, chat("a"), CHATS)[0].max_new_tokens == 40  # its bound is reserved
    for wrong, said in (
        ({"seed": -1}, "seed must be in"),
        ({"temperature": 0.0}, "temperature 0 has no bound"),
        ({"n": 2, "anchored": {"K": "available"}}, "is of one text, got 2"),
    ):
        with pytest.raises(ValueError, match=said):
            read(reader, {"prompt": "a", **wrong})


def test_special_tokens_end_a_text_by_their_ids(reader):
    (text,) = read(reader, {"prompt": "a", "stop": "x", "stop_token_ids": [2, 1]})
    assert text.stop == ("x", "<|turn|>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is not JSON"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": 1, "a": 2}', "the body"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else "",
)
def test_a_body_that_is_no_object_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parsed(content)
