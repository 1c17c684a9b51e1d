"""One step on the device: what it changes, what it keeps, and that it asks for nothing."""

import pytest
import torch
from device_results import KL, assert_same, both, pair_of, stopping_llamas
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anchored import ModelPair
from anchored.decode.engine.device_batch import CAPACITY_STEP, DeviceBatch, capacity_for
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.levels.level import TokenLevel
from anchored.decode.models import linear
from anchored.decode.settings import SamplingConfig
from anchored.kernels import walk

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def llama_pair(tokenizer) -> ModelPair:
    return stopping_llamas(tokenizer)


def new_batch(pair, num_drafts: int = 0) -> DeviceBatch:
    return DeviceBatch(
        TokenLevel(pair),
        KL,
        SamplingConfig(),
        num_rows=2,
        max_length=40,
        draft_lengths=(num_drafts,),
    )


def admitted(batch: PairedBatch, prompt: list[int], max_new_tokens: int) -> None:
    batch.admit([Request(prompt_token_ids=prompt, max_new_tokens=max_new_tokens, seed=9)])


def test_a_finished_row_reads_its_last_token_again_and_changes_nothing(llama_pair):
    batch = new_batch(llama_pair)
    admitted(batch, [5, 6, 7], 1)
    admitted(batch, [9, 4], 20)
    state, cache = batch._state_on_device, batch.streams["risky"]._cache
    batch._runs[0]()
    assert state.is_finished.tolist() == [True, False]
    batch._runs[0]()  # the row reads what it drew last, and from here on again and again
    watched = {
        "token": state.last_tokens,
        "position": state.positions,
        "seen": state.seen,
        "logits": state.logits["risky"],
        "keys": cache._layers[-1].keys,
    }
    before = {name: values[0].clone() for name, values in watched.items()}
    address = cache._layers[-1].keys.data_ptr()
    batch._runs[0]()
    for name, values in watched.items():
        torch.testing.assert_close(values[0], before[name], rtol=0, atol=1e-4, msg=name)
    assert before["position"] == 3 and state.positions[1] == 4
    assert cache._layers[-1].keys.data_ptr() == address
    assert state.records[:3, :, 0, -1].tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]


class NoAnswers(TorchFunctionMode):
    """Refuses every call that a CUDA tensor could answer only after the device is done."""

    WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")
    WAITING += ("__index__", "masked_select", "equal", "allclose", "unique")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.WAITING and isinstance(args[0], Tensor):
            raise AssertionError(f"{name} waits for the device")
        if name == "where" and not all(isinstance(value, Tensor) for value in args):
            raise AssertionError("a number in where is copied to the device")
        indexed = args[1] if name in ("__getitem__", "__setitem__") else ()
        for index in indexed if isinstance(indexed, tuple) else (indexed,):
            if isinstance(index, Tensor) and index.dtype == torch.bool:
                raise AssertionError("a boolean index waits for the device")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def by_triton(monkeypatch):
    """Walks and plain layers as on CUDA, the kernels in the interpreter."""
    monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    monkeypatch.setattr(walk, "resolved_backend", lambda backend, device: "triton")


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize(("family", "num_drafts"), [("llama", 2), ("gpt2", 0)])
def test_a_step_asks_the_device_for_nothing(tokenizer, family, num_drafts):
    batch = new_batch(pair_of(tokenizer, family), num_drafts)
    admitted(batch, [5, 6, 7], 4)
    with NoAnswers():
        batch._runs[num_drafts]()
        with pytest.raises(AssertionError, match="waits for the device"):
            batch._state_on_device.is_finished.all().item()
        with pytest.raises(AssertionError, match="waits for the device"):
            batch._state_on_device.positions[batch._state_on_device.is_finished]
        with pytest.raises(AssertionError, match="waits for the device"):
            assert batch._state_on_device.is_finished.any()


@pytest.mark.gpu
def test_a_captured_step_gives_the_eager_tokens_and_waits_for_nothing(llama_pair):
    pair = ModelPair(llama_pair.safe.cuda(), llama_pair.risky.cuda(), llama_pair.tokenizer)
    assert_same(*both(pair, KL, max_new_tokens=30))
    batch = new_batch(pair)
    admitted(batch, [5, 6, 7], 4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch._runs[0]()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_storage_is_taken_at_once_and_grows_in_steps(llama_pair):
    assert capacity_for(1) == capacity_for(CAPACITY_STEP) == CAPACITY_STEP
    assert capacity_for(CAPACITY_STEP + 1) == 2 * CAPACITY_STEP
    batch = new_batch(llama_pair)
    layer = batch.streams["safe"]._cache._layers[0]
    assert layer.keys.shape[2] == CAPACITY_STEP
    assert batch.fits(2, CAPACITY_STEP) and not batch.fits(3, 40)
    admitted(batch, [5], 3)
    assert not batch.fits(2, CAPACITY_STEP)
