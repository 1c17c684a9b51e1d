"""The environment that a result was computed in: versions, machine and commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

_PACKAGES = (
    *("anchored", "torchtitan", "transformers", "triton", "tokenizers", "numpy", "rouge-score"),
    *("datasketch", "lm-eval", "openai", "torchao"),
)
_DRIVER_OF_FIRST_GPU = ("--query-gpu=driver_version", "--format=csv,noheader", "--id=0")


def environment_record() -> dict[str, object]:
    """Plain values for a results file; None for a package, driver or commit that is not there."""
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {**{name: _version(name) for name in _PACKAGES}, "torch": torch.__version__},
        "cuda": torch.version.cuda,
        "driver": _output_of("nvidia-smi", *_DRIVER_OF_FIRST_GPU) if devices else None,
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "devices": devices,
        **_git_state(Path(__file__).resolve().parent),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state(root: Path) -> dict[str, object]:
    """Commit and whether tracked files differ from it; both None outside a checkout."""
    if not (root / ".git").exists():
        return {"git_commit": None, "has_local_changes": None}
    commit = _output_of("git", "rev-parse", "HEAD", folder=root)
    changes = _output_of("git", "status", "--porcelain", "--untracked-files=no", folder=root)
    return {"git_commit": commit, "has_local_changes": None if changes is None else changes != ""}


def _output_of(*command: str, folder: Path | None = None) -> str | None:
    """The output of a program; None where it fails or is not there."""
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
