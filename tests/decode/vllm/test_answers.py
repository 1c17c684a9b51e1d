"""What the server's middleware passes on, and what it adds to answers."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from anchored.decode.vllm import answers
from anchored.decode.vllm.answers import AnsweringMiddleware, Answers
from anchored.decode.vllm.journal import JournalError

SPENT = {"id": "x", "spent": 1.5}


class Known:
    """Knows what every text has spent, by the end of its id."""

    def take(self, name):
        return {**SPENT, "choice": name[-1]}


@pytest.fixture
def call(monkeypatch):
    """Calls an application that says `chunks`; gives the status of the answer, the bodies that the
    application saw, the answer's body and its messages."""
    monkeypatch.setattr(answers, "answers", Known())

    def call(path, chunks, *, body=b"{}", kind=b"application/json"):
        seen, sent = [], []

        async def app(scope, receive, send):
            seen.append((await receive())["body"])
            headers = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for number, chunk in enumerate(chunks):
                more = number + 1 < len(chunks)
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": path, "headers": []}
        asyncio.run(AnsweringMiddleware(app)(scope, receive, send))
        return sent[0]["status"], seen, b"".join(own.get("body", b"") for own in sent), sent

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
    assert [own["anchored"]["choice"] for own in answer["choices"]] == ["0", "1"]


def test_a_stream_says_it_in_the_chunk_that_ends_a_text(call):
    chunks = [{"choices": [{"index": 0, "finish_reason": reason}]} for reason in (None, "length")]
    events = b"".join(b"data: " + json.dumps(own).encode() + b"\n\n" for own in chunks)
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
        ({"anchored": {"kk": 1.0}}, "unknown field 'kk'"),
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


def outputs_of(*texts):
    """An engine's outputs, the last of them finished; `closed` once nobody asks any more."""

    async def generate():
        try:
            for number, token_ids in enumerate(texts):
                text = SimpleNamespace(token_ids=token_ids)
                yield SimpleNamespace(outputs=[text], finished=number + 1 == len(texts))
        finally:
            closed.append(True)

    closed: list[bool] = []
    return generate(), closed


class Told:
    """A journal that knows no token 13, and says of each text which tokens it was asked for."""

    def __init__(self):
        self.forgotten = []

    def answer(self, name, token_ids):
        if 13 in token_ids:
            raise JournalError("no 13")
        return {"tokens": list(token_ids)}

    def forget(self, name):
        self.forgotten.append(name)


@pytest.mark.parametrize("is_delta", [True, False])
def test_a_text_leaves_after_the_journal_has_all_of_it(is_delta):
    own = Answers(Told())
    outputs, closed = outputs_of([1, 2], [3] if is_delta else [1, 2, 3])

    async def read():
        return [output async for output in own.held(outputs, "a", is_delta=is_delta)]

    assert len(asyncio.run(read())) == 2
    assert own.take("a") == {"tokens": [1, 2, 3]}
    assert own.take("a") is None
    assert (closed, own.journal.forgotten) == ([True], ["a"])


def test_a_text_that_the_journal_lacks_does_not_leave_and_stops_its_engine(monkeypatch):
    monkeypatch.setattr(answers, "WAIT_S", 0.03)
    own, got = Answers(Told()), []
    outputs, closed = outputs_of([1], [1, 13], [1, 13, 2])

    async def read():
        async for output in own.held(outputs, "a", is_delta=False):
            got.append(output)

    with pytest.raises(JournalError, match="no 13"):
        asyncio.run(read())
    assert len(got) == 1
    assert (closed, own.take("a"), own.journal.forgotten) == ([True], None, ["a"])


def test_other_endpoints_are_not_there(call):
    for path in ("/v1/responses", "/v1/embeddings", "/inference/v1/generate", "/collective_rpc"):
        assert call(path, [b"{}"])[0] == 404
    assert call("/v1/models", [b"{}"])[0] == 200
