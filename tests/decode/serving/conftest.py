"""A pair whose texts end at their lengths alone, and a database server."""

import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
from tiny_models import never_end, tiny_llama, train_tokenizer

from anchored import ModelPair


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    models = [tiny_llama(seed, max_position_embeddings=1024) for seed in (1, 2)]
    for model in models:
        never_end(model)
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return ModelPair(*models, tokenizer)


@pytest.fixture
def postgresql(tmp_path):
    """The address of a database of a server that runs while the test does."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs or not hasattr(os, "geteuid") or shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL is not installed")
    binaries, data = programs[-1].parent, Path(tempfile.mkdtemp(prefix="anchored-pg-"))
    # It does not run as root.
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words = drop if os.geteuid() == 0 else []
    if words:
        os.chown(data, 65534, 65534)
    run = partial(subprocess.run, check=True, capture_output=True, cwd=data)
    run([*words, binaries / "initdb", "-D", data / "db", "-U", "anchored", "-A", "trust"])
    options = f"-c listen_addresses= -k {data} -c max_connections=64"
    control = [*words, binaries / "pg_ctl", "-D", data / "db", "-w"]
    run([*control, "-l", data / "log", "-o", options, "start"])
    try:
        yield f"postgresql://anchored@/postgres?host={data}"
    finally:
        run([*control, "-m", "immediate", "stop"])
        shutil.rmtree(data)
