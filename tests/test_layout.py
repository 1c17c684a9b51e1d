"""The repository folders are the sub-packages of `anchored`; a few rules keep that sound."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tiny_models import tiny_llama, train_tokenizer

import anchored

ROOT = Path(__file__).parent.parent
AREAS = ("configs", "pretrain", "decode", "kernels", "eval", "tools")
# Each area may import from those before it; tools may import from all.
MAY_IMPORT = {
    "kernels": {"kernels"},
    "decode": {"decode", "kernels"},
    "configs": {"configs"},
    "pretrain": {"pretrain", "kernels", "configs"},
    "eval": {"eval", "decode", "kernels", "configs"},
    "tools": set(AREAS),
}
# Rooms of the areas, folders or files by themselves: each may import from itself and those of its
# area before it.
IN_ORDER = """
configs
kernels/spend.py kernels/certificate.py kernels/sampler.py kernels/projection.py kernels/cpu
kernels/gpu kernels
decode/ambient.py decode/settings.py decode/event_bound.py decode/ledger.py decode/warpers.py
decode/tokenizer decode/rules decode/streams decode/pair decode/levels decode/byte decode/engine
decode/verify decode decode/serving decode/serving/accounts decode/vllm
pretrain/tokens pretrain/plan pretrain/titan.py pretrain/job_config.py pretrain/model pretrain/run
pretrain/export.py pretrain
eval eval/copying eval/retrieval eval/quality eval/harness eval/figures eval/report eval/analysis
eval/experiments eval/calibration
tools/commands tools/commands/training tools/commands/evaluation tools/quickstart tools/bench tools
"""
ROOMS = IN_ORDER.split()
# Side by side: neither imports from the other, though one comes first.
APART = (
    ("kernels/cpu", "kernels/gpu"),
    ("decode/byte", "decode/engine"),
    ("decode/tokenizer", "decode/rules"),
    ("decode/rules", "decode/streams"),
    ("eval/harness", "eval/figures"),
)
KERNEL_SHELF = {"kernels", *(room for room in ROOMS if re.match(r"kernels/.*\.py", room))}
MOST_LINES = 400
MOST_FUNCTION_LINES = 50  # one function in a hundred may be longer: the bodies of kernels
MOST_FILES_OF_A_TOKEN = 30  # each is one that a reader of a step opens


ROOT_FILE = ast.parse((ROOT / "__init__.py").read_text())
# Modules of the public names, as a type checker reads them.
PUBLIC = {
    alias.name: node.module
    for node in ast.walk(ROOT_FILE)
    if isinstance(node, ast.ImportFrom) and node.level
    for alias in node.names
}


def sources(area: str) -> list[Path]:
    return sorted((ROOT / area).rglob("*.py"))


def every_file() -> list[Path]:
    return [*sorted(ROOT.glob("*.py")), *(path for area in AREAS for path in sources(area))]


def test_area_folders_have_no_init():
    # With an __init__.py, `kernels/` would shadow the PyPI package that transformers imports.
    assert [path for path in every_file() if path.name == "__init__.py"] == [ROOT / "__init__.py"]


def test_every_folder_with_code_is_listed_for_the_wheel():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {path.parent.relative_to(ROOT) for area in AREAS for path in sources(area)}
    on_disk = {".".join(("anchored", *folder.parts)) for folder in folders}
    assert on_disk | {"anchored"} == set(pyproject["tool"]["setuptools"]["packages"])


def test_programs_of_the_makefile_see_every_folder_and_root_file():
    (line,) = re.findall(r"^AREAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == {*AREAS, *(path.name for path in ROOT.glob("*.py"))}


@cache
def imports(path: Path) -> set[tuple[str, str]]:
    """(module, name) of all that a file imports anywhere in it, but for the sake of types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    package = ("anchored", *path.relative_to(ROOT).parts[:-1])
    pairs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            pairs |= {(module, alias.name) for alias in node.names}
    return pairs


def test_one_file_imports_torchtitan():
    line = re.compile(r"^\s*(from|import) torchtitan\b", re.MULTILINE)
    files = [path for path in every_file() if line.search(path.read_text())]
    assert files == [ROOT / "pretrain" / "titan.py"]


@cache
def imported(path: Path) -> set[Path]:
    """The project's files that a file imports."""
    files = {_file(module, name) for module, name in imports(path)}
    return {file for file in files if file is not None}


def _file(module: str, name: str) -> Path | None:
    """The file of a name that is imported from a module; None outside of the project."""
    if module.split(".")[0] != "anchored":
        return None
    if module == "anchored" and name in PUBLIC:  # lazily, from the root
        module = f"anchored.{PUBLIC[name]}"
    for dotted in (f"{module}.{name}", module):
        file = ROOT.joinpath(*dotted.split(".")[1:]).with_suffix(".py")
        if file.is_file():
            return file
    return ROOT / "__init__.py"


