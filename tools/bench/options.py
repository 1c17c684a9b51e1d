"""Options of the benchmarks; torch is not imported here."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from anchored.decode.pair_options import Dtype, check_device_name
from anchored.inputs import check_input
from anchored.tools.commands.training.training_options import STAGE_1

Shape = Literal["tinycomma-1.8b", "llama-8b", "llama-70b", "wide", "medium", "small", "tiny"]
"""Sizes of models with random weights, see `inputs.SHAPES`."""
LLAMA_3_VOCAB_SIZE = 128_256
LEAST_VOCAB = 3
"""Tokens of a random pair: those that begin and end a text, and a word."""
LEAST_SYMBOLS = 2
"""New symbols of a text whose speed after the first one is measured."""

METHODS = (
    *("safe_only", "risky_only", "system", "memfree", "rcad", "cp_fuse", "token_swap"),
    *("anchored", "anchored_debt", "anchored_inf", "no_opt", "cold_start", "global_switch"),
)
"""Ways to decode that benchmarks know; "anchored_debt" is the one with prefix debt."""


def method_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """The methods named, words with commas taken apart; ValueError for an unknown one."""
    names = [name for word in words for name in word.split(",") if name]
    for name in names:
        if name not in (*METHODS, "all"):
            raise ValueError(f"methods must be all or of {', '.join(METHODS)}, got {name!r}")
    return tuple(name for name in METHODS if "all" in names or name in names)


def check_least(options: object, minimum: int, *names: str) -> None:
    """Raise ValueError, by its name, for a number below the minimum; tuples hold several."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number < minimum:
                raise ValueError(f"{name} must be >= {minimum}, got {number}")


def check_k(k: float) -> None:
    """Raise ValueError for what can be no budget of a step."""
    if not (math.isfinite(k) and k >= 0):
        raise ValueError(f"k must be finite and >= 0 nats, got {k}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchKernelConfig:
    """One projection and draw against the paper's algorithm: anchored bench kernel --threads 1"""

    batch_sizes: tuple[int, ...] = (1, 4, 16)
    """Rows of logits per call."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    seed: int = 0
    threads: int = 1
    """Threads of torch."""

    def __post_init__(self) -> None:
        check_least(self, 1, "batch_sizes", "vocab_size", "threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchPairOptions:
    """Two models, of random weights or in folders, and where they run."""

    safe: str = "tiny"
    """Shape of a safe model of random weights, or the folder of a model."""
    risky: str = "small"
    """The same of the risky model."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    """Tokens of random weights."""
    device: str = "cpu"
    dtype: Dtype = "auto"
    """auto: as stored, and float32 of random weights."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu counts this process's seconds: for a CPU that other programs use at the same time."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        check_least(self, LEAST_VOCAB, "vocab_size")
        if self.clock == "cpu" and self.device != "cpu":
            raise ValueError(f"clock cpu does not see {self.device}")
        shapes = get_args(Shape)
        if self.is_random or all(Path(name).is_dir() for name in (self.safe, self.risky)):
            return
        raise ValueError(
            f"safe and risky must both be of {', '.join(shapes)}, or both be folders of models, "
            f"got {self.safe} and {self.risky}"
        )

    @property
    def is_random(self) -> bool:
        """Whether the weights are random."""
        return {self.safe, self.risky} <= set(get_args(Shape))

    def __str__(self) -> str:
        size = f", V = {self.vocab_size}" if self.is_random else ""
        return (
            f"{self.safe} + {self.risky}{size}, {self.dtype} on {self.device}, {self.clock} clock"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchDecodeConfig(BenchPairOptions):
    """Methods beside transformers with the risky model alone: anchored bench decode --methods all

    With `--safe FOLDER --risky FOLDER` that is a real pair, with the quickstart's works as prompts.
    Speeds and costs are those of the paper's tables of efficiency. Bytes take a pair in folders.
    """

    level: Literal["token", "byte"] = "token"
    """What the lengths below are counted in."""
    batch_sizes: tuple[int, ...] = (1, 4, 16)
    """Requests that are decoded together."""
    methods: tuple[str, ...] = ("safe_only", "anchored", "anchored_inf")
    """all, or names, by spaces or commas; the risky model alone comes first in any case."""
    drafts: tuple[str, ...] = ()
    """Rows of anchored that speculate, by how many tokens they draft, or auto; at tokens alone."""
    prompt_length: int = 64
    new_length: int = 64
    """Tokens or bytes generated by every request of a timed run."""
    passage_words: int = 100
    """Words of a text that MemFree blocks and RCAD reads before each prompt."""
    k: float = 0.1
    """Nats a symbol, without prefix debt. The default binds at every step of the default pair; with
    1.5 every step is the risky model's own distribution."""
    runs: int = 3
    """In each of them the methods take turns."""

    def __post_init__(self) -> None:
        BenchPairOptions.__post_init__(self)
        check_k(self.k)
        method_names(self.methods)
        check_least(self, 1, "batch_sizes", "prompt_length", "runs", "passage_words")
        check_least(self, LEAST_SYMBOLS, "new_length")
        for draft in self.drafts:
            if draft != "auto" and not (draft.isdecimal() and int(draft)):
                raise ValueError(f'drafts must be "auto" or whole numbers >= 1, got {draft!r}')
        if self.level == "byte" and self.drafts:
            raise ValueError("level byte takes no drafts: bytes are decoded without speculation")
        if self.level == "byte" and self.is_random:
            raise ValueError("level byte needs a pair in folders: random weights know no bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchPretrainConfig:
    """What each lever of a training run is worth: anchored bench pretrain --gpus 8

    Runs `python -m anchored.pretrain` (under torchrun for several GPUs) with a shipped config on
    random tokens, and again with one setting changed at a time; every run reads the same tokens in
    the same steps. Its first steps, in which layers are compiled, do not count.
    """

    config: Path = STAGE_1
    """Config of a first stage; its data, tokenizer and held-out sources are not used."""
    gpus: int = 1
    """Processes, each with a GPU to itself; without a GPU they run on the CPU."""
    steps: int = 12
    skipped_steps: int = 4
    """Of those, the first ones; the others count."""
    rounds: int = 4
    """Local batches of a process in a step, as configured; even, as one lever doubles the batch."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    levers: tuple[str, ...] = ()
    """Only these; empty: all of them."""

    def __post_init__(self) -> None:
        check_input(self.config)
        check_least(self, 1, "gpus")
        check_least(self, LEAST_VOCAB, "vocab_size")
        if not 0 <= self.skipped_steps < self.steps:
            raise ValueError(
                f"skipped_steps must be less than steps, got {self.skipped_steps} of {self.steps}"
            )
        if self.rounds < 2 or self.rounds % 2:
            raise ValueError(f"rounds must be even, got {self.rounds}")
