"""A paired step with plain and with packed layers."""

import statistics
from collections.abc import Iterator

import torch

from anchored import Anchored, ModelPair, text_tables
from anchored.decode.decoder import choose_level
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.models.backbone import LeanBackbone
from anchored.decode.models.row_stream import RowStream
from anchored.decode.settings import SamplingConfig

from .options import BenchForwardConfig
from .random_inputs import random_pair, random_prompts
from .timing import in_turns, timed

NUM_ROWS = (1, 2, 4, 16)
NUM_STEPS = 12
PROMPT_TOKENS = 8
K = 0.1


def run(config: BenchForwardConfig) -> int:
    """Print one table and return 0."""
    shape, vocab_size = config.shape, config.vocab_size
    pair = random_pair(
        shape,
        shape,
        vocab_size=vocab_size,
        context_length=PROMPT_TOKENS + 2 * NUM_STEPS,
        dtype=torch.float32,
    )
    print(
        f"{shape} + {shape}, V = {vocab_size}, float32 on cpu ({torch.get_num_threads()} threads), "
        f"torch {torch.__version__}, k = {K}, {NUM_STEPS} steps of each kind in turns"
    )
    rows = [list(_cells(pair, num_rows)) for num_rows in NUM_ROWS]
    print(text_tables.aligned(("rows", "plain ms", "packed ms", "x plain", "x best"), rows))
    return 0


def _cells(pair: ModelPair, num_rows: int) -> Iterator[str]:
    """Medians, their ratio, and that of the fastest steps, which other programs disturb least."""
    batches = {name: _batch(pair, num_rows, packs=name == "packed") for name in ("plain", "packed")}
    steps = {name: lambda batch=batch: timed(batch.step)[0] for name, batch in batches.items()}
    seconds = in_turns(steps, NUM_STEPS)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    yield str(num_rows)
    yield from (f"{1e3 * median:.1f}" for median in medians.values())
    yield f"{medians['plain'] / medians['packed']:.2f}"
    yield f"{min(seconds['plain']) / min(seconds['packed']):.2f}"


def _batch(pair: ModelPair, num_rows: int, *, packs: bool) -> PairedBatch:
    """Every row with a request that outlasts the measurement."""
    batch = PairedBatch(
        choose_level(pair, "token"),
        Anchored(k=K, debt="none"),
        SamplingConfig(temperature=0.7, repetition_penalty=1.1),
        num_rows=num_rows,
        max_length=PROMPT_TOKENS + 2 * NUM_STEPS,
    )
    for stream in batch.streams.values():
        assert isinstance(stream, RowStream)
        stream.backbone = LeanBackbone(stream.model, packs=packs)
    prompts = random_prompts(num_rows, PROMPT_TOKENS, pair.vocab_size)
    batch.admit(
        [
            Request(prompt_token_ids=prompt, max_new_tokens=2 * NUM_STEPS, seed=index, index=index)
            for index, prompt in enumerate(prompts)
        ]
    )
    return batch
