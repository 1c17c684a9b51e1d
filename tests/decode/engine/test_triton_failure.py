"""Where Triton fails on a device, decoding goes on by the CPU's solver, with one warning."""

import logging
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from fake_cuda import fake_cuda
from tiny_models import tiny_llama, word_tokenizer
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from anchored import Anchored, Decoder, ModelPair
from anchored.kernels import project
from anchored.kernels.gpu import launch
from anchored.kernels.project import project_kl

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

VOCAB_SIZE = 40
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def device(monkeypatch):
    """A new one, of which nothing is known."""
    for name in ("_failed", "_agreed"):
        monkeypatch.setattr(project, name, set())
    project.check_rows.cache_clear()
    with fake_cuda(num_processors=1) as device:
        yield device
    project.check_rows.cache_clear()


def raising(error):
    """A launch that does not come to its end."""

    def launched(*_, **__):
        raise error

    return launched


def wrong(name: str, change):
    """Launches whose result has another value of this name."""

    def of(launched):
        def changed(*arguments, **settings):
            drawn = launched(*arguments, **settings)
            return replace(drawn, **{name: change(getattr(drawn, name))})

        return changed

    return of


misspending = wrong("spend", lambda nats: nats + 1e-3)
misdrawing = wrong("token_ids", lambda token_ids: (token_ids + 1) % VOCAB_SIZE)


FAULTS = {
    "does not compile": (
        lambda _: raising(CompilationError("x = 1", None, "no fp64 here")),
        "CompilationError: .*no fp64 here",
    ),
    "lacks resources": (
        lambda _: raising(OutOfResources(9, 1, "shared memory")),
        "OutOfResources: out of resource: shared memory",
    ),
    "has no compiler": (
        lambda _: raising(FileNotFoundError(2, "No such file or directory", "gcc")),
        "FileNotFoundError: .*'gcc'",
    ),
    "fails at a launch": (
        lambda _: raising(RuntimeError("Triton Error [CUDA]: invalid device function")),
        r"RuntimeError: Triton Error \[CUDA\]: invalid device function",
    ),
    "spends wrongly": (misspending, "RuntimeError: the spend of row 0 is not that of the CPU"),
    "draws wrongly": (misdrawing, "RuntimeError: the token of row 0 is not that of the CPU"),
}
faults = pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)


def decoded(place: str) -> list:
    models = (tiny_llama(seed, vocab_size=VOCAB_SIZE).float().to(place) for seed in (1, 2))
    pair = ModelPair(*models, word_tokenizer(VOCAB_SIZE))
    return Decoder(pair, Anchored(k=0.5)).generate(
        [[5, 6, 7], [8, 9]], max_new_tokens=4, temperature=1.0, seed=[3, 4]
    )


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("device")
@faults
def test_the_cpu_solver_decodes_in_its_place(fault, reason, monkeypatch, caplog):
    expected = decoded("cpu")
    monkeypatch.setattr(launch, "project", fault(launch.project))
    with caplog.at_level(logging.WARNING):
        actual = [*decoded("cuda"), *decoded("cuda")][:2]
    for ours, plain in zip(actual, expected, strict=True):
        assert ours.token_ids == plain.token_ids and not ours.error
        assert ours.ledger.certified and ours.ledger.is_within_bound
        assert ours.ledger.spent == pytest.approx(plain.ledger.spent, abs=1e-4)
    (line,) = caplog.messages
    assert line.startswith("Triton fails on cuda:0, so the CPU's solver projects from here on: ")
    assert re.search(reason, line), line


def drawn(backend: str, place: torch.device) -> torch.Tensor:
    """Tokens of three rows by keys, as vLLM draws."""
    risky, safe = torch.randn(2, 3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)).to(
        place
    )
    keyed = torch.arange(3).to(place), torch.arange(3).to(place)
    return project_kl(risky, safe, torch.full((3,), 0.5).to(place), keyed=keyed, backend=backend)


@pytest.mark.usefixtures("device")
def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device, which may be another one."""
    current = []
    monkeypatch.setattr(torch.cuda, "device", lambda place: current.append(place) or nullcontext())
    drawn("triton", DEVICE)
    assert current == [DEVICE]


@pytest.mark.usefixtures("device")
def test_a_launch_that_fails_later_is_made_up_for(monkeypatch, caplog):
    expected = drawn("torch", torch.device("cpu")).token_ids
    drawn("auto", DEVICE)
    assert not caplog.messages and project._failed == set()
    monkeypatch.setattr(launch, "project", raising(RuntimeError("an illegal instruction")))
    assert torch.equal(drawn("auto", DEVICE).token_ids.cpu(), expected)
    assert len(caplog.messages) == 1 and "an illegal instruction" in caplog.text


@pytest.mark.usefixtures("device")
def test_a_device_of_another_maker_is_left_to_the_cpu_solver_without_a_try(monkeypatch, caplog):
    expected = drawn("torch", torch.device("cpu")).token_ids
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(launch, "project", raising(KeyError("maxnreg")))
    for _ in range(2):
        assert torch.equal(drawn("auto", DEVICE).token_ids.cpu(), expected)
    assert caplog.messages == [
        "the kernels are for NVIDIA's GPUs and cuda:0 is of ROCm, so the CPU's solver projects "
        "from here on"
    ]


RANK = """
import logging, sys, torch
from anchored.kernels import project

logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
rank, place, device = int(sys.argv[1]), sys.argv[2], torch.device("cuda", 0)
store = torch.distributed.FileStore(place, 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
if sys.argv[3] == str(rank):
    project._give_up(device, "Triton fails here")
project.agree(device, torch.distributed.group.WORLD)
print(project.takes_triton(device))
if sys.argv[3] == "none":
    try:
        project._give_up(device, "Triton fails later")
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("failing", ["1", "none"])
def test_processes_that_draw_the_same_tokens_project_by_one_solver(failing, tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), failing],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=600)[0].splitlines() for rank in ranks]
    rest = ", so the CPU's solver projects from here on"
    if failing == "none":
        line = "Triton fails later, where other processes draw the same tokens and may go on by it"
        assert printed == [["True", line]] * 2
        return
    assert printed[1] == [f"Triton fails here{rest}", "False"]
    other = "Triton fails in another process that draws the same tokens"
    assert printed[0] == [f"{other}{rest}", "False"]


@pytest.mark.usefixtures("device")
def test_what_says_nothing_of_triton_is_raised(monkeypatch, caplog):
    monkeypatch.setattr(launch, "project", raising(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        drawn("auto", DEVICE)
    monkeypatch.setattr(launch, "project", raising(RuntimeError("an illegal instruction")))
    with pytest.raises(RuntimeError, match="an illegal instruction"):
        drawn("triton", DEVICE)
    assert not caplog.messages
