"""Who gets through the middleware of vLLM's server, with what, and what it adds to answers."""

import asyncio
import hashlib
import json

import pytest
from server_accounts import KEYS, client

from anchored import Anchored, Pathwise
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Policy
from anchored.decode.serving.accounts.store import opened
from anchored.decode.serving.asgi import MAX_BODY
from anchored.decode.serving.asked import Asked, Limits
from anchored.decode.serving.journal_reader import JournalReader
from anchored.decode.vllm import front_door
from anchored.decode.vllm.answers import Answers
from anchored.decode.vllm.front_door import ACCOUNT, Front, FrontDoor

SPENT = {"id": "x", "spent": 1.5}


class Known(Answers):
    """Knows what every text has spent, by the end of its id."""

    def take(self, name):
        return {**SPENT, "choice": name[-1]}


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Calls an application that says `chunks`; gives the status of the answer, the bodies that the
    application saw, the answer's body and its messages."""

    def call(path, chunks, *, body=b"{}", headers=(), method="POST", **options):
        seen, sent, kind = [], [], options.pop("kind", b"application/json")
        settings = {"answers": Known(JournalReader(tmp_path)), "limits": Limits(), "keys": {}}
        monkeypatch.setattr(front_door, "front", Front(**{**settings, **options}))

        async def app(scope, receive, send):
            seen.append((await receive())["body"])
            said = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": 200, "headers": said})
            for number, chunk in enumerate(chunks):
                more = number + 1 < len(chunks)
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        said = [(b"content-type", b"application/json"), *headers]
        scope = {"type": "http", "path": path, "method": method, "headers": said}
        asyncio.run(FrontDoor(app)(scope, receive, send))
        return sent[0]["status"], seen, b"".join(part.get("body", b"") for part in sent), sent

    return call


def test_each_choice_says_what_it_spent_and_a_single_one_for_the_answer_too(call):
    one = {"choices": [{"index": 0, "finish_reason": "stop"}]}
    _, _, body, sent = call("/v1/completions", [json.dumps(one).encode()])
    answer = json.loads(body)
    assert answer["anchored"] == answer["choices"][0]["anchored"] == {**SPENT, "choice": "0"}
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
    two = {"choices": [{"index": n, "finish_reason": "stop"} for n in range(2)]}
    text = json.dumps(two).encode()
    _, _, body, _ = call("/v1/completions", [text[:9], text[9:]])
    answer = json.loads(body)
    assert "anchored" not in answer
    assert [choice["anchored"]["choice"] for choice in answer["choices"]] == ["0", "1"]


def test_a_stream_says_it_in_the_chunk_that_ends_a_text(call):
    chunks = [{"choices": [{"index": 0, "finish_reason": reason}]} for reason in (None, "length")]
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    events += b"data: [DONE]\n\n"
    parts = [events[:30], events[30:70], events[70:]]
    _, _, body, _ = call("/v1/chat/completions", parts, kind=b"text/event-stream")
    first, second, last, _ = body.split(b"\n\n")
    assert "anchored" not in json.loads(first[6:])
    assert json.loads(second[6:])["anchored"]["spent"] == 1.5
    assert last == b"data: [DONE]"


def test_what_is_asked_goes_among_the_engines_extra_arguments(call):
    body = json.dumps({"prompt": "a", "anchored": {"k": 1.0}, "vllm_xargs": {"x": 1}}).encode()
    _, (sent_on,), _, _ = call("/v1/completions", [b"{}"], body=body)
    assert json.loads(sent_on) == {"prompt": "a", "vllm_xargs": {"x": 1, "anchored_k": 1.0}}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"anchored": {"k": -1.0}}, "k must be in [0, "),
        ({"anchored": {"k": 1.0, "K": 2.0}}, "give either k or K"),
        ({"anchored": {"kk": 1.0}}, "unknown field kk"),
        ({"anchored": {"debt": -2.0}}, "debt must be >= 0 nats"),
        ({"anchored": {"seed": "a"}}, "seed must be"),
        ({"anchored": [1]}, "must be objects"),
        ({"anchored": "k"}, "must be objects"),
        ({"use_beam_search": True}, "use_beam_search cannot be honored"),
    ],
    ids=str,
)
def test_what_nobody_can_ask_for_is_refused(asked, message, call):
    status, seen, body, _ = call("/v1/completions", [b"{}"], body=json.dumps(asked).encode())
    assert (status, seen) == (400, []) and message in json.loads(body)["error"]["message"]


def test_a_body_that_is_nested_too_deep_is_an_error_of_its_client(call):
    deep = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    status, seen, body, _ = call("/v1/completions", [b"{}"], body=deep)
    assert (status, seen) == (400, []) and "nested too deep" in json.loads(body)["error"]["message"]


