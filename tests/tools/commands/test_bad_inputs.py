"""Every command with bad input: one line or a usage message, status 1 or 2, and nothing lost."""

import shlex
from pathlib import Path

import pytest
from bad_inputs import FOUND_IN_DATA, OF_PROCESSES, REFUSED, REPLACES, command_lines
from bad_places import make_places
from command_line import with_options
from forked_program import ForkedProgram

from anchored import Anchored, Decoder, ModelPair
from anchored.tools.cli import COMMANDS, main

LINES = command_lines(REFUSED)


@pytest.fixture(scope="module")
def places(tmp_path_factory, pair_folders) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bad")
    decoder = Decoder(ModelPair.from_pretrained(*pair_folders), Anchored(k=1.0))
    (result,) = decoder.generate(["the keeper"], max_new_tokens=4)
    result.ledger.save(root / "ledger.jsonl")
    decoder.prompt_ratios("the lamp").save(root / "ratios.safetensors")
    return make_places(root, *pair_folders, root / "ledger.jsonl", root / "ratios.safetensors")


def words_of(line: str, places: dict[str, Path], new: Path) -> list[str]:
    pair = f"--safe {places['safe']} --risky {places['risky']}"
    base, _, more = line.format(
        pair=pair, long_text="the keeper " * 90, new=new, **places
    ).partition(REPLACES)
    return with_options(shlex.split(base), shlex.split(more))


def contents(places: dict[str, Path]) -> dict[Path, tuple[int, ...]]:
    """Size, time and kind of every file and folder."""
    everything = {*places.values(), *places["folder"].parent.rglob("*")}
    existing = [path for path in everything if path.is_symlink() or path.exists()]
    stats = {path: path.lstat() for path in existing}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_mode) for path, stat in stats.items()}


@pytest.fixture
def refusal(places, capsys, tmp_path, monkeypatch):
    """What a line says on stderr, in one line; it has status 1 or 2 and changes nothing."""

    def refuse(line: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        before = contents(places)
        with pytest.raises(SystemExit) as end:
            main(words_of(line, places, tmp_path / "new"))
        out, err = capsys.readouterr()
        assert end.value.code in (1, 2) and err and out == ""
        if end.value.code == 1:
            assert err.startswith("anchored ") and err.count("\n") == 1, err
        # What `anchored tokenize` has read so far is kept, to go on from.
        kept = {"new"} if line.startswith("tokenize") else set()
        assert contents(places) == before and {path.name for path in tmp_path.iterdir()} <= kept
        return " ".join(err.replace("\u2502", " ").split())  # tyro draws a box

    return refuse


@pytest.mark.sampled(5)
@pytest.mark.parametrize("line", [line for line, message in LINES.items() if not message])
def test_bad_input_is_refused_in_words_and_changes_nothing(line, refusal):
    assert refusal(line)


@pytest.mark.parametrize("line", [line for line, message in LINES.items() if message])
def test_the_words_name_what_is_wrong(line, refusal):
    assert LINES[line] in refusal(line)


@pytest.mark.parametrize(("line", "message"), command_lines(FOUND_IN_DATA).items())
def test_bad_data_end_the_output_with_one_line_about_them(line, message, places, capsys, tmp_path):
    before = contents(places)
    with pytest.raises(SystemExit) as end:
        main(words_of(line, places, tmp_path / "new"))
    *_, last = capsys.readouterr().err.splitlines()
    assert end.value.code == 1 and last.startswith("anchored tokenize: ")
    assert message in last
    assert contents(places) == before and not (tmp_path / "new" / "manifest.json").exists()


def test_the_list_is_long_and_names_every_command():
    assert len(LINES) >= 600
    assert all(any(line.startswith(name) for line in LINES) for name in COMMANDS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", command_lines(OF_PROCESSES))
def test_bad_input_is_one_line_of_a_process(line, places, tmp_path):
    words = words_of(line, places, tmp_path / "new")
    program = ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt")
    assert program.wait() == 1
    assert program.output.read_text().count("\n") == 1, program.output.read_text()
