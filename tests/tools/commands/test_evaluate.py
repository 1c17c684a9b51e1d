"""`anchored evaluate`: a recorded run to a page, a user's texts, and judges that are paid once."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from chat_server import Say, chat_server, user_text
from command_line import refused, run
from forked_program import ForkedProgram
from json_lines import write_json_lines
from recorded_runs import record_run
from waiting import HANG_S

from anchored.durable_files import locked
from anchored.eval.analysis import run_report
from anchored.eval.copying import literal
from anchored.eval.copying.literal import copying_results
from anchored.eval.recorded_texts import read_texts, write_evaluation

pytest.importorskip("openai")


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
    return Say(f"[RESULT] {words.partition('grade ')[2][:1] or 4}")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    monkeypatch.setenv("SERPER_API_KEY", "secret-search")
    with chat_server(judge) as running_server:
        yield running_server


def texts_of(folder: Path, **texts) -> str:
    """A file of texts by setting and prompt."""
    rows = [
        {"setting": name, "id": id, "prompt": "BEGIN", "text": text, "group": "rare"}
        for name, by_prompt in texts.items()
        for id, text in by_prompt.items()
    ]
    return write_json_lines(folder / "t.jsonl", rows)


def cells(out, setting):
    """The row of a setting."""
    return next(line.split()[1:] for line in out.splitlines() if line.startswith(setting))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run without its evaluation, and one analysis of it: pictures take longest."""
    monkeypatch.setattr(run_report, "ANALYSES", {"fluency": run_report.ANALYSES["fluency"]})
    run_folder = record_run(tmp_path / "run", ledgers=False)
    for path in (run_folder / "evaluation").glob("*.json"):
        path.unlink()
    # All texts of the run are equal, and would tie unasked.
    rows = run_folder / "generations/k=1.jsonl"
    rows.write_text(rows.read_text().replace("the ", "that "))
    return run_folder


def test_a_run_goes_through_all_of_it_and_nothing_is_done_or_paid_twice(capsys, server, folder):
    words = ["evaluate", str(folder), "--judge-url", server.url, "--judge-model", "m"]
    words += ["--serper", "--serper-url", server.url + "/search"]
    words += ["--texts", "1", "--num-comparisons", "3"]
    server.script = lambda body: Say(status=400, raw="no")
    out, err = run(capsys, *words, status=1)
    assert out.splitlines()[-1] == str(folder / "report.html")
    titles = ["copying", "fluency", "win-rate", "factuality", "report"]
    steps = [line for line in err.splitlines() if line.startswith("[")]
    assert steps == [f"[{n}/5] {title}" for n, title in enumerate(titles, 1)]
    assert "fluency: nothing could be judged: status 400: 'no'" in err
    hits = json.dumps({"organic": [{"title": "t", "link": "l", "snippet": "s"}]})
    server.script = lambda body: Say(raw=hits) if "q" in body else judge(body)
    _, err = run(capsys, *words)
    assert err.count("done before") == 1  # copying
    analyses = {path.stem for path in (folder / "evaluation").glob("*.json")}
    assert analyses == {"copying", "fluency", "win-rate", "factuality", "steps"}
    page = (folder / "report.html").read_text()
    assert "win rate" in page and "<td>4.00</td>" in page
    factuality = (folder / "evaluation/factuality.json").read_text()
    assert '"evidence": "serper"' in factuality and "secret" not in factuality
    claims = {claim["claim"] for row in json.loads(factuality)["rows"] for claim in row["claims"]}
    assert server.paths["/v1/search"] == len(claims) > 1
    num_requests, written = len(server.requests), (folder / "report.html").stat().st_mtime_ns
    assert run(capsys, *words)[1].count("done before") == 5
    assert (folder / "report.html").stat().st_mtime_ns == written
    # What was judged stays without a judge, and so does the page with it.
    _, err = run(capsys, "evaluate", str(folder), "--texts", "1")
    assert err.count("done before") == 2
    assert len(server.requests) == num_requests


def test_a_text_is_scored_once_whatever_is_done_with_it_and_again_when_it_changes(
    capsys, folder, tmp_path, monkeypatch
):
    """As a sweep has scored a run's texts; other options and other folders read the same rows."""
    scored, score = [], literal.copying_score
    monkeypatch.setattr(
        literal, "copying_score", lambda *arguments: scored.append(arguments) or score(*arguments)
    )
    write_evaluation(folder, "copying", copying_results(read_texts(folder)))
    path, elsewhere = folder / "evaluation/copying.json", tmp_path / "elsewhere"
    recorded, scored[:] = path.read_text(), []
    only = ["evaluate", str(folder), "--only", "copying"]
    run(capsys, *only)
    run(capsys, *only, "--beside", "k=1")
    run(capsys, *only, "--output", str(elsewhere))
    rows = json.loads(recorded)["rows"]
    assert scored == [] and len(rows) == 8
    for file in (path, elsewhere / "evaluation/copying.json"):
        assert json.loads(file.read_text())["rows"] == rows
    run(capsys, *only)
    assert "copying: done before" in run(capsys, *only)[1]
    rows = folder / "generations/k=1.jsonl"
    rows.write_text(rows.read_text().replace("that ", "a "))
    run(capsys, *only)
    assert len(scored) == 1  # the texts of both prompts are equal, and so are the references
    monkeypatch.setattr(literal, "METRIC_SET", "another")
    run(capsys, *only, "--beside", "k=1")
    assert len(scored) == 1 + 2


