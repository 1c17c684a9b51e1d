"""`anchored evaluate`: a recorded run through everything, once, to a page."""

import json

import pytest
from chat_server import Say, chat_server, user_text
from command_line import refused, run
from recorded_runs import record_run

from anchored.durable_files import locked
from anchored.eval.analysis import registry

pytest.importorskip("openai")


def judge(body):
    """Grade 4, the first text, one claim that is supported."""
    words = user_text(body)
    if "### Continuation A" in words:
        return Say("[RESULT] A")
    if "<SOS>" in words:
        return Say("- T")
    return Say("### Supported ###" if "Claim: " in words else "[RESULT] 4")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with chat_server(judge) as own:
        yield own


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run without its evaluation, and one analysis of it: pictures take longest."""
    monkeypatch.setattr(registry, "ANALYSES", {"fluency": registry.ANALYSES["fluency"]})
    own = record_run(tmp_path / "run", ledgers=False)
    for path in (own / "evaluation").glob("*.json"):
        path.unlink()
    rows = own / "generations/k=1.jsonl"  # all texts of the run are equal, and would tie unasked
    rows.write_text(rows.read_text().replace("the ", "that "))
    return own


def test_a_run_goes_through_all_of_it_and_nothing_is_done_or_paid_twice(
    capsys, server, folder, tmp_path
):
    evidence = tmp_path / "evidence.jsonl"
    evidence.write_text('{"claim": "T", "results": [{"text": "yes"}]}\n')
    words = ["evaluate", str(folder), "--judge-url", server.url, "--judge-model", "m"]
    words += ["--evidence", str(evidence), "--texts", "1", "--num-comparisons", "3"]
    status, out, err = run(capsys, *words)
    assert (status, out.splitlines()[-1]) == (0, str(folder / "report.html"))
    titles = ["copying", "fluency", "win rate", "factuality", "analyses", "page"]
    steps = [line for line in err.splitlines() if line.startswith("[")]
    assert steps == [f"[{n}/6] {title}" for n, title in enumerate(titles, 1)]
    found = {path.stem for path in (folder / "evaluation").glob("*.json")}
    assert found == {"copying", "fluency", "win-rate", "factuality", "steps"}
    page = (folder / "report.html").read_text()
    assert "win rate" in page and "<td>4.00</td>" in page
    num_requests, written = len(server.requests), (folder / "report.html").stat().st_mtime_ns
    status, _, err = run(capsys, *words)
    assert status == 0 and err.count("done before") == 6
    assert (folder / "report.html").stat().st_mtime_ns == written
    assert len(server.requests) == num_requests


def test_other_texts_are_measured_again_and_other_options_show(capsys, folder):
    assert run(capsys, "evaluate", str(folder))[0] == 0
    rows = folder / "generations/k=1.jsonl"
    rows.write_text(rows.read_text().replace("that ", "a "))
    _, _, err = run(capsys, "evaluate", str(folder))
    assert "done before" not in err
    _, _, err = run(capsys, "evaluate", str(folder), "--texts", "2")
    assert err.count("done before") == 2 and "[3/3] page\n" in err  # copying and analyses are


def test_what_a_judge_could_not_judge_is_asked_for_again_and_the_page_is_there(
    capsys, server, folder
):
    server.script = lambda body: Say(status=400, raw="no")
    words = ["evaluate", str(folder), "--judge-url", server.url, "--judge-model", "m"]
    status, out, err = run(capsys, *words)
    assert status == 1 and "fluency: nothing could be judged: status 400: 'no'" in err
    assert out.splitlines()[-1] == str(folder / "report.html")
    server.script = judge
    status, _, err = run(capsys, *words)
    assert status == 0 and err.count("done before") == 1  # copying
    assert "<td>4.00</td>" in (folder / "report.html").read_text()
    status, _, err = run(capsys, "evaluate", str(folder))
    assert err.count("done before") == 3  # what was judged stays, and so does the page with it


def test_characters_are_counted_where_prompts_name_them(capsys, folder):
    path = folder / "prompts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**row, "reference": "", "characters": [["Ann"]]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, err = run(capsys, "evaluate", str(folder))
    assert status == 0 and "[1/3] characters\n" in err and "characters > 3" in out
    assert "copying" not in err  # there is nothing to copy from


def test_what_cannot_be_done_is_refused_before_anything_else(capsys, folder, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ["evaluate", str(folder)]
    assert "the environment has no key" in refused(capsys, *words, "--judge-model", "m")
    own = refused(capsys, *words, "--judge-model", "m", "--judge-url", "nowhere")
    assert "base_url must be" in own
    assert "give --judge-model too" in run(capsys, *words, "--serper")[2]
    assert "there is no folder" in run(capsys, "evaluate", str(folder / "none"))[2]
    assert not (folder / "evaluation/steps.json").exists()


def test_a_second_evaluation_of_a_run_is_refused_while_the_first_is_at_work(capsys, folder):
    with locked(folder / "evaluation" / "claim", waits=False) as is_ours:
        assert is_ours
        message = refused(capsys, "evaluate", str(folder))
    assert f"another evaluation is at work in {folder}" in message
    assert not (folder / "evaluation" / "steps.json").exists()
    assert run(capsys, "evaluate", str(folder))[0] == 0
