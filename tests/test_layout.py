"""The repository folders are the sub-packages of `anchored`; a few rules keep that sound."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair

ROOT = Path(__file__).parent.parent
AREAS = ("pretrain", "decode", "kernels", "eval", "tools")
# Each area may import from those before it; tools may import from all.
MAY_IMPORT = {
    "kernels": {"kernels"},
    "decode": {"decode", "kernels"},
    "pretrain": {"pretrain", "kernels"},
    "eval": {"eval", "decode", "kernels"},
    "tools": set(AREAS),
}
# What a room may reach beside itself, and who is above it. decode/ has two kinds of files of its
# own: what all rooms write into (the shelf), and what a caller touches (the face).
DECODE_SHELF = {"decode/ledger", "decode/settings", "decode/warpers"}
ROOMS = {
    "decode shelf": set(),
    "decode/tokenizer": set(),
    "decode/rules": {"kernels"},
    "decode/models": {"kernels", "decode/tokenizer"},
    "decode/levels": {"decode shelf", "decode/rules", "decode/models"},
    "decode/engine": {"kernels", "decode shelf", "decode/rules", "decode/models", "decode/levels"},
}
ROOMS["decode/byte"] = ROOMS["decode/engine"] | {"decode/tokenizer"}
ROOMS["decode/replay"] = ROOMS["decode/byte"] | {"decode/engine", "decode/byte"}
ROOMS["decode face"] = set(ROOMS)
MOST_FILES_OF_A_TOKEN = 34  # 43 before the rooms; each is one that a reader of a step opens
MOST_LINES = 400


def sources(area: str) -> list[Path]:
    return sorted((ROOT / area).rglob("*.py"))


@pytest.mark.parametrize("area", AREAS)
def test_area_folders_have_no_init(area):
    # With an __init__.py, `kernels/` would shadow the PyPI package that transformers imports.
    assert not list((ROOT / area).rglob("__init__.py"))


def test_every_folder_with_code_is_listed_for_the_wheel():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {path.parent.relative_to(ROOT) for area in AREAS for path in sources(area)}
    on_disk = {".".join(("anchored", *folder.parts)) for folder in folders}
    assert on_disk | {"anchored"} == set(pyproject["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("area", AREAS)
def test_dependencies_point_one_way(area):
    for path in sources(area):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                target = _target_area(path, node)
                assert target is None or target in MAY_IMPORT[area], f"{path}: {target}"


def _target_area(path: Path, node: ast.ImportFrom) -> str | None:
    folder = path.relative_to(ROOT).parts[: -node.level]
    parts = (*folder, *(node.module or "").split("."))
    return parts[0] if parts and parts[0] in AREAS else None


def imports() -> dict[str, set[str]]:
    """By module of the product, as "decode/ledger": the modules that it names, wherever it does."""
    paths = [path.relative_to(ROOT).with_suffix("") for area in AREAS for path in sources(area)]
    modules = set(map(str, paths))
    return {module: set(_imported(module, modules)) for module in modules}


def _imported(module: str, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            target = _target(module, node)
            for name in node.names:
                inner = f"{target}/{name.name}"
                yield from {inner if inner in modules else target} & modules


def _target(module: str, node: ast.ImportFrom) -> str:
    named = (node.module or "").split(".")
    if not node.level:
        return "/".join(named[1:]) if named[0] == "anchored" else ""
    return "/".join((*module.split("/")[: -node.level], *filter(None, named)))


def room(module: str) -> str:
    folder = module.rpartition("/")[0]
    if folder == "decode":
        return "decode shelf" if module in DECODE_SHELF else "decode face"
    return folder


def test_rooms_reach_only_what_is_below_them():
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for module, named in imports().items():
        found[room(module)].update(room(other) for other in named if room(other) != room(module))
    for name, reached in sorted(found.items()):
        print(
            f"{name}: {', '.join(f'{other} {count}' for other, count in sorted(reached.items()))}"
        )
    for name, allowed in ROOMS.items():
        assert set(found[name]) <= allowed, name


def test_no_module_imports_itself_in_a_circle():
    order = TopologicalSorter({module: named - {module} for module, named in imports().items()})
    order.prepare()  # raises CycleError, which names the circle


def test_a_token_passes_few_files():
    import anchored

    pair = ModelPair(tiny_llama(0), tiny_llama(1), train_tokenizer())
    decoder = Decoder(pair, Anchored(k=1.0))
    files = set()

    def note(frame, event, argument):
        files.add(frame.f_code.co_filename)

    sys.settrace(note)
    try:
        decoder.generate("the keeper", max_new_tokens=1)
    finally:
        sys.settrace(None)
    own = [file for file in files if Path(file).is_relative_to(Path(anchored.__file__).parent)]
    passed = sorted(file for file in own if "/tests/" not in file)
    assert len(passed) <= MOST_FILES_OF_A_TOKEN, passed


def test_files_hold_one_idea_each():
    lengths = {path: len(path.read_text().splitlines()) for area in AREAS for path in sources(area)}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


SHELF = {"accounts", "backend", "certificate", "law", "sampler", "spend"}
"""What kernels/cpu and kernels/gpu may import of kernels/, beside their own folder."""


@pytest.mark.parametrize("folder", ["cpu", "gpu"])
def test_kernels_of_a_backend_import_the_shelf_and_never_the_other_backend(folder):
    for path in sorted((ROOT / "kernels" / folder).glob("*.py")):
        for module in _kernel_imports(path):
            assert module == folder or module in SHELF, f"{path}: {module}"


@pytest.mark.parametrize("area", ["decode", "pretrain", "eval"])
def test_other_areas_import_the_shelf_of_kernels_alone(area):
    for path in sources(area):
        assert not {"cpu", "gpu"} & set(_kernel_imports(path)), path


def _kernel_imports(path: Path) -> list[str]:
    """First names behind `kernels.` of everything that a file imports from there."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.relative_to(ROOT).parts[: -node.level]
            target = (*folder, *(node.module or "").split("."))
            parts = [part for part in target if part]
            if parts[:1] == ["kernels"]:
                names += parts[1:2] or [alias.name for alias in node.names]
    return names


@pytest.mark.parametrize("area", ["kernels", "decode", "pretrain", "eval"])
def test_library_code_imports_relatively(area):
    for path in sources(area):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] != "anchored", path


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = "import sys, anchored; print({'torch', 'transformers'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_public_names_are_all_importable():
    import anchored

    assert all(getattr(anchored, name) for name in anchored.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = anchored.nonsense
