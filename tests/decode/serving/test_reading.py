"""What bodies ask for, and what of it is refused."""

import json

import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, Pathwise
from anchored.decode.serving.asked import Asked, Limits, extra_arguments, seed_of_name
from anchored.decode.serving.body import HARMLESS, HONORED, REFUSED, Body, parsed
from anchored.decode.serving.reading import Reader, plain_messages
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


def read(reader, values, *, is_chat=False):
    asked = Asked.of(extra_arguments(values))
    return reader.requests(Body.of(values), asked, lambda n: f"text-{n}", is_chat=is_chat)


def test_tables_of_fields_name_each_once():
    names = [name for table in (HONORED, HARMLESS, REFUSED) for name in table]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honored_is_refused_with_its_reason_unless_it_asks_for_nothing(name):
    for neutral in (*REFUSED[name].neutral, None, "", [], {}):
        Body.of({"prompt": "a", name: neutral})
    for asked in (["x"], 7.5, True):
        if asked in REFUSED[name].neutral:
            continue
        with pytest.raises(ValueError, match=f"{name}=.* cannot be honored") as refused:
            Body.of({"prompt": "a", name: asked})
        assert REFUSED[name].reason in str(refused.value)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_text_is_taken(name):
    assert Body.of({"prompt": "a", name: {"any": 1}}) == Body(prompt="a")


