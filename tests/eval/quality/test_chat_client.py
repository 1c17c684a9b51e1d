"""The chat client and the search for evidence over real HTTP: what is retried, kept, counted, and
never recorded."""

import json
import threading

import pytest
from chat_server import Say, chat_server, in_turn, user_text
from waiting import HANG_S

from anchored.eval.paid_requests import REPEATED, PaidRequests, RequestFailed, RequestRefused
from anchored.eval.quality.chat_client import RETRY_TEMPERATURE, Sampling
from anchored.eval.retrieval.evidence import Evidence, SerperSearch

SAMPLING = Sampling(temperature=0.5, max_tokens=7)
HELLO = [{"role": "user", "content": "hello"}]


def test_an_answer_is_paid_for_once_and_its_tokens_are_counted(server, chat_client, tmp_path):
    server.script = lambda body: Say(f"about {user_text(body)}")
    first = chat_client(key="secret-key")
    assert [first.complete(HELLO, SAMPLING)["text"] for _ in range(3)] == ["about hello"] * 3
    assert first.complete(HELLO, SAMPLING, draw=1)["text"] == "about hello"
    half = [{"role": "user", "content": "caf\u00e9 \ud800!"}]  # half a character cannot be sent
    again = chat_client(key="other")
    assert again.complete(HELLO, SAMPLING)["text"] == "about hello"
    assert len(server.requests) == 2 and server.keys == {"Bearer secret-key"}
    body = {"model": "judge", "messages": HELLO, "temperature": 0.5, "max_tokens": 7}
    assert server.requests[0] == body
    assert first.usage() == {
        "requests": {server.url: {"asked": 4, "sent": 2, "kept": 2}},
        "tokens_paid": {"in": 20, "out": 6},
        "tokens_kept": {"in": 20, "out": 6},
        "cost_usd": (20 * 2.0 + 6 * 8.0) / 1e6,
    }
    assert again.usage()["tokens_paid"] == {"in": 0, "out": 0}
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "about hello" in kept and "secret" not in kept
    assert first.complete(half, SAMPLING)["text"] == "about caf\u00e9 ?!"


def test_a_damaged_answer_is_paid_for_again(server, chat_client, tmp_path):
    chat_client().complete(HELLO, SAMPLING)
    (path,) = tmp_path.rglob("*.json")
    record = json.loads(path.read_text())
    for damaged in (json.dumps(record | {"request": "another"}), "{"):
        path.write_text(damaged)
        chat_client().complete(HELLO, SAMPLING)
    assert len(server.requests) == 3 and json.loads(path.read_text()) == record


GATEWAY = Say(raw='{"choices": null, "error": {"code": "502"}}')


def test_what_may_pass_is_tried_again(server, chat_client):
    """A gateway passes on a service's error with status 200."""
    busy = [Say(status=status, raw="<html>busy") for status in (429, 500, 503)]
    server.script = in_turn([*busy, GATEWAY, Say("well")])
    client = chat_client()
    assert client.complete(HELLO, SAMPLING)["text"] == "well"
    assert client.usage()["requests"][server.url] == {"asked": 1, "sent": 1}


def test_a_refused_key_ends_everything_and_is_not_repeated(server, chat_client):
    body = '{"error": "Incorrect API key provided: secret-key"}'
    server.script = in_turn([Say(status=401, raw=body)])
    client = chat_client(key="secret-key", concurrency=1)
    with pytest.raises(RequestRefused, match="status 401: is the key") as error:
        client.each(lambda text: client.complete(HELLO, SAMPLING, draw=text), range(50), "x")
    assert len(server.requests) == 1 and "secret" not in str(error.value)
    with pytest.raises(ValueError, match="base_url must hold no key"):
        chat_client(endpoint={"base_url": "http://host/v1?key=k"})


def test_failures_of_one_kind_in_a_row_end_everything(server, chat_client):
    reply = Say(status=400, raw="no")
    server.script = in_turn([reply] * (REPEATED - 1) + [Say("well")] + [reply])
    asked = chat_client(concurrency=1, max_retries=0)

    def work(draw):
        try:
            return asked.complete(HELLO, SAMPLING, draw=draw)
        except RequestFailed as error:
            return str(error)

    with pytest.raises(RequestRefused, match=f"{REPEATED} requests in a row failed alike: "):
        asked.each(work, range(100), "x")
    assert len(server.requests) == 2 * REPEATED  # the answer between them began the count anew


def test_a_service_that_asks_for_the_other_name_of_the_limit_gets_it(server, chat_client):
    """However many are on their way when the first one is refused; what is kept is so by either."""
    concurrency = REPEATED + 4
    words = "'max_tokens' is unsupported. " * 9 + "Use 'max_completion_tokens' instead."
    are_sent = threading.Event()  # as many as there can be at once

    def script(body):
        if "max_completion_tokens" in body:
            return Say("well")
        if len(server.requests) == concurrency:
            are_sent.set()
        return Say(status=400, raw=words, when=are_sent)

    server.script = script
    asked, draws = chat_client(concurrency=concurrency), range(concurrency + 2)
    answers = asked.each(lambda draw: asked.complete(HELLO, SAMPLING, draw=draw), draws, "x")
    assert [answer["text"] for answer in answers] == ["well"] * len(draws)
    assert "max_tokens" not in server.requests[-1]
    assert chat_client().complete(HELLO, SAMPLING, draw=0)["text"] == "well"
    assert len(server.requests) == len(draws) + concurrency


