"""Where Triton fails on a device, decoding goes on by the CPU's solver, with one warning."""

import importlib
import logging
import re
from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_llama, word_tokenizer
from triton.compiler.errors import CompilationError

from anchored import Anchored, Decoder, ModelPair
from anchored.kernels import project
from anchored.kernels.devices import work_device
from anchored.kernels.gpu import launch
from anchored.kernels.project import project_kl

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

VOCAB_SIZE = 40
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def new_process():
    """Nothing is known of any device, as in a new process."""
    importlib.reload(project)
    yield
    importlib.reload(project)
    work_device.cache_clear()


@pytest.fixture
def interpreted(new_process, monkeypatch):
    """Triton takes the CPU's tensors until it fails."""
    monkeypatch.setattr(project, "takes_triton", lambda device: not project.falls_back())


def raising(error):
    """A launch that does not come to its end."""

    def launched(*_, **__):
        raise error

    return launched


def wrong(name: str, change):
    """A launch whose result has another value of this name."""
    launched = launch.project

    def changed(*arguments, **settings):
        drawn = launched(*arguments, **settings)
        return replace(drawn, **{name: change(getattr(drawn, name))})

    return changed


FAULTS = {
    "does not compile": (
        raising(CompilationError("x = 1", None, "no fp64 here")),
        "CompilationError: .*no fp64 here",
    ),
    "spends wrongly": (
        wrong("spend", lambda nats: nats + 1e-3),
        "RuntimeError: the spend of row 0 is not that of the CPU",
    ),
    "draws wrongly": (
        wrong("token_ids", lambda token_ids: (token_ids + 1) % VOCAB_SIZE),
        "RuntimeError: the token of row 0 is not that of the CPU",
    ),
}


@pytest.mark.parametrize(("launched", "reason"), FAULTS.values(), ids=FAULTS)
def test_the_cpu_solver_decodes_in_its_place(launched, reason, request, monkeypatch, caplog):
    models = (tiny_llama(seed, vocab_size=VOCAB_SIZE, layers=1).float() for seed in (1, 2))
    word_pair = ModelPair(*models, word_tokenizer(VOCAB_SIZE))
    decoder = Decoder(word_pair, Anchored(k=0.5, debt="none"))
    options = {"max_new_tokens": 4, "temperature": 1.0, "seed": [3, 4]}
    expected = decoder.generate([[5, 6, 7], [8, 9]], **options)
    request.getfixturevalue("interpreted")
    monkeypatch.setattr(launch, "project", launched)
    with caplog.at_level(logging.WARNING):
        actual = decoder.generate([[5, 6, 7], [8, 9]], **options)
    for ours, plain in zip(actual, expected, strict=True):
        assert ours.token_ids == plain.token_ids and not ours.error
        assert ours.ledger.certified and ours.ledger.spent == plain.ledger.spent
    (line,) = caplog.messages
    assert line.startswith("Triton fails on cpu, so the CPU's solver projects from here on: ")
    assert re.search(reason, line), line


def drawn(backend: str) -> torch.Tensor:
    """Tokens of three rows by keys, as vLLM draws."""
    risky, safe = torch.randn(2, 3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    keyed, budget = (torch.arange(3), torch.arange(3)), torch.full((3,), 0.5)
    return project_kl(risky, safe, budget, keyed=keyed, backend=backend).token_ids


@pytest.mark.usefixtures("interpreted")
def test_a_launch_that_fails_later_is_made_up_for(monkeypatch, caplog):
    expected = drawn("torch")
    assert torch.equal(drawn("auto"), expected) and not caplog.messages
    monkeypatch.setattr(launch, "project", raising(RuntimeError("an illegal instruction")))
    assert torch.equal(drawn("auto"), expected)
    assert len(caplog.messages) == 1 and "an illegal instruction" in caplog.text


@pytest.mark.usefixtures("interpreted")
def test_what_says_nothing_of_triton_is_raised(monkeypatch, caplog):
    monkeypatch.setattr(launch, "project", raising(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        drawn("auto")
    monkeypatch.setattr(launch, "project", raising(RuntimeError("an illegal instruction")))
    with pytest.raises(RuntimeError, match="an illegal instruction"):
        drawn("triton")
    assert not caplog.messages


def test_a_device_of_another_maker_is_left_to_the_cpu_solver_without_a_try(monkeypatch, caplog):
    assert not project.takes_triton(CPU) and project.takes_triton(CUDA)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not project.takes_triton(CUDA) and not project.takes_triton(CUDA)
    assert caplog.messages == [
        "the kernels are for NVIDIA's GPUs and cuda:0 is of ROCm, so the CPU's solver projects "
        "from here on"
    ]


def test_processes_that_draw_the_same_tokens_project_by_one_solver(monkeypatch, caplog):
    """A group in which another process has failed, then one in which this one fails later."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda failed, *_: failed.fill_(1))
    project.agree(CUDA, None)
    other = "Triton fails in another process that draws the same tokens"
    assert caplog.messages == [f"{other}, so the CPU's solver projects from here on"]
    assert not project.takes_triton(CUDA)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda failed, *_: failed)
    monkeypatch.setattr(project, "takes_triton", lambda device: True)
    project.agree(CPU, None)
    monkeypatch.setattr(launch, "project", raising(OSError("no compiler")))
    with pytest.raises(RuntimeError, match=r"where other processes draw the same .* no compiler"):
        drawn("auto")


def test_work_stays_where_float64_is_and_other_errors_are_raised(monkeypatch):
    assert work_device(CPU) == CPU
    monkeypatch.setattr(torch, "ones", raising(TypeError("the device has no float64")))
    assert work_device(CUDA) == CPU
    monkeypatch.setattr(torch, "ones", raising(RuntimeError("an illegal memory access")))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        work_device(torch.device("cuda", 3))
