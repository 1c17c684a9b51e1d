"""README.md and docs/: what they tell a reader to run does run, and their links lead somewhere."""

import functools
import importlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from json_lines import write_json_lines
from tiny_models import tiny_llama, train_tokenizer
from torch.distributed.run import get_args_parser as torchrun_parser

import anchored
from anchored.decode.serving.anchored_options import AnchoredOptions
from anchored.decode.serving.body import Body, parsed
from anchored.decode.serving.http import PATHS
from anchored.tools.cli import COMMANDS, main

ROOT = Path(anchored.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
RUN_AS_A_WHOLE = "docs/small-model.md"  # by test_small_model.py, which trains its model
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
CONTEXT_LENGTH = 512
"""Positions of the tiny models: the longest text of a page has 200 tokens of them."""

# Lines whose options are read but whose work is not done here, by words in them: it takes minutes,
# lasts until it is interrupted, or needs a download, a run, a GPU or a library of others.
NOT_RUN = (
    *("anchored demo", "anchored serve", "anchored quickstart", "anchored look", "anchored bench"),
    *("anchored sweep", "anchored calibrate", "anchored evaluate", "anchored lm-eval"),
    *("anchored decontaminate", "anchored tokenize", "anchored pretrain", "anchored export"),
    *("anchored paper", "anchored plan --config", "anchored plan --verify"),
    *("--risky-device", "--risky-quantization"),
)


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    text: str
    start: int
    """Lines of the page before it."""

    @property
    def lines(self) -> list[str]:
        """Shell lines: joined where they go on, without comments."""
        joined = self.text.replace("\\\n", " ")
        lines = (re.sub(r"\s+#.*|^#.*", "", line).strip() for line in joined.splitlines())
        return [line for line in lines if line]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    matches = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(one[1], one[2], text[: one.start(2)].count("\n")) for one in matches]


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory) -> Path:
    """The folders that the pages name: two tiny pairs, one with two tokenizers."""
    root = tmp_path_factory.mktemp("pages")
    small, large = train_tokenizer(vocab_size=290), train_tokenizer()
    quickstart = root / "runs/quickstart/models"
    for folder, seed, tokenizer in (
        (quickstart / "safe", 1, large),
        (quickstart / "risky", 2, large),
        (quickstart / "miniature", 3, small),
    ):
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT_LENGTH}
        tiny_llama(seed, **sizes).float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    lines = [{"id": str(n), "prompt": "The bear", "reference": " came back"} for n in range(4)]
    write_json_lines(quickstart.parent / "prompts.jsonl", lines)
    for name in ("methods", "books", "bios"):
        (root / "runs" / name).mkdir()
    return root


@pytest.fixture
def reader(model_folders, tmp_path, monkeypatch) -> Path:
    """The folder of a reader of the pages, with models and what else they name."""
    models = model_folders / "runs/quickstart/models"
    for name, target in {
        "runs": model_folders / "runs",
        "configs": ROOT / "configs",
        "A": models / "safe",
        "B": models / "risky",
        "FOLDER": models / "safe",
        "jacquelinehe/tinycomma-1.8b-llama3-tokenizer": models / "safe",
        "meta-llama/Llama-3.1-8B": models / "risky",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "RUN/checkpoint/step-N").mkdir(parents=True)
    for name in ("texts.jsonl", "characters.jsonl", "works.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "four_bits.json").write_text('{"quant_method": "bitsandbytes"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in PAGE_NAMES if name != RUN_AS_A_WHOLE])
def test_python_and_shell_of_a_page_run_in_their_order(name, reader, capsys, monkeypatch):
    page = ROOT / name
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.language == "python":
            numbered = "\n" * block.start + block.text  # so that an error names the page's line
            exec(compile(numbered, str(page), "exec"), names)
        elif block.language == "sh":
            for line in block.lines:
                run_line(line, monkeypatch)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_and_prints(example, reader, capsys):
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif words[0] == "torchrun":
        read_torchrun(words[1:], monkeypatch)
    elif words[0] == "pip":
        assert_extras_exist(words)
    elif words[0] == "curl":
        read_curl(words)
    elif words[0] == "anchored":
        with monkeypatch.context() as patches:
            if any(words in line for words in NOT_RUN):
                read_options_only(words[1:], patches)
            assert status(words[1:]) == 0, line
    else:
        pytest.fail(f"nothing here can run {line!r}")


def status(words: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code or 0


def read_options_only(words: list[str], patches: pytest.MonkeyPatch) -> None:
    """The command reads its options, and its work is left out."""
    name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS)
    module, _, function = COMMANDS[name].function.rpartition(".")
    imported = importlib.import_module(f"anchored.tools.{module}")
    read = read_lm_eval_options if name == "lm-eval" else lambda config: 0
    reader = functools.wraps(getattr(imported, function))(read)
    patches.setattr(imported, function, reader)  # whose options are those of the command


def read_curl(words: list[str]) -> None:
    """The request is one that `anchored serve` takes."""
    values = parsed(words[words.index("-d") + 1].encode())
    Body.of(values)
    AnchoredOptions.of(values)
    assert words[1].removeprefix("http://localhost:8000") in PATHS
    assert "Content-Type: application/json" in words


def read_lm_eval_options(words: list[str]) -> int:
    from lm_eval._cli import HarnessCLI

    with patch.object(sys, "argv", ["lm-eval", *words]):
        arguments = HarnessCLI().parse_args()
    assert arguments.model == "anchored" and {"safe", "risky"} <= set(arguments.model_args)
    return 0


def read_torchrun(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = torchrun_parser().parse_args(words)
    program, rest = arguments.training_script, arguments.training_script_args
    assert arguments.module
    if program == "anchored":
        with monkeypatch.context() as patches:
            read_options_only(rest, patches)
            assert status(rest) == 0
    else:
        assert program == "anchored.pretrain" and rest[0] == "--job.config_file"
        assert (ROOT / rest[1]).is_file(), rest[1]


def assert_extras_exist(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[(.*?)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def links(page: Path) -> Iterator[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            yield page.parent / target


def test_links_lead_to_files_and_the_front_page_to_every_page():
    assert [link for page in PAGES for link in links(page) if not link.exists()] == []
    named = {link.resolve() for link in links(ROOT / "README.md")}
    assert [page for page in PAGES[1:] if page.resolve() not in named] == []


def test_every_record_is_named_with_the_command_that_made_it():
    folder = ROOT / "docs" / "results"
    first_cells = re.findall(r"^\| (`.*?) \|", (folder / "README.md").read_text(), re.MULTILINE)
    named = {
        name.strip("/") for cell in first_cells for name in re.findall(r"`([^`.][^`]*)`", cell)
    }
    assert [name for name in sorted(named) if not (folder / name).exists()] == []
    stems = {name.split(".")[0].split("/")[0] for name in named} | {"README"}
    assert [path.name for path in folder.iterdir() if path.stem not in stems] == []


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference.md").read_text()
    named = set(re.findall(r"^::: anchored\.(\w+)$", page, re.MULTILINE))
    assert named == set(anchored.__all__)
