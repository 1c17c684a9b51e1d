"""Evidence for claims: a search over real HTTP, a corpus, a file."""

import json

import pytest
from chat_server import Say, chat_server, in_turn

from anchored.eval.paid_requests import PaidRequests, RequestFailed
from anchored.eval.retrieval.evidence import Evidence, RecordedEvidence, SerperSearch


def search(server, folder):
    requests = PaidRequests(folder)
    return SerperSearch(requests, api_key="secret", url=server.url, max_retries=1)


def results(*snippets):
    organic = [{"title": f"t{s}", "link": f"l{s}", "snippet": s, "position": 1} for s in snippets]
    return Say(raw=json.dumps({"searchParameters": {}, "organic": organic}))


def test_a_search_is_paid_for_once_with_its_key_in_the_header_alone(tmp_path):
    script = in_turn([Say(status=429, raw="{}"), results(*"abcdef")])
    with chat_server(script) as server:
        hits = search(server, tmp_path).evidence("Ada met Bo.")
        assert hits == [Evidence(f"t{snippet}", f"l{snippet}", snippet) for snippet in "abcde"]
        assert search(server, tmp_path).evidence("Ada met Bo.") == hits
    assert server.requests == [{"q": "Ada met Bo.", "num": 5}] * 2 and server.keys == {"secret"}
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "Ada met Bo." in kept and "secret" not in kept


def test_a_search_may_find_nothing_or_fail(tmp_path):
    with chat_server(in_turn([Say(raw='{"organic": []}')])) as server:
        assert search(server, tmp_path).evidence("a") == []
        for reply in ("[3]", '{"message": "Not enough credits"}'):
            server.script = in_turn([Say(raw=reply)])
            with pytest.raises(RequestFailed, match="malformed reply"):
                search(server, tmp_path).evidence("b")
    with pytest.raises(RequestFailed, match="no connection"):
        search(server, tmp_path).evidence("d")


def test_recorded_evidence_is_by_claim_and_what_is_not_there_is_a_failure(tmp_path):
    path = tmp_path / "evidence.jsonl"
    path.write_text('{"claim": "a", "results": [{"text": "x"}, {"text": "y", "title": "t"}]}')
    recorded = RecordedEvidence(path)
    assert recorded.evidence("a") == [Evidence("", "", "x"), Evidence("t", "", "y")]
    with pytest.raises(RequestFailed, match="has no evidence for this claim"):
        recorded.evidence("b")
    for line, message in (
        ('{"results": []}', r'evidence\.jsonl, row 1 must have a "claim"'),
        ('{"claim": "a", "results": [{"title": "t"}]}', 'row 1: a result must have a "text"'),
    ):
        path.write_text(line)
        with pytest.raises(ValueError, match=message):
            RecordedEvidence(path)
