"""What a result was computed with: versions, machine and commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

_PACKAGES = (
    *("anchored", "torchtitan", "transformers", "triton", "tokenizers", "numpy", "rouge-score"),
    *("datasketch", "lm-eval", "openai"),
)


def environment_record() -> dict[str, object]:
    """Plain values for a results file; None for a package or commit that is not there."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {**{name: _version(name) for name in _PACKAGES}, "torch": torch.__version__},
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "devices": [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ],
        **_git_state(Path(__file__).resolve().parent.parent),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state(root: Path) -> dict[str, object]:
    """Commit and whether tracked files differ from it; both None outside a checkout of its own."""
    if not (root / ".git").exists():
        return {"git_commit": None, "has_local_changes": None}
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"git_commit": commit, "has_local_changes": None if changes is None else changes != ""}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:  # a machine without git
        return None
    return run.stdout.strip() if run.returncode == 0 else None