def test_texts_of_a_file_are_measured_recorded_and_may_be_moved(capsys, tmp_path):
    kettle = "the grey kettle hummed on the stove today"
    by_setting = {"p_s": "no", "k=1": "the grey kettle sat", "p_r": kettle}
    rows = [
        {"setting": name, "id": "w", "text": text, "reference": kettle}
        for name, text in by_setting.items()
    ]
    texts = write_json_lines(tmp_path / "one" / "texts.jsonl", rows)
    out, err = run(capsys, "evaluate", texts)
    assert err == "[1/1] copying\n"
    assert "word LCS" in out and "> 6 words" in out
    moved = (tmp_path / "one").rename(tmp_path / "two") / "texts.jsonl"
    results = json.loads(Path(f"{moved}.evaluation/evaluation/copying.json").read_text())
    assert [row["word_lcs"] for row in results["rows"]] == [0, 3, 8]
    assert results["metric_set"] == "paper_spec_v3" and "git_commit" in results["environment"]
    assert "copying: done before" in run(capsys, "evaluate", str(moved))[1]
    out, err = run(capsys, "evaluate", str(moved), "--safe-setting", "k=1")
    assert err.startswith("[1/1] copying: again, as options.safe_setting was ") and " 1.000 " in out
    out, _ = run(capsys, "evaluate", str(moved), "--beside", "p_r")
    assert "NCR - p_r" in out and " +1.000 [-] " in out  # one prompt has no interval


def test_a_second_evaluation_of_a_run_is_refused_while_the_first_is_at_work(capsys, folder):
    with locked(folder / "evaluation" / "claim", waits=False) as is_ours:
        assert is_ours
        message = refused(capsys, "evaluate", str(folder))
    assert f"another evaluation is at work in {folder}" in message
    assert not (folder / "evaluation" / "steps.json").exists()


def test_fluency_is_printed_recorded_and_paid_once(capsys, server, tmp_path):
    texts = texts_of(tmp_path, p_s={"p": "grade 2", "q": "grade 3"}, k1={"p": "grade 4", "q": ""})
    output = Path(f"{texts}.evaluation/evaluation/fluency.json")
    prices = ["--price-in", "1", "--price-out", "10"]
    words = ["evaluate", texts, "--only", "fluency"]
    words += ["--judge-url", server.url, "--judge-model", "m"]
    limited, _ = run(capsys, *words, "--limit", "1", "--dry-run")
    assert limited.startswith("fluency: 2 requests, about ") and not server.requests
    assert not list(tmp_path.glob("*.evaluation"))
    out, err = run(capsys, *words, *prices)
    assert cells(out, "p_s") == ["2.500", "2", "0", "0"]
    assert cells(out, "k1") == ["4.000", "1", "1", "0"]
    assert "3 asked, 0 kept, 3 sent, 0 failed; 30 + 9 tokens paid, 0.0001 USD" in err
    results = json.loads(output.read_text())
    assert results["endpoint"] == {"model": "m", "base_url": server.url, "seed": None}
    assert (results["judge"], results["metric_set"]) == ("fluency", "fluency_v3")
    again, err = run(capsys, *words, *prices)
    assert again == out and "done before" in err
    output.unlink()
    again, err = run(capsys, *words)
    assert again == out and "3 kept, 0 sent" in err and len(server.requests) == 3
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    # Texts, results, which steps are done, a lock, and three answers.
    assert len(everything) == 4 + 3 and server.keys == {"Bearer secret-key"}
    assert not any(b"secret" in path.read_bytes() for path in everything)


@pytest.mark.slow  # starts a program
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_without_a_second_payment(capsys, server, stop, tmp_path):
    k1_texts = {str(number): f"grade {number % 5 + 1}, {number}" for number in range(20)}
    texts = texts_of(tmp_path, k1=k1_texts)
    both_wait, may_go_on = threading.Event(), threading.Event()

    def script(body):
        if len(server.requests) == 10:  # eight answers are kept, two requests are on their way
            both_wait.set()
        return Say(judge(body).text, when=may_go_on if len(server.requests) > 8 else None)

    server.script = script
    line = ["evaluate", texts, "--only", "fluency", "--concurrency", "2"]
    line += ["--judge-url", server.url, "--judge-model", "m"]
    program = ForkedProgram("anchored.tools.cli", line, tmp_path / "output.txt")
    assert both_wait.wait(HANG_S)
    os.kill(program.pid, stop)
    if stop == signal.SIGINT:  # it waits for what is on its way, which is paid for
        may_go_on.set()
    status, shown = program.wait(), program.output.read_text()
    may_go_on.set()
    assert status == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    assert stop == signal.SIGKILL or shown.endswith("anchored evaluate: interrupted\n")
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
