"""Judges against a server on this machine: scores, what is paid, what is recorded."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from chat_server import Say, chat_server, user_text
from command_line import run
from json_lines import write_json_lines
from waiting import HANG_S

pytest.importorskip("openai")


@pytest.fixture
def file_of(tmp_path):
    """A file of texts by setting and prompt."""

    def write(**texts) -> str:
        rows = [
            {"setting": name, "id": id, "prompt": "BEGIN", "text": text, "group": "rare"}
            for name, by_prompt in texts.items()
            for id, text in by_prompt.items()
        ]
        return write_json_lines(tmp_path / "t.jsonl", rows)

    return write


def judge(body):
    """Grades are digits of the text, claims its words, true with a "T"; the longer text wins."""
    words = user_text(body)
    if "### Continuation A" in words:
        first, _, second = words.partition("Continuation A\n")[2].partition("\n\n### Continu")
        second = second.partition("\n")[2]
        return Say(f"[RESULT] {'A' if len(first) > len(second) else 'B'}")
    if "<SOS>" in words:
        focus = words.partition("<SOS>")[2].partition("<EOS>")[0]
        return Say("\n".join(f"- {word}" for word in focus.rstrip(".").split()))
    if "Claim: " in words:
        claim = words.partition("Claim: ")[2]
        return Say(f"### {'Supported' if claim.startswith('T') else 'Unsupported'} ###")
    return Say(f"[RESULT] {words.partition('grade ')[2][0]}")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    monkeypatch.setenv("SERPER_API_KEY", "secret-search")
    with chat_server(judge) as running_server:
        yield running_server


@pytest.fixture
def judged(capsys, server):
    """(stdout, stderr) of a judge's work on a file of texts."""

    def judged(name, texts, *more, status=0) -> tuple[str, str]:
        options = ["--judge-url", server.url, "--judge-model", "m"]
        return run(capsys, "evaluate", texts, "--only", name, *options, *more, status=status)

    return judged


def cells(out, setting):
    """The row of a setting."""
    return next(line.split()[1:] for line in out.splitlines() if line.startswith(setting))


def test_fluency_is_printed_recorded_and_paid_once(server, tmp_path, file_of, judged):
    texts = file_of(p_s={"p": "grade 2", "q": "grade 3"}, k1={"p": "grade 4", "q": ""})
    output = Path(f"{texts}.evaluation/evaluation/fluency.json")
    prices = ["--price-in", "1", "--price-out", "10"]
    out, err = judged("fluency", texts, *prices)
    assert cells(out, "p_s") == ["2.500", "2", "0", "0"]
    assert cells(out, "k1") == ["4.000", "1", "1", "0"]
    assert "3 asked, 0 kept, 3 sent, 0 failed; 30 + 9 tokens paid, 0.0001 USD" in err
    results = json.loads(output.read_text())
    assert results["endpoint"] == {"model": "m", "base_url": server.url, "seed": None}
    assert (results["judge"], results["metric_set"]) == ("fluency", "fluency_v3")
    assert [row["fluency"] for row in results["rows"]] == [2, 3, 4, None]
    again, err = judged("fluency", texts, *prices)
    assert again == out and "done before" in err
    output.unlink()
    again, err = judged("fluency", texts)
    assert again == out and "3 kept, 0 sent" in err and len(server.requests) == 3
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    # Texts, results, which steps are done, a lock, and three answers.
    assert len(everything) == 4 + 3 and server.keys == {"Bearer secret-key"}
    assert not any(b"secret" in path.read_bytes() for path in everything)


@pytest.mark.parametrize("name", ["fluency", "win-rate", "factuality"])
def test_what_is_asked_is_known_before_it_is_paid(name, server, tmp_path, file_of, judged):
    texts = file_of(p_s={"p": "grade 2", "q": "grade 3"}, k1={"p": "grade 4", "q": "grade 3"})
    line = [name, texts, "--price-in", "1", "--price-out", "10"]
    if name == "factuality":
        evidence = [{"claim": "grade", "results": [{"text": "yes"}]}]
        line += ["--evidence", write_json_lines(tmp_path / "evidence.jsonl", evidence)]
    out, _ = judged(*line, "--dry-run")
    assert not server.requests and "at most about 0.0" in out
    assert not list(tmp_path.glob("*.evaluation"))
    count = {"fluency": 3, "win-rate": 2, "factuality": 3}[name]  # the texts of q are equal
    assert out.startswith(f"{name}: {count} requests, about ")
    assert out in judged(*line)[1]  # the same before the first request
    first = [body for body in server.requests if "Claim: " not in user_text(body)]
    assert len(first) == count