def test_null_is_the_default_of_every_field():
    nothing = dict.fromkeys([*HONORED, *HARMLESS])
    assert Body.of(nothing) == Body()
    assert Body().sampling == SamplingConfig(temperature=1.0, repetition_penalty=1.0)
    assert Body.of({"top_k": -1}).sampling == Body().sampling


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "a", "best": 1}, "'best' is not known"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": "a", "top_k": -2}, "top_k must be >= 0"),
        ({"prompt": "a", "sampling": {"top_k": 3}}, "'sampling' is not known"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be >= 1"),
        ({"prompt": "a", "max_tokens": 51}, "max_tokens must be at most 50"),
        ({"prompt": "a", "max_tokens": 2, "max_completion_tokens": 3}, "not both"),
        ({"prompt": "a", "stop": [1]}, "stop must be"),
        ({"prompt": "a", "stop": ""}, "stop must not hold an empty string"),
        ({"prompt": "a", "stop": "x<|turn|>"}, r"holds the special token .*: give '<\|turn"),
        ({"prompt": "a", "stop_token_ids": [50]}, "50 is no special token"),
        ({"prompt": "a", "stream": 1}, "stream must be true or false"),
        ({"prompt": "a", "stream_options": {"usage": True}}, "usage=True is not known"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "include_usage=1 is not known"),
        ({"prompt": "a", "seed": -1}, "seed must be in"),
        ({"prompt": "a", "seed": 1 << 63}, "seed must be"),
        ({"prompt": "a", "temperature": 1e-20}, "temperature must be at least"),
        ({"prompt": "a", "messages": []}, "messages belongs to the other endpoint"),
        ({}, "prompt is missing"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": {"a": 1}}, "must not be a dict"),
        ({"prompt": [["a"], ["b"]]}, "prompt must be a text or a list of token ids"),
        ({"prompt": [1, True]}, "a token id must be"),
        ({"prompt": [320]}, "token ids must be in"),
        ({"prompt": "a \ud800"}, "lone surrogate"),
        ({"prompt": "a " * 90}, "this model's maximum context length is 100 tokens"),
        (
            {"prompt": "a" * 10_000},
            "is 100 tokens, prompt included, got a prompt of 10000 characters",
        ),
        (
            {"prompt": [5] * 101},
            "is 100 tokens, prompt included, got a prompt of 101 token ids",
        ),
        ({"prompt": ["a", [5] * 101]}, "got a prompt of 101 token ids"),
        ({"prompt": ["a"] * 257}, "prompt has at most 256 items here, got 257"),
        ({"prompt": [1, *["a"] * 256]}, "prompt has at most 256 items here, got 257"),
        ({"prompt": "a", "stop": ["b"] * 65}, "stop has at most 64 items here, got 65"),
        ({"prompt": "a", "stop": "b" * 1025}, "a stop has at most 1024 characters, got 1025"),
        ({"prompt": "a", "stop_token_ids": [2] * 65}, "stop_token_ids has at most 64 items"),
        ({"prompt": "a", "anchored": dict.fromkeys(map(str, range(65)))}, "anchored has at most"),
        ({"prompt": "a", "anchored": {"passage": "b"}}, "reads no passage"),
        ({"prompt": "a", "anchored": {"kk": 2.0}}, "unknown field kk"),
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
        ("hello", "messages must be a list"),
        ([], "the conversation is empty"),
        ([{"role": "user"}], 'must have a "role" and a "content"'),
        ([{"role": "user", "content": 5}], 'must have a "role" and a "content"'),
        ([{"role": "user", "content": "a", "name": "joe"}], "a message's 'name' is not known"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "parts of the type text"),
        (5, "messages must be a list"),
        ([{"role": "user", "content": "a" * 10_000}], "got a prompt of 10000 characters"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_conversation_is_refused(reader, messages, message):
    with pytest.raises(ValueError, match=message):
        read(reader, {"messages": messages}, is_chat=True)


def test_a_chat_without_a_length_gets_the_rest_of_the_context_within_the_limit(reader):
    (short,) = read(reader, {"messages": [{"role": "user", "content": "a"}]}, is_chat=True)
    assert short.max_new_tokens == 50
    (long,) = read(reader, {"messages": [{"role": "user", "content": "a " * 70}]}, is_chat=True)
    assert long.max_length == 100
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "a b"}
    ]


def test_texts_of_one_request_have_seeds_of_their_ids_or_places_of_one_seed(reader):
    by_id = read(reader, {"prompt": ["a", "a"]})
    assert [text.seed for text in by_id] == [seed_of_name("text-0"), seed_of_name("text-1")]
    by_seed = read(reader, {"prompt": ["a", "a", "b"], "anchored": {"seed": 3, "sample": 2}})
    assert [(text.seed, text.place) for text in by_seed] == [(3, 2), (3, 3), (3, 2)]


def test_requests_of_pathwise_share_what_draws_them(pair):
    rule = Pathwise()
    reader = Reader(Decoder(pair, rule), Limits(rule=rule), 100)
    kinds = [{}, {"k": 2.0}, {"K": 9.0}, {"bank": 1.0}]
    rules = [read(reader, {"prompt": "a", "anchored": kind})[0].rule for kind in kinds]
    assert len({rule.next_token for rule in rules}) == 1
    assert [rule.rule for rule in rules] == [
        rule,
        Pathwise(k=2.0),
        Pathwise(k=0.0, bank=9.0),
        Pathwise(bank=1.0),
    ]


@pytest.mark.parametrize(("body", "horizon"), [({}, 96), ({"max_tokens": 10}, 10)], ids=str)
def test_all_that_is_left_is_shared_by_the_tokens_that_a_chat_may_have(pair, body, horizon):
    rule = Pathwise()
    reader = Reader(Decoder(pair, rule), Limits(rule=rule), 100, secret=b"of the server")
    asked = Asked(K="available")
    chat = Body.of({"messages": [{"role": "user", "content": "the keeper"}], **body})
    (text,) = reader.requests(chat, asked, lambda n: f"{n}", is_chat=True, available=25.0)
    assert text.max_new_tokens == horizon
    budget = text.rule.budget_for(horizon=horizon, k=None)
    assert (budget.bank, budget.total) == (20.0, pytest.approx(25.0, abs=1e-6))


def test_requests_of_one_divergence_share_what_draws_them(reader):
    kinds = [{}, {"k": 2.0}, {"K": 9.0}, {"bank": 1.0}, {"divergence": "max"}]
    rules = [read(reader, {"prompt": "a", "anchored": kind})[0].rule for kind in kinds]
    assert len({rule.next_token for rule in rules[:4]}) == 1
    assert rules[4].next_token != rules[0].next_token
    assert [rule.rule for rule in rules] == [
        Anchored(k=1.5),
        Anchored(k=2.0),
        Anchored(K=9.0),
        Anchored(k=1.5, bank=1.0),
        Anchored(k=1.5, divergence="max"),
    ]


def test_special_tokens_end_a_text_by_their_ids(reader):
    (text,) = read(reader, {"prompt": "a", "stop": "x", "stop_token_ids": [2, 1]})
    assert text.stop == ("x", "<|turn|>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is not JSON"),
        (b"[1]", "the body must be an object"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": 1, "a": 2}', "the body"),
        (b'{"a": "\xff"}', "the body is not JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else "",
)
def test_a_body_that_is_no_object_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parsed(content)