def test_a_body_beyond_the_limit_is_not_kept(call):
    status, seen, _, _ = call("/v1/completions", [b"{}"], body=b" " * (MAX_BODY + 1))
    assert (status, seen) == (413, [])


def test_other_endpoints_are_not_there(call):
    for path in ("/v1/responses", "/v1/embeddings", "/inference/v1/generate", "/collective_rpc"):
        assert call(path, [b"{}"])[0] == 404
    assert call("/v1/models", [b"{}"])[0] == 200


def test_what_is_read_is_not_told_to_a_browser_that_asks_without_a_key(call, keeper, tmp_path):
    keys = {hashlib.sha256(b"sesame").digest(): ""}
    for path in ("/metrics", ACCOUNT):
        for method in ("OPTIONS", "POST"):
            status, seen, _, _ = call(path, [b"{}"], method=method, keys=keys, keeper=keeper)
            assert (status, seen) == (405 if method == "OPTIONS" else 401, [])
    assert call("/metrics", [b"{}"], method="HEAD", keys=keys, headers=KEY)[0] == 200
    assert call("/v1/completions", [b"{}"], method="OPTIONS", keys=keys)[0] == 200


def test_fields_that_would_hold_up_others_are_refused(call):
    body = json.dumps({"prompt": ["a"] * 257}).encode()
    status, seen, answer, _ = call("/v1/completions", [b"{}"], body=body)
    assert (status, seen) == (400, []) and b"prompt has at most 256 items" in answer


KEY = [(b"authorization", b"Bearer sesame")]


def test_nothing_but_health_is_there_without_a_key_and_no_body_is_read(call):
    keys = {hashlib.sha256(b"sesame").digest(): ""}
    for path in ("/v1/completions", "/v1/models", "/metrics", "/tokenize", "/nowhere"):
        assert call(path, [b"{}"], keys=keys)[:2] == (401, [])
    assert call("/health", [b"{}"], keys=keys)[0] == 200
    assert call("/v1/completions", [b"{}"], keys=keys, headers=KEY)[0] == 200


@pytest.mark.parametrize("path", ["/api/v1/completions", "/v1/completions"])
def test_a_proxys_prefix_may_be_left(call, path):
    assert call(path, [b"{}"], root_path="/api")[0] == 200


def test_a_clients_id_goes_to_the_journal_and_comes_back(call):
    headers = [(b"x-request-id", b"trace-7")]
    status, (body,), _, sent = call("/v1/completions", [b"{}"], headers=headers)
    assert status == 200 and (b"x-request-id", b"trace-7") in sent[0]["headers"]
    assert json.loads(body)["vllm_xargs"] == {"anchored_client_id": "trace-7"}
    headers = [(b"x-request-id", b"a b\tc")]
    assert call("/v1/completions", [b"{}"], headers=headers)[0] == 400


def test_a_server_that_is_ending_draws_nothing_more(call, tmp_path):
    ending_answers = Answers(JournalReader(tmp_path), is_ending=True)
    status, seen, body, _ = call("/v1/completions", [b"{}"], answers=ending_answers)
    assert (status, seen) == (503, []) and "shutting down" in json.loads(body)["error"]["message"]


@pytest.fixture
def keeper(tmp_path):
    policy = Policy(clients=(client("alice", nats=20.0),))
    with kept(policy, tmp_path, tmp_path, is_synced=False) as keeper:
        yield keeper


def charged(call, keeper, tmp_path, body, path="/v1/completions", limits=None, method="POST"):
    """(the status, the body that the engine sees, the answer, bounds of texts that may begin)"""
    bounds = {}

    class Noted(Known):
        def reserve(self, more):
            bounds.update(more)
            super().reserve(more)

    noted = Noted(JournalReader(tmp_path), settle=keeper.settle)
    headers = [(b"authorization", b"Bearer " + KEYS["alice"].encode())]
    options = {"answers": noted, "keeper": keeper, "keys": keeper.policy.keys}
    options |= {"limits": limits or Limits(), "method": method}
    body = json.dumps(body).encode()
    status, seen, answer, _ = call(path, [b"{}"], body=body, headers=headers, **options)
    return status, json.loads(seen[0]) if seen else None, json.loads(answer), bounds


def left(tmp_path):
    with opened("accounts.db", tmp_path) as store:
        state = store.state("client/alice")
        return state.spent, state.available


