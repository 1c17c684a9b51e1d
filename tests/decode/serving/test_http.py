"""Who is let in, before anything of a request is read."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from anchored.decode.serving.gauges import Metrics
from anchored.decode.serving.http import BodyTooLarge, Guard, body_of, read_keys
from anchored.decode.serving.server_options import ServerOptions


def answered(keys=None, hosts=(), root_path="", path="/v1/completions", method="POST", **sent):
    """(the status, the headers, the paths that reached the application)"""
    reached, said = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        raise AssertionError("the body of a request that is refused was read")

    async def send(message):
        said.append(message)

    headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in sent.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    guard = Guard(app, Metrics(), keys_now=lambda: keys or {}, hosts=hosts, root_path=root_path)
    asyncio.run(guard(scope, receive, send))
    return said[0]["status"], dict(said[0]["headers"]), reached


def test_a_key_of_the_file_opens_all_and_without_one_health_alone_is_answered(tmp_path):
    (tmp_path / "keys").write_text("# of the team\nsesame\n\nother-key\n")
    keys = read_keys(tmp_path / "keys")
    for key in ("sesame", "other-key"):
        named = {"authorization": f"Bearer {key}", "content_type": "application/json"}
        assert answered(keys, **named)[0] == 200
    for wrong in ("Bearer Sesame", "Bearer # of the team", "Bearer ", "Basic sesame", "sesame"):
        status, headers, reached = answered(keys, path="/x", method="GET", authorization=wrong)
        assert (status, reached) == (401, [])
        assert headers[b"www-authenticate"] == b"Bearer" and headers[b"connection"] == b"close"
    assert answered(keys)[0] == 401
    assert answered(keys, path="/health", method="GET")[0] == 200


def test_a_file_without_a_key_is_refused(tmp_path):
    for content, said in (("# none\n", "holds no key"), ("good\ntwo words\n", "key 2 must be")):
        (tmp_path / "keys").write_text(content)
        with pytest.raises(ValueError, match=said):
            read_keys(tmp_path / "keys")


def test_other_hosts_are_other_servers():
    hosts = ServerOptions(allowed_host=("api.example.org",)).hosts
    statuses = {
        "localhost:8000": 200,
        "[::1]:8000": 200,
        "LocalHost": 200,
        "api.example.org": 200,
        "evil.example.org": 403,
        "localhost.evil.example.org:8000": 403,
        "": 403,
    }
    for host, status in statuses.items():
        assert answered(hosts=hosts, host=host, path="/health", method="GET")[0] == status


def test_what_a_page_of_another_site_can_send_is_no_request():
    for kind in ("", "text/plain"):
        assert answered(content_type=kind)[0] == 415
    assert answered(content_type="application/json; charset=utf-8")[0] == 200


def test_the_prefix_of_a_proxy_may_be_left_or_not():
    for path in ("/api/v1/models", "/v1/models"):
        assert answered(root_path="/api/", path=path, method="GET")[2] == ["/v1/models"]
    assert answered(root_path="/api", path="/apiv1", method="GET")[2] == ["/apiv1"]


def test_other_machines_come_in_with_a_key_by_any_name(tmp_path):
    file = tmp_path / "keys"
    file.write_text("sesame")
    for options, said in (
        ({"accounts": file, "expose_logprobs": True}, "--expose-logprobs tells what costs none"),
        ({"host": "0.0.0.0"}, "lets other machines in"),
        ({"port": 70_000}, "port must be in"),
        ({"root_path": "api"}, "must begin with /"),
        ({"max_body": 0}, "max-body must be >= 1"),
    ):
        with pytest.raises(ValueError, match=said):
            ServerOptions(**options)
    assert ServerOptions(host="0.0.0.0", api_key_file=file).hosts == ()


def body(*messages, limit=10, headers=()):
    waiting = list(messages)

    async def receive():
        return waiting.pop(0)

    request = Request({"type": "http", "headers": list(headers)}, receive)
    return asyncio.run(body_of(request, limit))


def part(content: bytes, more: bool):
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_is_read_within_its_limit():
    assert body(part(b"12345", True), part(b"67890", False)) == b"1234567890"
    with pytest.raises(BodyTooLarge, match="at most 10 bytes"):
        body(part(b"12345", True), part(b"678901", True), part(b"", False))
    with pytest.raises(BodyTooLarge, match="got 11"):
        body(headers=[(b"content-length", b"11")])
    with pytest.raises(ClientDisconnect):
        body(part(b"1", True), {"type": "http.disconnect"})
