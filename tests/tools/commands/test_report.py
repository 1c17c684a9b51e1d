"""`anchored analyse` and `anchored report`: a run's folder in; tables, pictures and a page out."""

from command_line import run
from recorded_runs import record_run


def test_analyses_are_printed_and_written_beside_the_run(capsys, tmp_path):
    folder = record_run(tmp_path / "run", ledgers=False)
    (folder / "evaluation/factuality.json").unlink()
    status, out, err = run(capsys, "analyse", str(folder))
    assert (status, err) == (0, "")
    assert "Where copied spans begin" in out
    assert "not measured: precision_by_group: no results of anchored judge factuality" in out
    assert (folder / "analysis/start_positions.svg").exists()


def test_a_report_is_three_files_and_the_same_again(capsys, tmp_path):
    folder, output = record_run(tmp_path / "run", ledgers=False), tmp_path / "new" / "page"
    words = ["report", str(folder), "--output", str(output), "--texts", "1"]
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    files = [output / name for name in ("report.html", "report.md", "report.tex")]
    assert out.splitlines() == [str(file) for file in files]
    first = [file.read_bytes() for file in files]
    assert run(capsys, *words)[0] == 0
    assert [file.read_bytes() for file in files] == first


def test_what_is_no_run_is_refused_in_one_line(capsys, tmp_path):
    status, _, err = run(capsys, "report", str(tmp_path / "none"))
    assert status != 0 and "there is no folder" in err
    status, _, err = run(capsys, "report", str(tmp_path))
    assert status == 1 and err.endswith("holds no generations/*.jsonl\n")
    status, _, err = run(capsys, "analyse", str(tmp_path), "--ledgers", "-1")
    assert status != 0 and "--ledgers must be at least 0, got -1" in err
