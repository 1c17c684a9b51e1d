"""A pair in vLLM's CPU build: `make test-vllm` has it; elsewhere these files skip themselves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import vllm_pair
from embedded_server import saved
from tiny_models import never_end, tiny_llama, train_tokenizer

import anchored

if find_spec("vllm"):
    from vllm_on_cpu import interpret

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    interpret()

SIZES = {"hidden_size": 128, "max_position_embeddings": 256, "initializer_range": 0.15}
"""Heads of 32, the smallest that vLLM's CPU attention takes, and no sharp attention."""

ENGINE = {**vllm_pair.ENGINE, "enforce_eager": True, "max_num_batched_tokens": 64}


def saved_pair(root: Path, *, is_endless: bool = False, **sizes: int) -> tuple[Path, Path]:
    """A safe and a risky model in float32, with one tokenizer; is_endless: no text ends before its
    length."""
    models = [tiny_llama(seed, layers=1 + seed, **{**SIZES, **sizes}) for seed in (1, 2)]
    for model in models if is_endless else ():
        never_end(model)
    return saved(anchored.ModelPair(*(model.float() for model in models), train_tokenizer()), root)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def pair(folders) -> anchored.ModelPair:
    """The same in transformers."""
    return anchored.ModelPair.from_pretrained(*folders, dtype="float32")


@contextmanager
def opened(folders: tuple[Path, Path], **changes: Any) -> Iterator[Any]:
    """A decoder of an engine in this process, gone afterwards."""
    with vllm_pair.opened(folders, **{**ENGINE, **changes}) as decoder:
        yield decoder


def state_of(decoder: Any) -> Any:
    """The `PairState` of an engine in this process."""
    core = decoder.llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner.model_state
