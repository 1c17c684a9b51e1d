"""The repository folders are the sub-packages of `anchored`; a few rules keep that sound."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
