"""A pair beside transformers with its risky model alone, at several batch sizes."""

import math
import resource
from collections.abc import Iterator
from itertools import chain

import torch
from transformers import PreTrainedModel

from anchored import Decoder, ModelPair, text_tables
from anchored.decode.pair_options import check_presence

from .baselines import Generate, official_pair, transformers_alone
from .inputs import BenchInputs, matrix_weights
from .methods import BEFORE_PROMPT, RISKY_ALONE, bench_rules, decoder_generate, speeds
from .options import BenchDecodeConfig, method_names
from .timing import CLOCKS, timed

COPY_BYTES = 1 << 28
NUM_COPIES = 5
"""A large copy, and how often it is made for the fastest one."""
PASSAGE_WORDS = 100
"""Words of a text that MemFree blocks and RCAD reads before each prompt."""
OFFICIAL = "official package"
WIDTH, NAME_WIDTH = 12, 26
TITLES = (
    *("batch", "first ms", "tokens/s", "error", "slowdown", "error", "x bandwidth"),
    *("x official", "peak GB"),
)


@torch.inference_mode()
def run(config: BenchDecodeConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    longest = config.prompt_tokens + config.new_tokens + BEFORE_PROMPT
    inputs = BenchInputs.of(config, longest)
    print(
        f"{config} ({torch.get_num_threads()} threads), torch {torch.__version__}, "
        f"{config.prompt_tokens} prompt tokens, {config.new_tokens} new ones, k = {config.k}, "
        f"{config.runs} runs; slowdown: the speed of {RISKY_ALONE} over this one's, in one run"
    )
    rows = chain.from_iterable(_rows(inputs, config, size) for size in config.batch_sizes)
    text_tables.print_lines(chain([("", *TITLES)], rows), WIDTH, name_width=NAME_WIDTH)
    return 0


def _rows(
    inputs: BenchInputs, config: BenchDecodeConfig, batch_size: int
) -> Iterator[tuple[str, ...]]:
    """The risky model alone, the authors' package where it is installed, then the methods."""
    pair, prompts = inputs.pair, inputs.prompts(batch_size, config.prompt_tokens)
    generates: dict[str, Generate] = {RISKY_ALONE: transformers_alone(pair.risky, prompts)}
    if (official := official_pair(pair, prompts, k=config.k)) is not None:
        generates[OFFICIAL] = official
    passages = inputs.passages(batch_size, PASSAGE_WORDS)
    rules = bench_rules(
        k=config.k, horizon=config.new_tokens, passages=passages, words=inputs.swapped_words()
    )
    models = {RISKY_ALONE: ["risky"], OFFICIAL: ["safe", "risky"]}
    for name in method_names(config.methods):
        decoder = Decoder(pair, rules[name], level="token", batch_size=batch_size)
        generates[name] = decoder_generate(decoder, prompts, passages)
        models[name] = sorted({stream.model for stream in rules[name].streams.values()})
    measured = speeds(
        generates,
        config.new_tokens,
        runs=config.runs,
        clock=CLOCKS[config.clock],
        device=config.device,
    )
    bandwidth = copy_bytes_per_s(config.device)
    official_per_s = measured[OFFICIAL].mean if OFFICIAL in measured else math.nan
    for name, speed in measured.items():
        # A step must read every model's weights once, however many streams it has.
        step_s = sum(step_bytes(pair.models[model]) for model in models[name]) / bandwidth
        yield (
            name,
            str(batch_size),
            f"{speed.first_ms:.1f}",
            f"{speed.mean:.1f}",
            f"{speed.error:.1f}",
            *(f"{number:.2f}" for number in speed.slowdown(measured[RISKY_ALONE])),
            f"{speed.mean * step_s / batch_size:.2f}",
            "-" if math.isnan(official_per_s) else f"{speed.mean / official_per_s:.2f}",
            f"{_peak_bytes(pair) / 1e9:.2f}",
        )


def copy_bytes_per_s(device: str) -> float:
    """Bytes read or written a second by a large copy on the device: the fastest of a few."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source), device=device)[0] for _ in range(NUM_COPIES)]
    return 2 * COPY_BYTES / min(seconds)


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one decoding step must read."""
    return sum(weight.numel() * weight.element_size() for weight in matrix_weights(model))


def _peak_bytes(pair: ModelPair) -> int:
    """Device memory on CUDA, else the process's largest resident size so far."""
    if pair.risky.device.type == "cuda":
        return torch.cuda.max_memory_allocated(pair.risky.device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
