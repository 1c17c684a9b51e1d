"""How often the host waits for a CUDA device, counted on one that is not there.

Run by hand: `TRITON_INTERPRET=1 PYTHONPATH=tests/support python tests/decode/host_waits.py`. Tests
hold the figures: tests/decode/engine/test_device_on_fake_cuda.py.
"""

import warnings
from collections.abc import Callable
from functools import partial

from byte_pairs import PROMPTS, tiny_byte_pair
from fake_cuda import fake_cuda
from fake_cuda_device import FakeDevice
from interpreted_triton import patch_once_a_launch
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, ModelPair
from anchored.decode.decoder import choose_level
from anchored.decode.engine import device_batch
from anchored.decode.engine.device_batch import CapturedStep, DeviceBatch
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.engine.speculation import Speculation
from anchored.decode.levels.level import Level, TokenLevel
from anchored.decode.models import column_attention
from anchored.decode.settings import SamplingConfig
from anchored.kernels import interval_sums
from anchored.kernels.gpu import interval_sums as launched

RULE = Anchored(k=0.5)
VOCAB_SIZE = 40
NUM_LOOKS = 2
SIZES = {"num_rows": 2, "max_length": 100}


def main() -> None:
    warnings.simplefilter("ignore")  # the interpreter divides by zero in lanes that it discards
    patch_once_a_launch()
    device_batch.NUM_WARM_UPS, device_batch.WAYS = 1, (True,)
    column_attention.decode_attention = partial(column_attention.decode_attention, backend="torch")
    CapturedStep.measured_ms = lambda step: 1.0
    with fake_cuda(num_processors=1) as device:
        launched.launched_sums = device.as_kernel(interval_sums._defined)
        for name, figures in _counts(device):
            prompts, looks, symbols = figures
            print(f"| {name} | {prompts:.0f} | {looks:.1f} | {symbols:.2f} |", flush=True)


def _counts(device: FakeDevice):
    models = (tiny_llama(seed, vocab_size=VOCAB_SIZE).float().to("cuda") for seed in (1, 2))
    level = TokenLevel(ModelPair(*models, word_tokenizer(VOCAB_SIZE)))
    sampling = SamplingConfig(temperature=1.0)
    yield "eager", _counted(device, level, lambda: PairedBatch(level, RULE, sampling, **SIZES))
    for drafts in (1, 3):
        speculation = Speculation.of(level, RULE, drafts)
        name = f"eager, {drafts} drafts"
        yield name, _counted(device, level, lambda s=speculation: s.open(sampling, **SIZES))
    for drafts in (0, 1, 3):
        name = f"device, {drafts} drafts" if drafts else "device"
        lengths = (drafts,)
        make = lambda n=lengths: DeviceBatch(level, RULE, sampling, draft_lengths=n, **SIZES)  # noqa: E731
        yield name, _counted(device, level, make)
    pair = tiny_byte_pair()
    models = [model.to("cuda") for model in pair.models.values()]
    pair = ModelPair(*models, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    level = choose_level(pair, "byte")
    yield "byte level", _counted(device, level, lambda: PairedBatch(level, RULE, sampling, **SIZES))


def _counted(
    device: FakeDevice, level: Level, make: Callable[[], PairedBatch]
) -> tuple[float, float, float]:
    """Waits of two prompts, of a look and of a symbol."""
    batch = make()
    prompts = [[5, 6, 7], [8, 9]] if level.name == "token" else [list(PROMPTS[0].encode())] * 2
    with device.counted() as of_prompts:
        states = batch.admit(
            [
                Request(prompt_token_ids=prompt, max_new_tokens=60, seed=row, index=row)
                for row, prompt in enumerate(prompts)
            ]
        )
    num_before = sum(len(state.steps) for state in states)
    with device.counted() as waits:
        for _ in range(NUM_LOOKS):
            batch.step()
    num_drawn = (sum(len(state.steps) for state in states) - num_before) / len(states)
    return of_prompts.total(), waits.total() / NUM_LOOKS, waits.total() / num_drawn


if __name__ == "__main__":
    main()
