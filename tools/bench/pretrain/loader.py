"""Training batches beside a plain copy of them."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anchored import text_tables
from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.plan.loader import SequenceLoader

from ..options import BenchLoaderConfig
from ..random_inputs import write_random_shards
from ..timing import PROCESS, Stopwatch, in_turns

COPY, TORCH, OURS = "numpy memmap copy", "torch DataLoader", "anchored loader"
VOCAB_SIZE = 128_256
TITLES = ("tokens/s a core", "ratio", "other ids")

Batch = tuple[Tensor, Tensor]
"""Inputs and labels, (batch_size, seq_len) int64 each."""


def run(config: BenchLoaderConfig) -> int:
    """Print one table and return 0."""
    with tempfile.TemporaryDirectory() as folder:
        plan = random_plan(Path(folder), config)
        windows = WindowDataset(plan, config.batches * config.batch_size)
        readers: dict[str, Callable[[], Iterator[Batch]]] = {
            COPY: lambda: windows.batches(config.batch_size),
            TORCH: lambda: iter(DataLoader(windows, batch_size=config.batch_size)),
            OURS: lambda: loader_batches(plan, config.batch_size),
        }
        num_other_ids = {
            name: sum(map(_num_different, windows.batches(config.batch_size), read()))
            for name, read in readers.items()
        }
        works = {n: partial(_processor_seconds, r, config.batches) for n, r in readers.items()}
        seconds = in_turns(works, config.runs)
    print(
        f"{config.batches} batches of {config.batch_size} sequences of {config.seq_len:,} tokens, "
        f"{config.sources} sources, numpy {np.__version__}, torch {torch.__version__}, "
        f"processor time, median of {config.runs} runs"
    )
    num_tokens = config.batches * config.batch_size * config.seq_len
    rows = [
        (
            name,
            f"{num_tokens / median(measured):,.0f}",
            f"{median(seconds[COPY]) / median(measured):.3f}",
            str(num_other_ids[name]) if name != COPY else "-",
        )
        for name, measured in seconds.items()
    ]
    text_tables.print_lines([("", *TITLES), *rows], 18, name_width=20)
    return 0


def random_plan(folder: Path, config: BenchLoaderConfig) -> DataPlan:
    """A plan over new sources of random tokens, with weights that fall like 1/n."""
    generator = np.random.default_rng(0)
    names = [f"source{number}" for number in range(config.sources)]
    sources = [
        DataSource(name=name, path=str(folder / name), weight=1 / (1 + number))
        for number, name in enumerate(names)
    ]
    write = partial(write_random_shards, vocab_size=VOCAB_SIZE, generator=generator)
    shards = [write(folder / name, config.source_tokens) for name in names]
    return DataPlan(DataConfig(sources=tuple(sources)), shards, seq_len=config.seq_len)


class WindowDataset(Dataset[Batch]):
    """The first sequences of a plan, each a slice of a memory map that was found beforehand."""

    def __init__(self, plan: DataPlan, num_sequences: int) -> None:
        """The plan's sources must have one shard each."""
        arrays = [
            np.memmap(one.folder / one.manifest.shards[0].tokens_file, dtype="<u4", mode="r")
            for one in plan.shards
        ]
        places = map(plan.locate, range(num_sequences))
        self._windows = [(arrays[place.source], place.start) for place in places]
        self._num_tokens = plan.seq_len + 1

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, sequence: int) -> Batch:
        tokens = torch.from_numpy(self._tokens(sequence).astype(np.int64))
        return tokens[:-1], tokens[1:]

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Every whole batch, copied row by row."""
        for first in range(0, len(self), batch_size):
            rows = [self._tokens(first + row) for row in range(batch_size)]
            tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _tokens(self, sequence: int) -> np.ndarray:
        array, start = self._windows[sequence]
        tokens = array[start : start + self._num_tokens]
        missing = self._num_tokens - len(tokens)
        return np.concatenate([tokens, array[:missing]]) if missing else tokens


def loader_batches(plan: DataPlan, batch_size: int) -> Iterator[Batch]:
    """What training reads: endless."""
    loader = SequenceLoader(plan, dp_rank=0, dp_world_size=1, local_batch_size=batch_size)
    for inputs, labels in loader:
        yield inputs["input"], labels


def _processor_seconds(read: Callable[[], Iterator[Batch]], num_batches: int) -> float:
    with Stopwatch(PROCESS) as watch:
        for _ in islice(read(), num_batches):
            pass
    return watch.seconds


def _num_different(one: Batch, other: Batch) -> int:
    return sum(int((mine != theirs).sum()) for mine, theirs in zip(one, other, strict=True))
