"""anchored calibrate on a tiny pair whose risky model recites: chosen, resumed, refused."""

import json
import shutil
from types import SimpleNamespace

import pytest
from command_line import run
from json_lines import write_json_lines
from tiny_models import tiny_llama

from anchored import Decoder, Ledger, ModelPair, RiskyOnly
from anchored.decode.ledger import ledger_parts
from anchored.eval.calibration import search
from anchored.eval.figures import style
from anchored.tools.cli import main

STARTS = ("the keeper of", "every wave into", "import math")
LENGTH = 10


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
    """Prompts with what the risky model writes after them as their references."""
    pair = ModelPair.from_pretrained(reciting[1], reciting[3], device="cpu")
    texts = Decoder(pair, RiskyOnly()).generate(STARTS, max_new_tokens=LENGTH, seed=5)
    lines = [
        {"id": f"{index}", "prompt": start, "reference": text.text}
        for index, (start, text) in enumerate(zip(STARTS, texts, strict=True))
    ]
    return write_json_lines(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", lines)


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "NUM_RESAMPLES", 50)
        patch.setattr(style, "SUFFIXES", (".png",))
        yield


@pytest.fixture(scope="module")
def command(reciting, prompt_file):
    """The words of the command but for its output."""
    options = ["calibrate", *reciting, "--prompt-file", prompt_file]
    options += ["--max-new-tokens", str(LENGTH), "--debt", "none", "--largest-k", "30"]
    options += ["--no-strict", "--seeds", "2", "--check-seeds", "1", "--first-ks", "2"]
    return [*options, "--resolution", "2", "--smallest-k", "0.05", "--output"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, command):
    """The folder of a calibration."""
    folder = tmp_path_factory.mktemp("finished") / "c"
    with pytest.raises(SystemExit):
        main([*command, str(folder)])
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "c")


@pytest.fixture
def drawn(monkeypatch):
    """The texts that are generated from here on; so many more end with Ctrl-C."""
    generate_each, made = Decoder.generate_each, SimpleNamespace(count=0, most=None)

    def counted(*arguments, **options):
        for result in generate_each(*arguments, **options):
            if made.count == made.most:
                raise KeyboardInterrupt
            made.count += 1
            yield result

    monkeypatch.setattr(Decoder, "generate_each", counted)
    return made


def with_options(words: list[str], more: list[str]) -> list[str]:
    """The words with these options, of one value each, in place of theirs."""
    for flag in more[::2]:
        if flag in words:
            place = words.index(flag)
            words = [*words[:place], *words[place + 2 :]]
    return [*words, *more]


def read(folder):
    return json.loads((folder / "calibration.json").read_text())


def status_of(folder) -> int:
    """The exit status says whether fresh seeds meet the target."""
    return 0 if read(folder)["check"]["is_met"] else 1


def test_the_largest_k_that_keeps_to_the_target_is_taken(folder, command, capsys, drawn):
    figures = read(folder)
    assert figures["schema"] == "anchored-calibration/1"
    ks = [row["k"] for row in figures["curve"]]
    met = [row["k"] for row in figures["curve"] if row["is_met"]]
    assert ks == sorted(ks) and {0.05, 30.0} < set(ks) and ks[: len(met)] == met
    assert figures["k"] == met[-1] == figures["check"]["k"] and ks[len(met)] <= 2 * met[-1]
    safe, risky = figures["alone"]
    assert 0 <= safe["recited"] < figures["curve"][-1]["recited"] <= 1 and risky["recited"] is None
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    out, _ = run(capsys, *command, str(folder), status=status_of(folder))
    assert not drawn.count and read(folder) == figures
    assert f"k = {met[-1]:g} nats per token: NCR " in out and "On 1 fresh seeds: NCR" in out
    options = ["--max-new-tokens", "9"]
    _, err = run(capsys, *with_options([*command, str(folder)], options), status=1)
    assert "made with other settings (max_new_tokens was 10 and is now 9)" in err
    # Another target reads what the first search measured.
    options = ["--metric", "char_lcs", "--target", "4", "--resolution", "700", "--check-seeds", "0"]
    out, _ = run(capsys, *with_options([*command, str(folder)], options))
    assert "longest copy, characters" in out and not drawn.count
    assert [row["k"] for row in read(folder)["curve"]] == ks
    assert read(folder)["check"] is None
    (folder / "measurements" / "calibrated_ks.json").unlink()  # smaller k that were recorded count
    options = ["--smallest-k", "29"]
    _, err = run(capsys, *with_options([*command, str(folder)], options), status=1)
    assert "is missed at the smallest k: NCR " in err


def test_an_interrupted_search_goes_on_where_it_was(folder, command, capsys, tmp_path, drawn):
    drawn.most = 14
    run(capsys, *command, str(tmp_path / "d"), status=130)
    drawn.most = None
    run(capsys, *command, str(tmp_path / "d"), status=status_of(folder))
    assert drawn.count == sum(len(ledger_parts(path)) for path in folder.rglob("ledgers/*.jsonl"))
    again, before = read(tmp_path / "d"), read(folder)
    assert again["curve"] == before["curve"] and again["check"] == before["check"]


def test_no_k_is_chosen_whose_bound_leaves_a_reference_more_than_is_asked(
    capsys, command, tmp_path
):
    words = [*command, str(tmp_path / "c"), "--rule", "pathwise", "--bank", "2"]
    _, err = run(capsys, *words, "--certify", "1e-300", status=1)
    assert "k=0.05 is not certified, but up to k=0: take less" in err
    out, _ = run(capsys, *words, "--certify", "1e-6")
    results = json.loads((tmp_path / "c" / "calibration.json").read_text())
    assert max(row["k"] for row in results["curve"]) < 30.0
    assert max(row["recited"] for row in results["curve"]) <= 1e-6
    assert "a chance of at most 1e-06" in out
    ledgers = tmp_path / "c" / "ledgers" / f"k={results['k']:g}.jsonl"
    header = Ledger.load(ledgers, ledger_parts(ledgers)[0]).header
    assert (header.charge, header.bank) == ("drawn", 2.0)


def test_certificates_are_tabled_and_recorded(capsys, reciting, prompt_file, tmp_path):
    words = ["certify", *reciting, "--prompt-file", prompt_file, "--output", str(tmp_path / "c")]
    words += ["--bank", "1", "4", "--target", "1e-3", "--window", "4", "--length", "24"]
    out, _ = run(capsys, *words)
    assert out.startswith("Largest k, nats per token, with which an answer of 24 tokens recites")
    assert "no bank  bank 1  bank 4\n" in out
    results = json.loads((tmp_path / "c" / "certificates.json").read_text())
    assert results["schema"] == "anchored-certificates/1" and results["target"] == 1e-3
    assert [row["id"] for row in results["events"]["texts"]] == ["0", "1", "2"]
    assert "| a whole text | Pathwise |" in (tmp_path / "c" / "certificates.md").read_text()
