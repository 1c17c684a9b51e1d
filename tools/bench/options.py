"""Options of the benchmarks; torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from anchored.decode.pair_options import Dtype, check_device_name
from anchored.fields import check_least, checked_nats
from anchored.inputs import check_input
from anchored.tools.commands.option_types import TrainingFile
from anchored.tools.commands.training.pretrain import STAGE_1

Shape = Literal["tinycomma-1.8b", "llama-8b", "llama-70b", "wide", "medium", "small", "tiny"]
"""Sizes of models with random weights, in `inputs.SHAPES`."""
LLAMA_3_VOCAB_SIZE = 128_256
LEAST_VOCAB = 3
"""Tokens of random weights: those that begin and end a text, and a word."""
LEAST_BYTE_VOCAB = 258
"""Tokens of random weights at level byte: those that begin and end a text, and the bytes."""
METHODS = (
    *("safe_only", "risky_only", "system", "memfree", "rcad", "cp_fuse", "token_swap"),
    *("anchored", "anchored_debt", "anchored_inf", "pathwise"),
    *("no_opt", "cold_start", "global_switch"),
)
"""Ways to decode that benchmarks know; "anchored_debt" is the one with prefix debt."""


def method_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """The methods named, words with commas taken apart; ValueError for an unknown one."""
    names = [name for word in words for name in word.split(",") if name]
    for name in names:
        if name not in (*METHODS, "all"):
            raise ValueError(f"methods must be all or of {', '.join(METHODS)}, got {name!r}")
    return tuple(name for name in METHODS if "all" in names or name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchKernelConfig:
    """Time one projection and draw next to the paper's algorithm: anchored bench kernel --threads 1

    Prints a row for every batch size: milliseconds of both, and their errors in nats.
    """

    batch_sizes: tuple[int, ...] = (1, 4, 16)
    """Rows of logits in a call."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    """Tokens of the vocabulary; Llama 3's unless given."""
    threads: int = 1
    """Threads of torch."""

    def __post_init__(self) -> None:
        check_least(self, 1, "batch_sizes", "vocab_size", "threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchDecodeConfig:
    """Time methods next to the risky model alone in transformers: anchored bench decode

    The pair has random weights unless --safe FOLDER --risky FOLDER name one, which then goes on
    from the quickstart's works. Prints the speeds and costs of the paper's tables of efficiency.
    """

    safe: str = "tiny"
    """Shape of a safe model with random weights, or the folder of a model."""
    risky: str = "small"
    """Shape of a risky model with random weights, or the folder of a model."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    """Tokens of a pair with random weights; Llama 3's unless given."""
    device: str = "cpu"
    """Device of both models: cpu, cuda, cuda:0 and so on."""
    dtype: Dtype = "auto"
    """Numbers of the models; auto takes them as stored, and float32 for random weights."""
    clock: Literal["wall", "cpu"] = "wall"
    """Clock of all times; cpu counts the seconds that this process computes, for a CPU that other
    programs use too."""
    level: Literal["token", "byte"] = "token"
    """The unit of the lengths below; a pair with random weights has two tokenizers for bytes."""
    batch_sizes: tuple[int, ...] = (1, 4, 16)
    """Requests that are decoded together; each size has its rows."""
    methods: tuple[str, ...] = ("safe_only", "anchored", "anchored_inf")
    """Methods to time, by spaces or commas, or all; the risky model alone comes first anyway."""
    drafts: tuple[int, ...] = ()
    """Rows of anchored that speculate, by the number of tokens drafted; tokens only."""
    prompt_length: int = 64
    """Tokens or bytes of every prompt."""
    new_length: int = 64
    """Tokens or bytes that every request of a timed run generates."""
    passage_words: int = 100
    """Words of a text that MemFree blocks and RCAD reads before each prompt."""
    k: float = 0.1
    """Nats a token or byte, without prefix debt. The default binds at every step of the default
    pair; with 1.5 every step is the risky model's distribution."""
    runs: int = 3
    """Timed runs, in each of which the methods take turns."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        least = LEAST_BYTE_VOCAB if self.level == "byte" and self.is_random else LEAST_VOCAB
        check_least(self, least, "vocab_size")
        check_least(self, 1, "batch_sizes", "drafts", "prompt_length", "runs", "passage_words")
        check_least(self, 2, "new_length")  # a speed is that of the symbols after the first
        method_names(self.methods)
        checked_nats("k", self.k)
        if self.clock == "cpu" and self.device != "cpu":
            raise ValueError(f"clock cpu does not see {self.device}")
        if not self.is_random and not all(Path(name).is_dir() for name in (self.safe, self.risky)):
            raise ValueError(
                f"safe and risky must both be of {', '.join(get_args(Shape))}, or both be folders "
                f"of models, got {self.safe} and {self.risky}"
            )
        if self.level == "byte" and self.drafts:
            raise ValueError("level byte takes no drafts: bytes are decoded without speculation")

    @property
    def is_random(self) -> bool:
        """Whether the weights are random."""
        return {self.safe, self.risky} <= set(get_args(Shape))


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchPretrainConfig:
    """Time a training run, and what each lever of it is worth: anchored bench pretrain --gpus 8

    Runs `python -m anchored.pretrain` (under torchrun for several GPUs) with a shipped config on
    random tokens, and again with one setting changed at a time; every run reads the same tokens in
    the same steps. Its first steps, in which layers are compiled, do not count.
    """

    config: TrainingFile = STAGE_1
    """Config of a first stage (--list names the package's); its data, tokenizer and held-out
    sources are not used."""
    gpus: int = 1
    """Processes, each with a GPU to itself; without a GPU they run on the CPU."""
    steps: int = 12
    """Steps of every run."""
    skipped_steps: int = 4
    """First steps of every run, which do not count."""
    rounds: int = 4
    """Local batches of a process in a step, as configured; even, as one lever doubles the batch."""
    vocab_size: int = LLAMA_3_VOCAB_SIZE
    """Tokens of the vocabulary; Llama 3's unless given."""
    levers: tuple[str, ...] = ()
    """Levers to measure; all of them unless given."""

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
