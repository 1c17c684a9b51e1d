"""Options of the commands that train a model, or prepare it; torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from anchored.pretrain.tokens.documents import (
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_INVALID_DOCUMENTS,
    DEFAULT_SHARD_TOKENS,
)

from ..files import check_input

CONFIGS = Path(__file__).parents[3] / "configs" / "pretrain"
COMMON_PILE = CONFIGS / "common_pile.toml"
LADDER = CONFIGS / "ladder.toml"
STAGE_1 = CONFIGS / "tinycomma-1.8b-stage1.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartConfig:
    """From text to a trade-off curve on one machine: anchored quickstart --preset default"""

    preset: Literal["default", "bytes", "smoke", "smoke-bytes"] = "default"
    """default: about ten minutes on two cores. bytes: models with two tokenizers. smoke,
    smoke-bytes: the same paths in minutes, show nothing."""
    output: Path = Path("runs/quickstart")
    """Folder of everything that is made; a run that was interrupted goes on from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeConfig:
    """Text to shards: anchored tokenize --input TEXTS --tokenizer T --output SHARDS --source NAME

    A source of the Common Pile, streamed from the Hub: anchored tokenize --source wikimedia
    --mixture configs/pretrain/common_pile.toml --tokenizer T --output data/common_pile/wikimedia

    Run again after an interruption it goes on where it was, and the shards come out the same. Under
    torchrun (torchrun ... -m anchored.tools.cli tokenize ...), or as a Slurm array
    (configs/pretrain/slurm/tokenize.sh), each process takes its share of the input files.
    """

    tokenizer: str
    """tokenizer.json, its folder, or a Hub model as OWNER/NAME@REVISION."""
    source: str = ""
    """Name of the source, recorded in the manifest."""
    output: Path | None = None
    """New folder of token shards; held-out documents go to heldout/ in it."""
    sample: int = 0
    """Write nothing: report what would be kept and refused of so many documents of --source, or of
    each source of the mixture (--input then holds a folder for each, in place of the Hub)."""
    input: tuple[Path, ...] = ()
    """Local files or folders: .jsonl (also .gz, .zst), .parquet."""
    dataset: str = ""
    """Hub dataset to stream instead of local files."""
    revision: str = ""
    """Commit of the dataset; for local files, what to call this version of them."""
    mixture: Path | None = None
    """TOML that gives dataset, revision and licences of --source."""
    licences: tuple[str, ...] = ()
    """Allow-list, shell patterns; empty takes the mixture's, without a mixture all are allowed."""
    licence: str = ""
    """The licence of every document, where records do not state it."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    licence_field: str = "metadata.license"
    """Field that holds the licence, or a list of them."""
    licence_separator: str = ""
    """Between several licences in one text, all of which must be allowed; as "," for SPDX ids."""
    licence_if_none: str = ""
    """What documents that state no licence are counted under; empty: they have none."""
    max_tokens: int | None = None
    """Tokens that are enough, taken from all input files; 0: all. Not given: all, but of a source
    of a mixture what its stages read, and a tenth more."""
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    """Longer documents are left out and counted."""
    max_invalid_documents: int = DEFAULT_MAX_INVALID_DOCUMENTS
    """Records that are left out and counted for having no text that can be read; more of them end
    the source, which goes on when this is raised. The rest of a damaged file counts as one."""
    leave_out: Path | None = None
    """Report of `anchored decontaminate` on the same input: what it left out is not written."""
    heldout_fraction: float = 0.001
    """Share of documents, chosen by their hash, that is kept from training."""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    """Tokens a shard holds at most; 4 bytes each."""
    workers: int = 0
    """Processes on this machine; 0: one a core."""

    def __post_init__(self) -> None:
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0 (write shards), got {self.sample}")
        if not self.sample and not (self.source and self.output):
            raise ValueError("--source and --output are needed, but for --sample")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0 (all), got {self.max_tokens}")
        if self.shard_tokens < 1:
            raise ValueError(f"shard_tokens must be at least 1, got {self.shard_tokens}")
        if self.workers < 0:
            raise ValueError(f"workers must be at least 0 (0: one a core), got {self.workers}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateConfig:
    """Texts in training data: anchored decontaminate --source NAME --input TEXTS --against FILE...
    --output FOLDER

    Looks in every document for 13 words or 64 letters in a row of the texts of --against,
    whatever their case, spaces and punctuation, and writes FOLDER/NAME.jsonl, which
    `anchored tokenize --leave-out` takes. Run again after an interruption it goes on with the next
    input file; under torchrun or as a Slurm array each process takes its share of the files.
    """

    against: tuple[Path, ...]
    """Works, prompts, benchmarks: JSON lines, JSON or Parquet (every string in them counts), plain
    text, or folders of these."""
    output: Path
    """Folder of the reports; all sources share the hashes in it, 14 to 16 bytes a passage."""
    source: str = ""
    """Name of the source; not given: every source of the mixture."""
    input: tuple[Path, ...] = ()
    """Local files or folders: .jsonl (also .gz, .zst), .parquet; without --source a folder that
    holds one a source."""
    dataset: str = ""
    """Hub dataset to stream instead of local files."""
    revision: str = ""
    """As for tokenize."""
    mixture: Path | None = None
    """TOML that gives dataset and revision of its sources."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    least_chars: int = 0
    """Characters that a document must share to be left out; others are reported and kept."""
    workers: int = 0
    """Processes on this machine; 0: one a core."""

    def __post_init__(self) -> None:
        check_input(self.mixture)
        if not self.source and self.mixture is None:
            raise ValueError("--source is needed, or a --mixture of several")
        if self.least_chars < 0:
            raise ValueError(f"least_chars must be at least 0 (all), got {self.least_chars}")
        if self.workers < 0:
            raise ValueError(f"workers must be at least 0 (0: one a core), got {self.workers}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """What training will read: anchored plan [--config FILE.toml] [--step N --stage NAME]

    Without --step: tokens and epochs of every source and stage, steps, days, disk and memory. With
    --step: one JSON object for every piece of a document that this step reads, with its source,
    licence and position.
    """

    config: tuple[Path, ...] = (COMMON_PILE,)
    """One mixture, or the config of each stage's run, in their order."""
    shards: str = ""
    """Folder with one folder of shards a source, instead of the mixture's."""
    gpus: int = 0
    """GPUs to estimate the time for; 0 takes the mixture's."""
    mfu: float = 0.0
    """Share of the GPUs' peak to estimate the time for; 0 takes the mixture's."""
    max_epochs: float = 0.0
    """Refuse to read a source more often; 0 takes the mixture's, or the least of the runs'."""
    step: int = 0
    """List what this step reads (from 1, as in the training log); 0 prints the plan."""
    stage: str = ""
    """Stage of --step, where the config has several."""
    output: Path | None = None
    """File to save the plan to, as JSON."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        if not self.max_epochs >= 0:  # NaN too
            raise ValueError(f"max_epochs must be >= 0, got {self.max_epochs}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderConfig:
    """Small models below a run: anchored ladder [FILE]

    Writes the config of every model and learning rate of the file, for `anchored train`, and says
    which are trained. Of those that are, it fits a power law of loss by size and predicts the loss
    of the run, with an interval: in the ladder's folder ladder.json and ladder.png.
    """

    ladder: Annotated[Path, Positional] = LADDER
    """File of sizes and learning rates."""
    confidence: float = 0.9
    """Of the interval."""

    def __post_init__(self) -> None:
        check_input(self.ladder)
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be in (0, 1), got {self.confidence}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceConfig:
    """Whether a document was read: anchored provenance --config RUN.toml --document SOURCE:FILE:N

    Says under which licence, in which steps, how often, and prints one JSON object for every part
    of it that a step read, by inverting the data plan. With --text FILE --tokenizer T it does so
    for every document that holds some of a text.
    """

    config: Path
    """Config of a run, or a mixture."""
    document: str = ""
    """SOURCE:INPUT_FILE:RECORD, its line or row from 0, as reports and `anchored plan --step`
    name it."""
    text: Path | None = None
    """A file of about 300 letters or more: every document that holds some of it. The first time,
    an index is made beside the shards, of 0.75 bytes a letter."""
    tokenizer: str = ""
    """For --text, that of the shards: tokenizer.json, its folder, or a Hub model."""
    stage: str = ""
    """Stage of a mixture, where it has several."""
    steps: int = 0
    """As if the run had ended after this step; 0: the config's last."""

    def __post_init__(self) -> None:
        check_input(self.config)
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0 (all), got {self.steps}")
        if bool(self.document) == bool(self.text):
            raise ValueError("give one of --document and --text")
        if self.text is not None and not self.tokenizer:
            raise ValueError("--text needs the --tokenizer of the shards")
        if self.text is None:
            _ = self.place
        else:
            check_input(self.text)

    @property
    def place(self) -> tuple[str, str, int]:
        """Source, input file and record."""
        source, _, rest = self.document.partition(":")
        input_file, colon, record = rest.rpartition(":")
        if not (source and colon and record.isdecimal()):
            raise ValueError(f"document must be SOURCE:INPUT_FILE:RECORD, got {self.document!r}")
        return source, input_file, int(record)


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunConfig:
    """A run without its machine: anchored dry-run --config configs/pretrain/FILE.toml

    Of a training run: builds the model without memory for its weights (on torch's meta device),
    shards it with FSDP2 over fake processes as training would, and prints what a GPU holds and how
    long the steps take. Needs no GPU and no data, and measures nothing.

    Of an evaluation (configs/eval/FILE.toml): checks every file, rule and model that it names, and
    prints how many generations it makes, what memory they take and how long.
    """

    config: Path = STAGE_1
    """Config of a training run, a sweep or a set of benchmarks."""
    gpus: int = 8
    peak_flops: float = 989e12
    """Of one GPU in bfloat16, dense, FLOP/s; H200: its data sheet."""
    mfu: float = 0.5
    """Share of the peak that training, or of the bandwidth that decoding, is assumed to reach."""
    gpu_gigabytes: float = 141.0
    """Memory of one GPU, 1e9 bytes, for evaluations; H200: its data sheet."""
    bandwidth: float = 4.8e12
    """Bytes/s of that memory; H200: its data sheet."""
    inputs: Path | None = None
    """Folder of the files that a sweep names, in place of the one it says."""

    def __post_init__(self) -> None:
        check_input(self.config)
        for name in ("gpus", "peak_flops", "mfu", "gpu_gigabytes", "bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyShardsConfig:
    """Shards against their checksums: anchored verify-shards --config configs/pretrain/FILE.toml

    Leaves a stamp in every folder, with which a run starts at once; what has not changed since its
    stamp is not read again.
    """

    folders: Annotated[tuple[Path, ...], Positional] = ()
    """Folders of token shards."""
    config: Path | None = None
    """A run's config or a mixture: all of its sources."""
    again: bool = False
    """Read also what has a stamp."""

    def __post_init__(self) -> None:
        check_input(self.config)
        for folder in self.folders:
            check_input(folder, "folder")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """A training run: anchored train configs/pretrain/FILE.toml --processes 8 --restart

    With --restart, a run that crashes or is killed is started again from its last checkpoint, after
    pauses that double, until it crashes too often without a new one. SIGTERM and Ctrl-C let it end
    its step and save.
    """

    config: Annotated[Path, Positional]
    """Config of a training run."""
    processes: int = 1
    """On this machine; one a GPU."""
    restart: bool = False
    """Start again what crashes."""
    max_crashes: int = 3
    """Give up after so many crashes without a new checkpoint between them."""
    shutdown_seconds: float = 600.0
    """After a signal, processes are killed that have not ended by then: longer than a step and a
    save."""
    launcher: str = ""
    """Command that starts all processes in place of this one, such as srun on several nodes; the
    command of a process is added to it."""
    set: tuple[str, ...] = ()
    """Settings in place of the config's, as SECTION.KEY=VALUE."""

    def __post_init__(self) -> None:
        check_input(self.config)
        _ = _assignments(self.set)
        for name in ("processes", "max_crashes", "shutdown_seconds"):
            if not getattr(self, name) > 0:  # NaN too
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackConfig:
    """A run back to an earlier step: anchored rollback RUN --step N [--set optimizer.lr=1.5e-3]

    The run keeps its weights, moments and step numbers as they were after that step. Later
    checkpoints are moved into a folder of their own, and every later start follows.
    """

    run: Annotated[Path, Positional]
    """Dump folder of the run."""
    step: int
    """Of a checkpoint."""
    skip_steps: int = 0
    """Leave out the data of so many steps, those behind a spike for example."""
    set: tuple[str, ...] = ()
    """Settings from there on, as SECTION.KEY=VALUE: of optimizer, lr_scheduler, spike_guard, or
    training.max_norm."""

    def __post_init__(self) -> None:
        check_input(self.run, "folder")
        _ = self.settings

    @property
    def settings(self) -> dict[str, str]:
        """What `set` says, by name."""
        return _assignments(self.set)


def _assignments(words: tuple[str, ...]) -> dict[str, str]:
    pairs = {name: value for name, _, value in (word.partition("=") for word in words)}
    if wrong := [word for word in words if "=" not in word]:
        raise ValueError(f"set must be SECTION.KEY=VALUE, got {wrong[0]!r}")
    return pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Export a checkpoint: anchored export --checkpoint STEP --tokenizer T --output MODEL"""

    checkpoint: Path
    """Step folder of a run, such as runs/tinycomma/checkpoint/step-3219."""
    tokenizer: Path
    """Folder with the tokenizer.json that the run's data was tokenised by."""
    output: Path
    """Folder to write; it must not exist."""
    max_position_embeddings: int = 0
    """Longest context that the model declares; 0 takes the length it was trained at."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the stored weights."""
    average_last: int = 1
    """Average the weights of so many checkpoints: this one and the whole ones before it."""

    def __post_init__(self) -> None:
        for folder in (self.checkpoint, self.tokenizer):
            check_input(folder, "folder")
