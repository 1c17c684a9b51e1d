"""The data plan: the whole order of training as a pure function of the sequence number."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, count, pairwise
from typing import Any

import numpy as np

from ..tokens.shards import Manifest, TokenShards, encoding_difference
from .data_config import DataConfig
from .order import KeyedPermutation, Mixture

SCHEMA = "anchored-plan/1"


@dataclass(frozen=True, slots=True)
class Window:
    """seq_len + 1 tokens of a source: the inputs of one sequence and its labels, one token on."""

    source: int
    epoch: int
    start: int
    """Index of the first token in the source; the window runs on at token 0 after the last one."""


class DataPlan:
    """Sequence i of a run, for any i: its source, epoch and window.

    Nothing is stored per sequence and nothing depends on ranks, so a run can be resumed at any
    step on any number of processes, and what it has read is known from its step alone.
    Within an epoch a source's windows are visited once each, in a keyed order. Every epoch cuts
    its windows at other tokens, so that a source that is read often is not always torn apart at
    the same tokens, and no token is left out of every epoch.
    """

    def __init__(self, config: DataConfig, shards: Sequence[TokenShards], *, seq_len: int) -> None:
        """config.sources and shards go together; raises ValueError if they cannot be mixed."""
        if not config.sources:
            raise ValueError("data.sources is empty: name at least one folder of token shards")
        self.config, self.shards, self.seq_len = config, list(shards), seq_len
        # All sources were encoded as the first one.
        first = self.shards[0].manifest
        self.tokenizer_sha256 = first.tokenizer_sha256
        self.bos_id, self.eos_id = first.bos_id, first.eos_id
        weights, self.num_windows = [], list[int]()
        for source, manifest in zip(config.sources, [one.manifest for one in shards], strict=True):
            check_source(f"source {source.name}", manifest, self, seq_len=seq_len)
            self.num_windows.append((manifest.num_tokens - 1) // seq_len)
            # repr keeps the decimal that was written: 0.1 means one tenth, not its nearest binary.
            weights.append(Fraction(repr(source.weight)))
            if config.weight_unit == "documents":
                weights[-1] *= Fraction(manifest.num_tokens, manifest.num_documents)
        self.mixture = Mixture(weights)
        self._epoch = lru_cache(maxsize=4 * len(self.shards))(self._new_epoch)

    @classmethod
    def open(cls, config: DataConfig, *, seq_len: int) -> "DataPlan":
        """Open the shards of every source."""
        shards = [TokenShards.open(source.path) for source in config.sources]
        return cls(config, shards, seq_len=seq_len)

    def locate(self, sequence: int) -> Window:
        """The window that sequence number `sequence` reads."""
        source, occurrence = self.mixture.locate(sequence)
        epoch, index = divmod(occurrence, self.num_windows[source])
        phase, order = self._epoch(source, epoch)
        return Window(source, epoch, phase + order[index] * self.seq_len)

    def sequences_with(
        self, source: int, start: int, stop: int, *, num_sequences: int
    ) -> Iterator[int]:
        """The sequences that read any of a source's tokens start .. stop - 1.

        Only the first `num_sequences` count, epoch by epoch. The time does not grow with them but
        with the number of results.
        """
        num_windows, num_tokens = self.num_windows[source], self.shards[source].num_tokens
        for epoch in count():
            if self.mixture.position(source, epoch * num_windows) >= num_sequences:
                return
            phase, order = self._epoch(source, epoch)
            # 1. The windows, numbered along the circle of tokens, whose seq_len + 1 tokens overlap.
            numbers = set()
            for shift in (0, num_tokens):  # the last windows run on at token 0
                first = -(-(start + shift - phase - self.seq_len) // self.seq_len)
                last = (stop + shift - 1 - phase) // self.seq_len
                numbers |= set(range(max(first, 0), min(last, num_windows - 1) + 1))
            # 2. When each is read: its place in the epoch's order, then in the mixture.
            for number in sorted(numbers):
                occurrence = epoch * num_windows + order.index(number)
                sequence = self.mixture.position(source, occurrence)
                if sequence < num_sequences:
                    yield sequence

    def tokens(self, sequence: int) -> np.ndarray:
        """The tokens of one sequence, (seq_len + 1,) uint32."""
        window = self.locate(sequence)
        shards = self.shards[window.source]
        return np.concatenate([shards.tokens(*piece) for piece in self.pieces(window)])

    def pieces(self, window: Window) -> list[tuple[int, int]]:
        """First token and number of tokens of a window, which may run on at the beginning."""
        num_tokens = self.seq_len + 1
        before_end = min(num_tokens, self.shards[window.source].num_tokens - window.start)
        return [(window.start, before_end), (0, num_tokens - before_end)]

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the order: sources, weights, contents, seed, seq_len."""
        sources = [
            {
                "name": source.name,
                "weight": repr(source.weight),
                "tokenizer_sha256": shards.manifest.tokenizer_sha256,
                "tokens_sha256": shards.manifest.tokens_sha256,
            }
            for source, shards in zip(self.config.sources, self.shards, strict=True)
        ]
        return {
            "schema": SCHEMA,
            "seq_len": self.seq_len,
            "seed": self.config.seed,
            "weight_unit": self.config.weight_unit,
            "sources": sources,
        }

    @property
    def hash(self) -> str:
        """sha256 over the identity."""
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _new_epoch(self, source: int, epoch: int) -> tuple[int, KeyedPermutation]:
        """A pass over a source as a circle of tokens: the first token of a window, their order."""
        key = f"{self.config.seed}/{self.config.sources[source].name}/{epoch}"
        phase = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
        return phase % self.seq_len, KeyedPermutation(self.num_windows[source], key)