def number(answer):
    return int(answer) if answer.isdecimal() else None


@pytest.mark.parametrize(
    ("message", "reason", "problem"),
    [
        ({"content": None}, "stop", ": empty"),
        ({"content": "4"}, "MAX_TOKENS", ": cut at its limit of tokens"),
        ({"content": "4"}, "content_filter", ": filtered by the service"),
        ({"content": None, "refusal": "I cannot"}, "stop", ": a refusal"),
        ({"content": "<think>4</think> four"}, "stop", ""),
    ],
)
def test_only_what_was_read_is_kept(message, reason, problem, server, chat_client, tmp_path):
    """The rest is asked for again twice, once a run however many texts ask it, and next time."""
    choice = {"message": message, "finish_reason": reason}
    useless = Say(raw=json.dumps({"choices": [choice], "usage": {"prompt_tokens": 10}}))
    server.script = in_turn([useless])
    client = chat_client()
    for _ in range(2):
        asked = client.ask(HELLO, Sampling(temperature=0.0), number)
        assert (asked.value, asked.problem) == (None, f"none of 3 answers could be read{problem}")
    temperatures = [body["temperature"] for body in server.requests]
    assert temperatures == [0.0, RETRY_TEMPERATURE, RETRY_TEMPERATURE]
    assert client.usage()["tokens_paid"] == {"in": 30, "out": 0}
    assert not list(tmp_path.rglob("*.json"))
    server.script = in_turn([useless, Say("<think>3 or</think>4")])
    for num_requests in (5, 5):  # the second answer was read, and is kept
        assert chat_client().ask(HELLO, SAMPLING, number).value == 4
        assert len(server.requests) == num_requests


def test_a_model_that_takes_its_defaults_alone_gets_no_sampling_and_may_answer_in_parts(
    server, chat_client
):
    parts = [{"type": "thinking", "thinking": "3 or"}, {"type": "text", "text": "4"}]
    server.script = in_turn([Say(raw=json.dumps({"choices": [{"message": {"content": parts}}]}))])
    sampling = Sampling(temperature=0.0, top_p=0.9, max_tokens=7)
    assert chat_client(endpoint={"default_sampling": True}).ask(HELLO, sampling, number).value == 4
    assert server.requests == [{"model": "judge", "messages": HELLO, "max_tokens": 7}]


def test_threads_that_make_one_request_pay_once_and_answers_keep_their_order(server, chat_client):
    barrier, are_in = threading.Barrier(4, timeout=HANG_S), threading.Event()
    server.script = lambda body: Say(user_text(body), when=are_in)
    client = chat_client(concurrency=4)

    def work(number):
        if number < 4 and barrier.wait() == 0:  # the last of four has come
            are_in.set()
        message = {"role": "user", "content": str(number // 4)}
        return client.complete([message], SAMPLING)["text"]

    assert client.each(work, range(12), "x") == [str(number // 4) for number in range(12)]
    assert len(server.requests) == 3


def search(url, folder):
    return SerperSearch(PaidRequests(folder), api_key="secret", url=url, max_retries=1)


def results(*snippets):
    organic = [{"title": f"t{s}", "link": f"l{s}", "snippet": s, "position": 1} for s in snippets]
    return Say(raw=json.dumps({"searchParameters": {}, "organic": organic}))


def test_a_search_is_paid_for_once_with_its_key_in_the_header_alone(server, tmp_path):
    server.script = in_turn([Say(status=429, raw="{}"), results(*"abcdef")])
    hits = search(server.url, tmp_path).evidence("Ada met Bo.")
    assert hits == [Evidence(f"t{snippet}", f"l{snippet}", snippet) for snippet in "abcde"]
    assert search(server.url, tmp_path).evidence("Ada met Bo.") == hits
    assert server.requests == [{"q": "Ada met Bo.", "num": 5}] * 2 and server.keys == {"secret"}
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "Ada met Bo." in kept and "secret" not in kept


def test_a_search_may_find_nothing_or_fail(server, tmp_path):
    server.script = in_turn([Say(raw='{"organic": []}')])
    assert search(server.url, tmp_path).evidence("a") == []
    for reply in ("[3]", '{"message": "Not enough credits"}'):
        server.script = in_turn([Say(raw=reply)])
        with pytest.raises(RequestFailed, match="malformed reply"):
            search(server.url, tmp_path).evidence("b")
    with chat_server(server.script) as ended:
        pass
    with pytest.raises(RequestFailed, match="no connection"):
        search(ended.url, tmp_path).evidence("d")
