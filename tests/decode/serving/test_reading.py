"""Bodies as requests to a pair, within a server's limits, and what is refused."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anchored import Anchored, Decoder, Pathwise, RiskyOnly, SafeOnly
from anchored.decode.serving.anchored_options import AnchoredOptions, Limits, seed_of_text
from anchored.decode.serving.answers import CHATS, COMPLETIONS
from anchored.decode.serving.body import HARMLESS, HONORED, REFUSED, Body, parsed
from anchored.decode.serving.reading import Reader
from anchored.decode.settings import SamplingConfig
from anchored.kernels.spend import SPEND_QUANTUM


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
        ({"prompt": "a", "anchored": {"kk": 1}}, "kk"),
        ({"prompt": "a", "anchored": [1]}, "must be an object"),
        ({"messages": []}, "the conversation is empty"),
        (chat([{"type": "image_url"}]), "parts of the type text"),
        (chat("a" * 10_000), "got a prompt of 10000 characters"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_one_line_says_what_is_wrong(reader, values, message):
    with pytest.raises(ValueError, match=message) as refused:
        read(reader, values, CHATS if [*values] == ["messages"] else COMPLETIONS)
    assert "\n" not in str(refused.value)


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
    by_seed = read(
        reader, {"prompt": ["a", "a", "b"], "anchored": {"seed": 3, "sample": 2, "debt": None}}
    )
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


def test_with_accounts_nobody_knows_a_seed_and_what_certifies_nothing_is_refused(pair):
    reader = Reader(Decoder(pair, Pathwise()), Limits(rule=Pathwise()), 100, secret=b"secret")
    one, other = read(reader, {"prompt": ["a", "a"], "seed": 3})
    assert len({one.seed, other.seed, 3}) == 3
    for wrong, said in (
        ({"seed": -1}, "seed must be in"),
        ({"temperature": 0.0}, "temperature 0 has no bound"),
        ({"n": 2, "anchored": {"K": "available"}}, "is of one text, got 2"),
    ):
        with pytest.raises(ValueError, match=said):
            read(reader, {"prompt": "a", **wrong})


def test_a_rule_without_the_safe_model_and_drafts_tell_no_log_probabilities(pair):
    for decoder, said in (
        (Decoder(pair, RiskyOnly(compared=False)), "risky_only does not read"),
        (Decoder(pair, Pathwise(), speculate=2), "without --speculate"),
    ):
        reader = Reader(decoder, Limits(rule=decoder.rule), 100)
        with pytest.raises(ValueError, match=said):
            read(reader, {"prompt": "a", "logprobs": 1})


def test_special_tokens_end_a_text_by_their_ids(reader):
    (text,) = read(reader, {"prompt": "a", "stop": "x", "stop_token_ids": [2, 1]})
    assert text.stop == ("x", "<|turn|>")


def test_a_body_that_is_no_object_is_refused():
    for content, message in (
        (b"", "the body is not JSON"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": 1, "a": 2}', "the body"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ):
        with pytest.raises(ValueError, match=message):
            parsed(content)


@pytest.mark.parametrize(
    ("rule", "options", "refused"),
    [
        (
            Anchored(k=1.0, divergence="max"),
            {"divergence": "kl"},
            "bounds hold for every text, .* kl for a mean alone",
        ),
        (Pathwise(), {"divergence": "kl"}, "the rule pathwise takes no divergence, got 'kl'"),
        (Pathwise(), {"K": 9.0, "bank": 9.0}, "K is the bank of the rule pathwise: name one alone"),
        (Anchored(k=1.0), {"K": 1.0, "k": 1.0}, "either k or K"),
        (SafeOnly(), {"bank": 1.0}, "takes no bank"),
    ],
    ids=str,
)
def test_a_request_has_no_weaker_bound_than_the_servers_and_none_that_its_rule_lacks(
    rule, options, refused
):
    with pytest.raises(ValueError, match=refused) as error:
        Limits(rule=rule).rule_of(AnchoredOptions(**options))
    assert "\n" not in str(error.value)


@given(
    left=st.floats(0.0, 2000.0),
    bank=st.none() | st.floats(0.0, 100.0),
    horizon=st.integers(1, 5000),
)
@example(left=120.82050399715081, bank=20.0, horizon=268)  # 20 + 268 * (left - 20) / 268 > left
@example(left=100.0, bank=None, horizon=10)
@example(left=0.0, bank=20.0, horizon=10)
@settings(max_examples=40, deadline=None)
def test_all_that_is_left_is_a_budget_of_it_within_the_limits_and_never_rounded_above(
    left, bank, horizon
):
    left = math.floor(left / SPEND_QUANTUM) * SPEND_QUANTUM  # as accounts have it
    rule = Anchored(k=1.0) if bank is None else Pathwise(k=1.0, bank=bank)
    limits = Limits(rule=rule, max_k=4.0, max_total=1000.0)
    made = limits.rule_within(AnchoredOptions(K="available"), left, horizon)
    budget, most = made.budget_for(horizon=horizon, k=None), min(left, 1000.0)
    limits.check(budget)
    assert budget.total <= most
    wanted = 4.0 * horizon if bank is None else bank + horizon
    assert budget.total >= min(most, wanted) - 2 * horizon * SPEND_QUANTUM


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        (Anchored(k=1.0, bank=1.0), {"k": 4.5}, "k must be at most 4 nats here, got 4.5"),
        (Anchored(k=1.0, bank=1.0), {"K": 41.0}, "k .* must be at most 40 nats here, got 41"),
        (Pathwise(k=1.0, bank=1.0), {"K": 3.0}, "bank must be at most 2 nats here, got 3"),
        (Pathwise(k=1.0, bank=1.0), {"k": 4.0}, r"K = bank \+ k \* max_tokens .* 40 .* got 41"),
    ],
    ids=str,
)
def test_nats_beyond_the_limits_are_refused(rule, options, said):
    limits = Limits(rule=rule, max_k=4.0, max_total=40.0, max_bank=2.0, max_horizon=10)
    limits.check(limits.rule_of(AnchoredOptions(k=3.9)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match=said):
        limits.check(limits.rule_of(AnchoredOptions(**options)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match="must be at most 10"):
        limits.check_horizon(11)
    for wrong in ({"max_k": -1.0}, {"rule": Anchored(k=5.0), "max_k": 4.0}, {"max_horizon": 0}):
        with pytest.raises(ValueError):
            Limits(**wrong)
