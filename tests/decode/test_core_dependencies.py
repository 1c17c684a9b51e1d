"""Decoding needs none of the extras of pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {"lm-eval": "lm_eval", "rouge-score": "rouge_score"}
"""Distributions whose module has another name."""

PROGRAM = """
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
    # fsspec comes with torch and huggingface_hub, which use it.
    return [MODULES.get(name, name) for name in names if name != "fsspec"]


@pytest.mark.slow
def test_a_pair_decodes_and_verifies_without_the_extras(pair_folders):
    safe, risky = map(str, pair_folders)
    program = PROGRAM.format(blocked=extra_modules(), safe=safe, risky=risky)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "True", result.stderr
