"""Every command with bad input: one line, the status of its kind, and nothing lost."""

import re
import shlex
from pathlib import Path

import pytest
from bad_inputs import OF_PROCESSES, REFUSED, REPLACES, command_lines
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
    """What a line says on stderr, in one line; it has its status and changes nothing."""

    def refuse(line: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        before = contents(places)
        with pytest.raises(SystemExit) as end:
            main(words_of(line, places, tmp_path / "new"))
        out, err = capsys.readouterr()
        # What `anchored tokenize` has read so far is told, and kept to go on from.
        is_read = line.startswith("tokenize") and (tmp_path / "new").exists()
        *bar, last = err.splitlines()
        assert end.value.code == LINES[line][0], err
        assert last.startswith("anchored") and (is_read or not (bar or out)), err
        assert not re.search(r"(\S*/\S+): \1 ", last), "a file is named twice in a row"
        kept = {"new"} if is_read else set()
        assert contents(places) == before and {path.name for path in tmp_path.iterdir()} == kept
        assert not (tmp_path / "new" / "manifest.json").exists()
        return last

    return refuse


@pytest.mark.sampled(5)
@pytest.mark.parametrize("line", [line for line, (_, words) in LINES.items() if not words])
def test_bad_input_is_refused_in_words_and_changes_nothing(line, refusal):
    assert refusal(line)


@pytest.mark.parametrize("line", [line for line, (_, words) in LINES.items() if words])
def test_the_words_name_what_is_wrong(line, refusal):
    assert LINES[line][1] in refusal(line)


def test_the_list_is_long_and_names_every_command():
    assert len(LINES) >= 600
    assert all(any(line.startswith(name) for line in LINES) for name in COMMANDS)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("line", "status"), [(k, v[0]) for k, v in command_lines(OF_PROCESSES).items()]
)
def test_bad_input_is_one_line_of_a_process(line, status, places, tmp_path):
    words = words_of(line, places, tmp_path / "new")
    program = ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt")
    assert program.wait() == status
    assert program.output.read_text().count("\n") == 1, program.output.read_text()
