"""Recorded generations in the forms that they come in."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from json_lines import write_json_lines

from anchored.eval.recorded_texts import RecordedText, by_setting, read_texts


def write(path, *rows):
    return Path(write_json_lines(path, rows))


def test_json_lines_name_their_settings_and_what_they_lack_has_defaults(tmp_path):
    full = {"id": 7, "setting": "k=1", "seed": 3, "text": "a\u2028b", "prompt": "p", "debt": "inf"}
    full |= {"reference": "r", "characters": [["Ann", "Miss Lee"]], "group": "rare"}
    first, second = read_texts(write(tmp_path / "mine.jsonl", full, {"text": "c"}))
    changed = {"id": "7", "debt": float("inf"), "answer": None, "row": {}}
    assert asdict(first) == {**full, **changed}
    assert second == RecordedText(setting="mine", id="2", seed=0, text="c")


def test_a_run_s_folder_has_a_file_a_setting_and_its_prompts(tmp_path):
    write(tmp_path / "generations/k=1.jsonl", {"id": "w", "seed": 2, "text": "a", "debt": 0.5})
    write(tmp_path / "generations/p_s.jsonl", {"id": "w", "seed": 2, "text": "b"})
    write(tmp_path / "generations/p_r.unfinished.jsonl", {"id": "w", "seed": 2, "text": "c"})
    write(tmp_path / "prompts.jsonl", {"id": "w", "prompt": "p", "reference": "r"})
    texts = read_texts(tmp_path)
    assert [(text.setting, text.text) for text in texts] == [("k=1", "a"), ("p_s", "b")]
    assert (texts[0].reference, texts[0].prompt, texts[0].debt) == ("r", "p", 0.5)
    other = write(tmp_path / "other.jsonl", {"id": "w", "reference": "other"})
    assert read_texts(tmp_path, other)[0].reference == "other"


def copybench_file(path, *outputs, reference="of the lamp"):
    """As CopyBench's program writes it: an array, with indents."""
    row = {"input": "the keeper", "prompt": "demonstrations ... the keeper", "model": "m"}
    row |= {"reference": reference, "reference_characters": [["Ann"]], "decoding": "greedy"}
    rows = [{"id": str(n), **row, "output": output} for n, output in enumerate(outputs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=4))
    return path


def test_copybench_s_files_are_read(tmp_path):
    (first,) = read_texts(copybench_file(tmp_path / "results.json", "x", None))  # null: no text
    assert (first.setting, first.prompt, first.text) == ("m/greedy", "the keeper", "x")
    assert first.characters == [["Ann"]]


def test_each_of_several_files_or_of_a_folder_of_them_is_a_setting(tmp_path):
    names = ["k_0.5", "k_2", "k_10", "risky", "safe"]
    files = [copybench_file(tmp_path / f"{name}.json", "a", "b") for name in reversed(names)]
    write(tmp_path / "prompts.jsonl", {"id": "0", "group": "rare"})
    texts = read_texts(tmp_path)
    assert [text.setting for text in texts] == [name for name in names for _ in "ab"]
    assert [text.group for text in texts[:2]] == ["rare", None]
    assert [text.setting for text in read_texts(files[::-1])] == [text.setting for text in texts]
    rows = [{"input": prompt, "reference": "r", "output": "o"} for prompt in "pqr"]
    without_ids = [write(tmp_path / "x.jsonl", *rows), write(tmp_path / "y.jsonl", *rows[1:])]
    of_x, of_y = by_setting(read_texts(without_ids)).values()  # paired by their prompts
    assert [text.id for text in of_x[1:]] == [text.id for text in of_y]
    files = [copybench_file(tmp_path / name / "gen.json", "a") for name in ("safe", "risky")]
    assert [text.setting for text in read_texts([*files, files[0]])] == ["safe/gen", "risky/gen"]


def test_files_that_mean_other_prompts_by_one_id_and_texts_that_occur_twice_are_refused(tmp_path):
    files = [copybench_file(tmp_path / f"{name}.json", "a", reference=name) for name in "xy"]
    with pytest.raises(ValueError, match="x and y have different references of prompt '0'"):
        read_texts(files)
    row = {"setting": "k=1", "id": "w", "seed": 3, "text": "a"}
    path = write(tmp_path / "mine.jsonl", {**row, "error": "long"}, row, {**row, "text": "b"})
    with pytest.raises(ValueError, match=r"'k=1'.*'id': 'w', 'seed': 3.* occurs twice"):
        read_texts(path)