def test_factuality_searches_for_each_claim_and_splits_by_group(server, tmp_path, file_of, judged):
    response = json.dumps({"organic": [{"title": "t", "link": "l", "snippet": "s"}]})

    server.script = lambda body: Say(raw=response) if "q" in body else judge(body)
    texts = file_of(k1={"p": "T1 F1 T2. T1 T3.", "q": "F2."})
    folder = tmp_path / "out"
    search = ["--serper", "--serper-url", server.url + "/search", "--output", str(folder)]
    out, _ = judged("factuality", texts, *search)
    # Of p 3 of 4 (T1 once), of q 0 of 1: macro 0.375, micro 3 of 5; 5 claims in 2 texts.
    assert cells(out, "k1") == ["0.375", "0.600", "2.500", "0", "0", "0"]
    assert server.paths == {"/v1/chat/completions": 3 + 5, "/v1/search": 5}
    recorded = (folder / "evaluation/factuality.json").read_text()
    results = json.loads(recorded)
    assert results["retriever"]["evidence"] == "serper" and "secret" not in recorded
    assert results["settings"][0]["by_group"]["rare"]["micro"] == 0.6
    (folder / "evaluation/factuality.json").unlink()
    judged("factuality", texts, *search)
    assert len(server.requests) == 13


def test_win_rates_are_of_both_orders(file_of, judged):
    long, short = {"p": "aaaa", "q": "cccc", "r": "a"}, {"p": "bb", "q": "bb", "r": "bb"}
    texts = file_of(k1=long, p_s=short)
    out, err = judged("win-rate", texts)
    assert cells(out, "k1")[0] == "0.667" and cells(out, "p_s")[0] == "0.333"
    assert cells(out, "k1")[3:] == ["3", "0", "0"]
    # Both settings ask about the same pairs in both orders: 6 requests are paid for, not 12.
    assert "12 asked, 6 kept, 6 sent" in err
    out, err = judged("win-rate", texts, "--pool", "nobody", status=1)
    assert "there are no texts of 'nobody' for the pool" in err


def test_failures_are_counted_and_a_run_of_nothing_else_says_so(server, tmp_path, file_of, judged):
    texts = file_of(k1={"p": "grade 5", "q": "grade 1"})
    server.script = lambda body: (
        Say(status=400, raw="no") if "grade 1" in user_text(body) else judge(body)
    )
    out, _ = judged("fluency", texts)
    assert cells(out, "k1") == ["5.000", "1", "0", "1"]
    other = str(tmp_path / "other")
    server.script = lambda body: Say(status=401, raw="secret-key is wrong")
    out, err = judged("fluency", texts, "--answers", other, status=1)
    assert "secret" not in err
    assert err.splitlines()[-1].startswith("fluency: the service answers with")


# A shell starts what runs in its background with SIGINT ignored, and programs inherit that.
INTERRUPTIBLE = """
import signal
from anchored.tools.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.mark.slow  # starts a program, which loads the library, twice
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_without_a_second_payment(capsys, server, stop, file_of):
    k1_texts = {str(number): f"grade {number % 5 + 1}, {number}" for number in range(20)}
    texts = file_of(k1=k1_texts)
    both_wait, may_go_on = threading.Event(), threading.Event()

    def script(body):
        if len(server.requests) == 10:  # eight answers are kept, two requests are on their way
            both_wait.set()
        return Say(judge(body).text, when=may_go_on if len(server.requests) > 8 else None)

    server.script = script
    line = ["evaluate", texts, "--only", "fluency", "--concurrency", "2"]
    line += ["--judge-url", server.url, "--judge-model", "m"]
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *line], stderr=subprocess.PIPE, text=True
    )
    assert both_wait.wait(HANG_S)
    program.send_signal(stop)
    if stop == signal.SIGINT:  # it waits for what is on its way, which is paid for
        may_go_on.set()
    _, err = program.communicate(timeout=HANG_S)
    may_go_on.set()
    assert program.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    assert stop == signal.SIGKILL or err.endswith("anchored evaluate: interrupted\n")
    kept = [json.loads(file.read_text()) for file in Path(f"{texts}.answers").rglob("*.json")]
    asked = [json.loads(answer["request"])["body"]["messages"] for answer in kept]
    num_before, server.script = len(server.requests), judge
    assert len(kept) == (8 if stop == signal.SIGKILL else num_before)
    out, err = run(capsys, *line)
    assert cells(out, "k1")[:2] == ["3.000", "20"]
    assert f"20 asked, {len(kept)} kept, {20 - len(kept)} sent" in err
    later = [body["messages"] for body in server.requests[num_before:]]
    assert len(later) == 20 - len(kept) and not any(messages in asked for messages in later)
    # Of a killed run, what was on its way is lost; an interrupted one loses nothing.
    assert stop == signal.SIGKILL or len(server.requests) == 20