def check_source(name: str, manifest: Manifest, data: Any, *, seq_len: int) -> None:
    """Raises ValueError for too few tokens, or others than those of `data`, a plan for example."""
    if difference := encoding_difference(data, manifest):
        raise ValueError(f"the data and {name} were tokenized differently: {difference}")
    if manifest.num_tokens <= seq_len:
        raise ValueError(
            f"{name} has {manifest.num_tokens} tokens, too few for one sequence of {seq_len} and "
            "its labels"
        )


def data_record(plan: DataPlan, *, batch_size: int) -> dict[str, Any]:
    """The plan's sources, and what `tokens_read` needs; all of it JSON."""
    sources = [
        {
            "name": source.name,
            "weight": source.weight,
            "mixture_weight": mixture_weight,
            "num_windows": num_windows,
            "origin": shards.manifest.source,
            "revision": shards.manifest.revision,
            "licenses": shards.manifest.licenses,
            "num_documents": shards.manifest.num_documents,
            "num_tokens": shards.manifest.num_tokens,
            "tokens_sha256": shards.manifest.tokens_sha256,
            # Left out where nothing was searched: records of earlier runs have no such entry.
            **({"decontamination": search} if (search := shards.manifest.decontamination) else {}),
        }
        for source, mixture_weight, num_windows, shards in zip(
            plan.config.sources, plan.mixture.weights, plan.num_windows, plan.shards, strict=True
        )
    ]
    return {
        "plan_hash": plan.hash,
        "weight_unit": plan.config.weight_unit,
        "seq_len": plan.seq_len,
        "batch_size": batch_size,
        "sources": sources,
    }


def skipped_steps(data: dict[str, Any], step: int) -> int:
    """Steps whose data a run of this record has left out when it is after `step`.

    data["skips"]: [step, count] of each fork that left out what made a run fail.
    """
    return sum(num_skipped for after, num_skipped in data.get("skips", []) if after <= step)


def step_reading(data: dict[str, Any], data_step: int) -> int | None:
    """The step of a run with this record that reads the plan's step `data_step`; None if none."""
    for num_skipped in {0, *accumulate(skipped for _, skipped in sorted(data.get("skips", [])))}:
        step = data_step - num_skipped
        if step >= 1 and step + skipped_steps(data, step - 1) == data_step:
            return step
    return None


def epochs_read(data: dict[str, Any], step: int) -> dict[str, float]:
    """Passes over each source, by its name, in the first `step` steps of a run; not whole."""
    windows = {source["name"]: source["num_windows"] for source in data["sources"]}
    read = tokens_read(data, step)
    return {name: count / (windows[name] * data["seq_len"]) for name, count in read.items()}


def tokens_read(data: dict[str, Any], step: int) -> dict[str, int]:
    """Tokens of each source, by its name, in the first `step` steps of a run with this record.

    The time that this takes does not grow with the steps.
    """
    sources = data["sources"]
    mixture = Mixture([Fraction(source["mixture_weight"]) for source in sources])
    # What is read up to each skip, and from there on.
    bounds = [0, *(after for after, _ in data.get("skips", []) if after < step), step]
    counts = [0] * len(sources)
    for first, last in pairwise(bounds):
        shift = skipped_steps(data, first) if first else 0
        ends = (mixture.counts((one + shift) * data["batch_size"]) for one in (first, last))
        counts = [count + end - start for count, start, end in zip(counts, *ends, strict=True)]
    names = [source["name"] for source in sources]
    return {name: n * data["seq_len"] for name, n in zip(names, counts, strict=True)}