def room(path: Path) -> str:
    """The file itself where it is a room, else its folder."""
    name = path.relative_to(ROOT).as_posix()
    return name if name in ROOMS else name.rpartition("/")[0]


def test_dependencies_point_one_way():
    for path in (path for area in AREAS for path in sources(area)):
        targets = {file.relative_to(ROOT).parts[0] for file in imported(path)}
        area = path.relative_to(ROOT).parts[0]
        assert targets & set(AREAS) <= MAY_IMPORT[area], path


@pytest.mark.parametrize("area", AREAS)
def test_rooms_import_only_from_the_rooms_below_them(area):
    for path in sources(area):
        position = ROOMS.index(room(path))
        for target in imported(path):
            if target.relative_to(ROOT).parts[0] == area:
                assert ROOMS.index(room(target)) <= position, f"{path} imports {target}"
                assert (room(target), room(path)) not in APART, f"{path} imports {target}"


def test_other_areas_reach_no_backend_of_kernels():
    for path in (path for area in ("decode", "pretrain", "eval") for path in sources(area)):
        rooms = {room(file) for file in imported(path) if file.is_relative_to(ROOT / "kernels")}
        assert rooms <= KERNEL_SHELF, path


def test_no_file_imports_itself_through_others():
    graph = {path: imported(path) for path in every_file()}
    assert list(TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_the_library_imports_relatively_and_no_public_name_from_the_root():
    """Each is imported from its file: the root imports them, so that they would go in a circle."""
    files = {path.stem for path in ROOT.glob("*.py")}
    for path in (path for area in AREAS[:-1] for path in sources(area)):
        names = {name for module, name in imports(path) if module == "anchored"}
        assert names <= files or path.is_relative_to(ROOT / "eval"), path
        assert not re.search(r"^\s*(from|import) anchored\b", path.read_text(), re.MULTILINE), path


def test_files_and_functions_can_be_read_at_once():
    lengths = {}
    for path in (path for area in AREAS for path in sources(area)):
        text = path.read_text()
        assert text.count("\n") <= MOST_LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lengths[path, node.lineno] = node.end_lineno - node.lineno + 1
    long_ones = [place for place, length in lengths.items() if length > MOST_FUNCTION_LINES]
    assert len(long_ones) <= 0.01 * len(lengths), long_ones


def test_a_token_passes_few_files():
    pair = anchored.ModelPair(tiny_llama(0), tiny_llama(1), train_tokenizer())
    decoder = anchored.Decoder(pair, anchored.Anchored(k=1.0))
    files = set()

    def note(frame, event, argument):
        files.add(frame.f_code.co_filename)

    sys.settrace(note)
    try:
        decoder.generate("the keeper", max_new_tokens=1)
    finally:
        sys.settrace(None)
    areas = [Path(anchored.__file__).parent / area for area in AREAS]
    passed = sorted(file for file in files if any(map(Path(file).is_relative_to, areas)))
    assert len(passed) <= MOST_FILES_OF_A_TOKEN, passed


MODULES = {"lm-eval": "lm_eval", "rouge-score": "rouge_score"}  # of distributions named otherwise

DECODING = """
import sys
sys.modules.update(dict.fromkeys({blocked}))  # importing one of them is an error
import anchored
from anchored.tools import cli
pair = anchored.ModelPair.from_pretrained({safe!r}, {risky!r}, device="cpu")
(result,) = anchored.Decoder(pair, anchored.Anchored(k=1.0)).generate(["salt"], max_new_tokens=3)
print(anchored.verify(result.ledger, pair).is_ok)
"""


def extra_modules() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("pretrain", "eval", "plots")]
    names = [re.split(r"[\[<>=~]", requirement)[0] for extra in extras for requirement in extra]
    # Decoding has torch, and fsspec comes with it and with huggingface_hub, which use it.
    return [MODULES.get(name, name) for name in names if name not in ("torch", "fsspec")]


@pytest.mark.slow
def test_a_pair_decodes_and_verifies_without_the_extras(pair_folders):
    safe, risky = map(str, pair_folders)
    program = DECODING.format(blocked=extra_modules(), safe=safe, risky=risky)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "True", result.stderr


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = "import sys, anchored; print({'torch', 'transformers'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_public_names_have_types_and_no_other_name_has_one():
    assert {*PUBLIC} == {*anchored.__all__, "engine"}
    for name in anchored.__all__:
        home = importlib.import_module(f"anchored.{PUBLIC[name]}")
        assert getattr(anchored, name) is getattr(home, name)
    # Read by a type checker, `__getattr__` would make every name Any.
    (block,) = (node for node in ROOT_FILE.body if "def __getattr__" in ast.unparse(node))
    assert isinstance(block, ast.If) and ast.unparse(block.test) == "not TYPE_CHECKING"
