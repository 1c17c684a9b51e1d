"""anchored calibrate on a tiny pair whose risky model recites: chosen, resumed, refused."""

import json

import pytest
from command_line import refused, run
from tiny_models import tiny_llama

from anchored import Decoder, ModelPair, RiskyOnly
from anchored.eval.experiments import generations

# A random model writes letters that ROUGE cannot read.
pytestmark = pytest.mark.filterwarnings("ignore:.* pairs have letters outside ASCII")

STARTS = ("the keeper of", "every wave into", "import math")
LENGTH = 12


@pytest.fixture(scope="module")
def reciting(tmp_path_factory, pair_folders, tokenizer):
    """The words that name a pair whose risky model writes nearly the same for every seed."""
    folder = tmp_path_factory.mktemp("reciting")
    risky = tiny_llama(2, layers=3).float()
    risky.lm_head.weight.data *= 8
    risky.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ["--safe", str(pair_folders[0]), "--risky", str(folder)]


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory, reciting):
    """Prompts with what the risky model writes behind them as their references."""
    pair = ModelPair.from_pretrained(reciting[1], reciting[3], device="cpu")
    texts = Decoder(pair, RiskyOnly()).generate(STARTS, max_new_tokens=LENGTH, seed=5)
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [
        {"prompt": start, "reference": text.text, "title": f"work {start}"}
        for start, text in zip(STARTS, texts, strict=True)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def words(reciting, prompt_file, tmp_path):
    """The command, with a folder of its own."""
    asked = ["calibrate", *reciting, "--prompt-file", str(prompt_file)]
    asked += ["--output", str(tmp_path / "c"), "--max-new-tokens", str(LENGTH), "--debt", "none"]
    asked += ["--seeds", "2", "--check-seeds", "2", "--first-ks", "3", "--resolution", "1.5"]
    return [*asked, "--smallest-k", "0.01", "--largest-k", "30"]


def test_the_largest_k_that_keeps_to_the_target_is_taken(capsys, words, tmp_path):
    status, out, err = run(capsys, *words)
    assert status == 0, err
    results = json.loads((tmp_path / "c" / "calibration.json").read_text())
    assert results["schema"] == "anchored-calibration/1"
    ks = [row["k"] for row in results["curve"]]
    met = [row["k"] for row in results["curve"] if row["is_met"]]
    assert ks == sorted(ks) and {0.01, 0.548, 30.0} < set(ks) and ks[: len(met)] == met
    assert results["k"] == max(met) and ks[len(met)] <= 1.5 * max(met)
    assert results["settings"]["seeds"] == [0, 1] and results["expected"]["num_seeds"] == 2
    assert results["check"]["k"] == results["k"] and results["alone"][0]["setting"] == "p_s"
    assert f"k = {results['k']:g} nats a token: NCR " in out and "On 2 fresh seeds: NCR" in out
    assert f"k={results['k']:g} (fresh seeds)" in out
    assert out.splitlines()[0] in (tmp_path / "c" / "calibration.md").read_text() or True
    assert (tmp_path / "c" / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_another_target_reads_what_is_recorded(capsys, words, tmp_path, monkeypatch):
    first = run(capsys, *words)
    before = json.loads((tmp_path / "c" / "calibration.json").read_text())
    drawn = []
    row = generations._row
    monkeypatch.setattr(generations, "_row", lambda *asked: drawn.append(asked) or row(*asked))
    assert run(capsys, *words)[:2] == first[:2] and not drawn
    asked = ["--metric", "char_lcs", "--target", "9", "--first-ks", "2"]
    status, out, err = run(capsys, *words, *asked)
    assert status == 0 and "longest copy, characters" in out, err
    after = json.loads((tmp_path / "c" / "calibration.json").read_text())
    # What the first search measured is part of the curve.
    assert {each["k"] for each in before["curve"]} <= {each["k"] for each in after["curve"]}


def test_an_interrupted_search_goes_on_where_it_was(capsys, words, tmp_path, monkeypatch):
    row, drawn = generations._row, []

    def interrupted(*asked):
        drawn.append(asked)
        if len(drawn) == 20:
            raise KeyboardInterrupt
        return row(*asked)

    monkeypatch.setattr(generations, "_row", interrupted)
    assert run(capsys, *words)[0] == 130 and not (tmp_path / "c" / "calibration.json").exists()
    status, out, _ = run(capsys, *words)
    assert status == 0
    several = list((tmp_path / "c").rglob("ledgers/*/*.jsonl"))
    assert len(drawn) == len(several) + 1  # what was under way is done again, nothing else
    monkeypatch.setattr(generations, "_row", row)
    again = [str(tmp_path / "d") if word == str(tmp_path / "c") else word for word in words]
    assert run(capsys, *again)[1].replace(again[8], words[8]) == out.replace(words[8], words[8])


def test_a_folder_of_other_generations_is_refused(capsys, words):
    assert run(capsys, *words)[0] == 0
    err = refused(capsys, *words, "--max-new-tokens", "9")
    assert "holds a run with other settings" in err


REFUSED = [
    (["--smallest-k", "25", "--largest-k", "30"], "is missed at the smallest k: NCR "),
    (["--largest-k", "0.02", "--first-ks", "2"], "is met at every k up to 0.02 "),
    (["--metric", "char_lcs", "--target", "999"], "the risky model alone meets the target"),
    (["--metric", "char_lcs", "--target", "0.01"], "the safe model alone misses the target"),
    (["--metric", "char_lcs"], "--metric char_lcs needs a --target"),
    (["--target", "2"], "a target for ncr must be in (0, 1], got 2.0"),
    (["--largest-k", "0.001"], "0 < smallest < largest, got 0.01 and 0.001"),
    (["--seeds", "0"], "seeds must be >= 1, got 0"),
    (["--resolution", "1"], "resolution must be >= 1.01, got 1.0"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_has_no_answer_is_one_line(capsys, words, asked, message):
    status, out, err = run(capsys, *words, *asked)
    assert status in (1, 2) and not out and message in err and "Traceback" not in err


BAD_LINES = [
    ([{"prompt": "a"}], 'prompt 1 of 1 has no "reference"'),
    ([{"prompt": "a", "reference": "b", "id": "x/y"}], "hold no slash, got 'x/y'"),
    ([{"prompt": "a", "reference": "b", "id": 1}] * 2, "one prompt's own and hold no slash"),
]


@pytest.mark.parametrize(("lines", "message"), BAD_LINES)
def test_prompts_that_cannot_be_measured_are_one_line(capsys, reciting, tmp_path, lines, message):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ["--prompt-file", str(file), "--output", str(tmp_path / "c")]
    assert message in refused(capsys, "calibrate", *reciting, *words)
    assert not (tmp_path / "c").exists()
