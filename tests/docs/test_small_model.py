"""The page on a small model: all that it tells a reader to do, with fewer steps of training."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from real_pair import needs_real_model, real_folders

import anchored
from anchored.pretrain.run.record import RunRecord

MODELS = "runs/quickstart/models"
PAGE = Path(anchored.__file__).parent / "docs" / "small-model.md"
SHORTER = {
    "steps = 400": "steps = 12",
    "warmup_steps = 40": "warmup_steps = 4",
    "step-400": "step-12",
}


@needs_real_model
@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["small/tokenizer", f"{MODELS}/safe"])
def test_the_page_trains_a_model_that_a_pair_decodes_with(tmp_path, tokenizer):
    real_folders(tmp_path / MODELS)
    text = PAGE.read_text()
    for long, short in SHORTER.items():
        assert text.count(long) == 1
        text = text.replace(long, short)

    def run(*words):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True)

    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            run("-c", body)
        elif language == "toml":
            (tmp_path / "small/train.toml").write_text(body)
        else:
            for line in body.splitlines():
                program, *words = shlex.split(line)
                assert program == "anchored"
                if "--tokenizer" in words:
                    words[words.index("--tokenizer") + 1] = tokenizer
                if words[0] == "generate":
                    words += ["--ledger", "ledger.jsonl"]
                run("-m", "anchored.tools.cli", *words)
    record = RunRecord.read(tmp_path / "small/run")
    (source,) = record.data["sources"]
    assert source["licenses"] == {"PSF-2.0": source["num_documents"]}
    lines = map(json.loads, (tmp_path / "small/run/heldout.jsonl").read_text().splitlines())
    first, *_, last = (line["losses"]["stdlib"] for line in lines)
    assert last < first - 0.3
    assert "PSF-2.0" in (tmp_path / "small/model/README.md").read_text()
    header = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])
    assert header["level"] == ("byte" if tokenizer == "small/tokenizer" else "token")