def test_the_bound_of_each_text_is_reserved_with_a_seed_of_the_server(call, keeper, tmp_path):
    nats = {"k": 1.0, "bank": 2.0, "debt": 1.0}
    body = {"prompt": ["a", "b"], "max_tokens": 4, "seed": 3, "anchored": nats}
    status, sent, _, bounds = charged(call, keeper, tmp_path, body)
    assert status == 200 and list(bounds.values()) == [5.0, 5.0]
    assert sorted(name[-2:] for name in bounds) == ["-0", "-1"]
    again = charged(call, keeper, tmp_path, body)[1]
    seeds = [one["vllm_xargs"]["anchored_seed"] for one in (sent, again)]
    assert len({*seeds, 3}) == 3
    keeper.close()
    assert left(tmp_path) == (0.0, 20.0)  # the engine has begun none: all is free again


KL = Anchored(k=1.0)
ALL = {"K": "available"}


@pytest.mark.parametrize(
    ("rule", "body", "bound"),
    [
        (KL, {"prompt": "a", "max_tokens": 100, "anchored": ALL}, 20.0),
        (KL, {"prompt": "a", "max_tokens": 8, "anchored": ALL}, 16.0),  # by max_k
        (KL, {"prompt": "a"}, 16.0),  # 16 tokens of k = 1
        (KL, {"prompt": [1, 2, 3], "max_tokens": 2}, 2.0),
        (KL, {"prompt": "a", "max_tokens": 0}, 1.0),
        (KL, {"prompt": "a", "max_tokens": 0, "anchored": {"K": 2.0}}, 2.0),
        (Pathwise(bank=4.0), {"prompt": "a"}, 20.0),  # and the bank
        (Pathwise(bank=4.0), {"prompt": "a", "max_tokens": 8, "anchored": ALL}, 12.0),
        (Pathwise(bank=24.0), {"prompt": "a", "anchored": ALL}, 20.0),
        (Pathwise(), {"prompt": "a", "anchored": {"K": 7.0}}, 7.0),
    ],
    ids=str,
)
def test_what_is_reserved_is_the_most_that_a_text_may_spend(
    call, keeper, tmp_path, rule, body, bound
):
    limits = Limits(rule=rule, max_k=2.0)
    status, sent, _, bounds = charged(call, keeper, tmp_path, body, limits=limits)
    assert (status, list(bounds.values())) == (200, [bound])
    sent_rule = limits.rule_of(Asked.of(sent["vllm_xargs"]))
    horizon = max(1, body.get("max_tokens", 16))
    assert sent_rule.budget_for(horizon=horizon, k=None).bound == bound


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": "a", "max_tokens": 100}, 429, "client/alice has 20 nats left"),
        ({"prompt": ["a"] * 3, "anchored": {"k": 0.5}}, 429, "the bound of this request is 24"),
        ({"prompt": "a", "max_tokens": None}, 400, "max_tokens is missing"),
        ({"prompt": "a", "max_tokens": "9"}, 400, "max_tokens must be an integer"),
        ({"prompt": "a", "max_tokens": -9}, 400, "max_tokens must be >= 0"),
        ({"prompt": "a", "temperature": 0}, 400, "greedy"),
        ({"prompt": ["a", "b"], "anchored": {"K": "available"}}, 400, "of one prompt, got 2"),
        ({"prompt": "a", "anchored": {"group": "lab"}}, 400, "may not name the group"),
        ({"prompt": "a", "anchored": {"k": 3.0}}, 400, "k must be at most 2"),
    ],
    ids=str,
)
def test_what_no_account_takes_reaches_no_engine(call, keeper, tmp_path, body, status, said):
    limits = Limits(rule=Anchored(k=1.0), max_k=2.0)
    got, sent, answer, _ = charged(call, keeper, tmp_path, body, limits=limits)
    assert (got, sent) == (status, None) and said in answer["error"]["message"]
    if status == 429:
        assert (answer["error"]["type"], answer["error"]["available"]) == ("budget_exhausted", 20.0)


def test_a_chat_names_its_length(call, keeper, tmp_path):
    chat, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
    status, _, answer, _ = charged(call, keeper, tmp_path, body, path=chat)
    assert status == 400 and "max_tokens is missing" in answer["error"]["message"]
    body |= {"max_completion_tokens": 4, "max_tokens": 2}
    limits = Limits(rule=Anchored(k=1.5))
    status, _, _, bounds = charged(call, keeper, tmp_path, body, path=chat, limits=limits)
    assert status == 200 and list(bounds.values()) == [6.0]  # of 4 tokens


def test_a_client_sees_its_account(call, keeper, tmp_path):
    status, _, answer, _ = charged(call, keeper, tmp_path, {}, path=ACCOUNT, method="GET")
    assert (status, answer["id"], answer["available"]) == (200, "client/alice", 20.0)
    assert call(ACCOUNT, [b"{}"], method="GET")[0] == 404
