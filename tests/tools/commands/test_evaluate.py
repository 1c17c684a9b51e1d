"""`anchored evaluate`: a recorded run through everything, once, to a page."""

import json

import pytest
from chat_server import Say, chat_server, user_text
from command_line import refused, run
from json_lines import write_json_lines
from recorded_runs import record_run

from anchored.durable_files import locked
from anchored.eval.analysis import run_report
from anchored.eval.copying import literal
from anchored.eval.copying.literal import copying_results
from anchored.eval.recorded_texts import read_texts, write_evaluation

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
    with chat_server(judge) as judge_server:
        yield judge_server


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


def test_a_run_goes_through_all_of_it_and_nothing_is_done_or_paid_twice(
    capsys, server, folder, tmp_path
):
    claims = [{"claim": "T", "results": [{"text": "yes"}]}]
    evidence = write_json_lines(tmp_path / "evidence.jsonl", claims)
    words = ["evaluate", str(folder), "--judge-url", server.url, "--judge-model", "m"]
    words += ["--evidence", evidence, "--texts", "1", "--num-comparisons", "3"]
    out, err = run(capsys, *words)
    assert out.splitlines()[-1] == str(folder / "report.html")
    titles = ["copying", "fluency", "win-rate", "factuality", "report"]
    steps = [line for line in err.splitlines() if line.startswith("[")]
    assert steps == [f"[{n}/5] {title}" for n, title in enumerate(titles, 1)]
    analyses = {path.stem for path in (folder / "evaluation").glob("*.json")}
    assert analyses == {"copying", "fluency", "win-rate", "factuality", "steps"}
    page = (folder / "report.html").read_text()
    assert "win rate" in page and "<td>4.00</td>" in page
    num_requests, written = len(server.requests), (folder / "report.html").stat().st_mtime_ns
    _, err = run(capsys, *words)
    assert err.count("done before") == 5
    assert (folder / "report.html").stat().st_mtime_ns == written
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
    rows = folder / "generations/k=1.jsonl"
    rows.write_text(rows.read_text().replace("that ", "a "))
    run(capsys, *only)
    assert len(scored) == 1  # the texts of both prompts are equal, and so are the references
    monkeypatch.setattr(literal, "METRIC_SET", "another")
    run(capsys, *only, "--beside", "k=1")
    assert len(scored) == 1 + 2


def test_what_a_judge_could_not_judge_is_asked_for_again_and_the_page_is_there(
    capsys, server, folder
):
    server.script = lambda body: Say(status=400, raw="no")
    words = ["evaluate", str(folder), "--judge-url", server.url, "--judge-model", "m"]
    out, err = run(capsys, *words, status=1)
    assert "fluency: nothing could be judged: status 400: 'no'" in err
    assert out.splitlines()[-1] == str(folder / "report.html")
    server.script = judge
    _, err = run(capsys, *words)
    assert err.count("done before") == 1  # copying
    assert "<td>4.00</td>" in (folder / "report.html").read_text()
    _, err = run(capsys, "evaluate", str(folder))
    assert err.count("done before") == 2  # what was judged stays, and so does the page with it


@pytest.fixture
def texts(tmp_path) -> str:
    """A file of a user's texts."""
    kettle = "the grey kettle hummed on the stove today"
    rows = [("p_s", 0, "no"), ("k=1", 0, "the grey kettle sat"), ("p_r", 0, kettle)]
    lines = [
        {"setting": name, "seed": seed, "id": "w", "text": text, "reference": kettle}
        for name, seed, text in rows
    ]
    return write_json_lines(tmp_path / "texts.jsonl", lines)


def test_texts_of_a_file_are_measured_and_all_is_recorded(capsys, texts, tmp_path):
    output = tmp_path / "results"
    out, err = run(capsys, "evaluate", texts, "--output", str(output))
    assert err == "[1/1] copying\n"
    assert "word LCS" in out and "> 6 words" in out
    results = json.loads((output / "evaluation/copying.json").read_text())
    by_setting = {setting["setting"]: setting for setting in results["settings"]}
    assert by_setting["p_r"]["word_lcs"] == {"mean": 8.0, "std": None, "num_seeds": 1}
    assert by_setting["p_r"]["share_above"] == {"6": 1.0, "20": 0.0, "50": 0.0}
    assert by_setting["p_s"]["ncr"]["mean"] == 1.0 and by_setting["p_s"]["ncr"]["num_texts"] == 1
    assert [row["word_lcs"] for row in results["rows"]] == [0, 3, 8]
    assert results["metric_set"] == "paper_spec_v3" and "git_commit" in results["environment"]
    other = ["--safe-setting", "k=1", "--output", str(output)]
    out, err = run(capsys, "evaluate", texts, *other)
    assert err.startswith("[1/1] copying: again, as options.safe_setting was ") and " 1.000 " in out
    out, _ = run(capsys, "evaluate", texts, "--beside", "p_r", "--output", str(output))
    assert "NCR - p_r" in out and " +1.000 [-] " in out  # one prompt has no interval


def test_models_alone_are_named_by_their_files(capsys, tmp_path):
    kettle = "the grey kettle hummed on the stove today"
    files = []
    for name, text in (("tiny", "no"), ("k_1", "the grey kettle sat"), ("llama", kettle)):
        rows = [{"id": "w", "input": "p", "reference": kettle, "output": text}]
        files.append(str(tmp_path / f"{name}_gen.json"))
        (tmp_path / f"{name}_gen.json").write_text(json.dumps(rows))
    _, err = run(capsys, "evaluate", *files)
    assert "no NCR: there are no texts of p_s or p_r; name the models alone with --safe" in err
    assert "of k_1_gen, llama_gen, tiny_gen" in err
    alone = ["--safe-setting", "tiny_gen", "--risky-setting", "llama_gen"]
    out, _ = run(capsys, "evaluate", *files, *alone)
    assert out.splitlines()[-1] == f"{files[0]}.evaluation/evaluation/copying.json"
    path = tmp_path / "tiny_gen.json.evaluation/evaluation/copying.json"
    ncr = [setting["ncr"]["mean"] for setting in json.loads(path.read_text())["settings"]]
    assert ncr[0] == 1 and 0 < ncr[1] < 1 and ncr[2] == 0
    _, err = run(capsys, "evaluate", *files, *alone)
    assert "done before" in err
    message = refused(capsys, "evaluate", *files, "--safe-setting", "tiny")
    assert "--safe-setting: there are no texts of 'tiny', only of k_1_gen, " in message
    message = refused(capsys, "evaluate", *files, "--only", "report")
    assert "a report is on a run's folder" in message


def test_a_second_evaluation_of_a_run_is_refused_while_the_first_is_at_work(capsys, folder):
    with locked(folder / "evaluation" / "claim", waits=False) as is_ours:
        assert is_ours
        message = refused(capsys, "evaluate", str(folder))
    assert f"another evaluation is at work in {folder}" in message
    assert not (folder / "evaluation" / "steps.json").exists()
    run(capsys, "evaluate", str(folder))
