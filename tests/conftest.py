"""Fixtures shared by all areas: one tiny pair, in memory and as folders."""

import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("server_contract")  # whose tests two files import

if not torch.cuda.is_available():
    # Triton's interpreter, so that its kernels are tested too; read when triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"

from tiny_models import tiny_llama, train_tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from anchored import ModelPair

if "TRITON_INTERPRET" in os.environ and find_spec("triton"):
    from interpreted_triton import patch_once_a_launch

    patch_once_a_launch()
if find_spec("hypothesis"):  # vLLM's environment has none
    from hypothesis import HealthCheck, settings

    # A machine that is at other work holds a test up, and nothing is wrong with the test.
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")
disable_progress_bar()  # of saved models, which would be on stderr of the commands under test


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of a `sampled` test to the slow suite, and put files with slow tests first,
    as the others would wait for one that began last."""
    num_cases: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if num_cases[test] % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            num_cases[test] += 1
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.fixture(scope="session", autouse=True)
def fingerprint_cache(tmp_path_factory) -> Iterator[None]:
    """Fingerprints of folders that are gone after the tests; commands under test inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer()


@pytest.fixture(scope="session")
def pair(tokenizer) -> ModelPair:
    """A float64 pair whose models disagree enough for budgets to bind."""
    return ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)


@pytest.fixture(scope="session")
def pair_folders(tmp_path_factory, tokenizer) -> tuple[Path, Path]:
    """The same kind of pair as Hugging Face folders, in float32."""
    root = tmp_path_factory.mktemp("pair")
    for name, model in (("safe", tiny_llama(1)), ("risky", tiny_llama(2, layers=3))):
        model.float().save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root / "safe", root / "risky"
