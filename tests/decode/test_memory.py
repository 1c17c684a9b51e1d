"""What prompts cost: a long one no more than a plain prefill, many of them no more than a few."""

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import Tensor
from torch.nn import Module

from anchored import Anchored, Decoder, ModelPair

TESTS = Path(__file__).parent.parent


def prefills_mib() -> list[tuple[float, float]]:
    """(memory before, peak) of a prefill with its debt and of a plain one, in another process."""
    script = Path(__file__).parent / "prefill_memory.py"
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS / "support"),
        "MALLOC_MMAP_THRESHOLD_": "65536",  # freed tensors leave the process: figures repeat
    }
    command = [sys.executable, str(script)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [tuple(map(float, line.split())) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_the_debt_of_a_long_prompt_takes_no_more_memory_than_its_prefill():
    """4,096 tokens, V = 128,256, float32. Measured: 121 MiB each on top of 733 MiB."""
    (before_debt, debt_peak), (before, plain_peak) = prefills_mib()
    assert debt_peak <= 1.2 * plain_peak
    assert debt_peak - before_debt <= 1.2 * (plain_peak - before)


def resident_mib() -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


@contextmanager
def counted_forwards(decoder: Decoder) -> Iterator[Counter]:
    """Forwards of both models and the positions, padding included, that they were given."""
    work: Counter[str] = Counter()

    def count(module: Module, args: tuple[Tensor, ...]) -> None:
        work.update(calls=1, positions=args[0].numel())

    models = (decoder.pair.risky, decoder.pair.safe)
    hooks = [model.model.embed_tokens.register_forward_pre_hook(count) for model in models]
    yield work
    for hook in hooks:
        hook.remove()


@pytest.mark.slow
def test_memory_is_bounded_and_work_linear_in_the_number_of_prompts(pair_folders):
    """Measured on one core: 250 prompts of 2 to 60 tokens in 3.5 s, 2,000 in 20 s and +8 MiB."""
    decoder = Decoder(ModelPair.from_pretrained(*pair_folders), Anchored(k=1.0))
    source = random.Random(0)
    prompts = [
        [source.randrange(3, 320) for _ in range(source.randint(2, 60))] for _ in range(2000)
    ]
    prompts[7] = prompts[7] * 100
    work, grown = {}, {}
    for count in (250, 2000):
        before = resident_mib()
        with counted_forwards(decoder) as work[count]:
            results = decoder.generate(prompts[:count], max_new_tokens=16, seed=list(range(count)))
        grown[count] = resident_mib() - before
        assert [i for i, result in enumerate(results) if result.error] == [7]
    assert work[250]["calls"] > 0
    assert work[2000]["calls"] < 1.2 * 8 * work[250]["calls"]
    assert work[2000]["positions"] < 1.2 * 8 * work[250]["positions"]
    assert grown[2000] < 64
