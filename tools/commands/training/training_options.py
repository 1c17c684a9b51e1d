"""Options of the commands that train a model, or prepare it; torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.decode.models.folder import model_location
from anchored.inputs import check_input, check_least
from anchored.pretrain.tokens.documents import (
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_INVALID_DOCUMENTS,
    DEFAULT_SHARD_TOKENS,
)

from ..words import ConfigFile

CONFIGS = Path(__file__).parents[3] / "configs" / "pretrain"
COMMON_PILE = CONFIGS / "common_pile.toml"
STAGE_1 = CONFIGS / "tinycomma-1.8b-stage1.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartConfig:
    """Go from a real language model to a trade-off curve on one machine: anchored quickstart

    The safe model is SmolLM2-135M-Instruct as it comes; the risky one is the same model, which has
    learned 16 works and 40 facts by heart. The second part is the other half of the paper: it
    pretrains a safe model here, and pairs it with that risky model byte by byte.
    """

    model: Path | None = None
    """Another small model in its place, a folder or a Hub id; its risky twin is then trained
    here."""
    train: bool = False
    """Train the risky model here, in about ten minutes, in place of the adapter that the package
    has."""
    preset: Literal["default", "smoke"] = "default"
    """Amount of work: default takes about ten minutes on two cores; smoke takes the same path with
    little of everything, and shows nothing."""
    output: Path = Path("runs/quickstart")
    """Folder of everything that is made; a run that was interrupted goes on from it."""

    def __post_init__(self) -> None:
        if self.model is not None:
            model_location(self.model)  # FileNotFoundError for neither a folder nor a Hub id


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """Where the texts of a source are."""

    source: str = ""
    """Name of the source, recorded in the manifest; where only reports are written, every source of
    the mixture unless given."""
    input: tuple[Path, ...] = ()
    """Local files or folders of .jsonl (also .gz and .zst) or .parquet; without --source, a folder
    that holds one folder a source."""
    dataset: str = ""
    """Hub dataset to stream in place of local files."""
    revision: str = ""
    """Commit of the dataset; for local files, what to call this version of them."""
    mixture: ConfigFile | None = None
    """Config that gives the dataset, revision and licences of its sources."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    workers: int = 0
    """Processes on this machine; 0 starts one a core."""

    def __post_init__(self) -> None:
        check_input(self.mixture)
        if not self.source and self.mixture is None:
            raise ValueError("--source is needed, or a --mixture of several")
        check_least(self, 0, "workers")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeConfig(SourceConfig):
    """Turn text into shards: anchored tokenize --input TEXTS --tokenizer T --output S --source NAME

    Run again after an interruption it goes on where it was, and the shards come out the same. Any
    number of these commands, on any machines that see the same folder, share the input files: as a
    Slurm array (configs/pretrain/slurm/tokenize.sh), under torchrun, or started by hand. A source
    of the Common Pile is streamed from the Hub by its mixture.

    anchored tokenize --source wikimedia --mixture common_pile --tokenizer T --output data/wikimedia
    """

    tokenizer: str
    """Tokenizer: a tokenizer.json, its folder, or a Hub model as OWNER/NAME@REVISION."""
    output: Path | None = None
    """New folder of token shards; held-out documents go to the folder heldout in it."""
    sample: int = 0
    """Documents of each source to report what would be kept and refused of, while nothing is
    written; 0 writes the shards."""
    licences: tuple[str, ...] = ()
    """Licences that are allowed, as shell patterns; those of the mixture unless given, and all
    without a mixture."""
    licence: str = ""
    """Licence of every document, where records do not state it."""
    licence_field: str = "metadata.license"
    """Field that holds the licence, or a list of them."""
    licence_separator: str = ""
    """Text between several licences in one field, all of which must be allowed, as "," for SPDX
    ids; a field is one licence unless given."""
    licence_if_none: str = ""
    """Licence of documents that have none; they are without one unless given."""
    max_tokens: int | None = None
    """Tokens of all input files together after which to stop; 0 is no limit. Unless given, a source
    of a mixture stops at 1.1 times what its stages read, and others have no limit."""
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    """Bytes of the longest document that is kept; longer ones are left out and counted."""
    max_invalid_documents: int = DEFAULT_MAX_INVALID_DOCUMENTS
    """Records without a text that can be read, which are left out and counted; more of them end the
    source, which goes on when this is raised. The rest of a damaged file counts as one."""
    leave_out: Path | None = None
    """Report of anchored decontaminate on the same input: what it left out is not written."""
    heldout_fraction: float = 0.001
    """Share of documents, chosen by their hash, that is kept from training."""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    """Most tokens of a shard, of 4 bytes each."""

    def __post_init__(self) -> None:
        SourceConfig.__post_init__(self)  # not super(), which a dataclass with slots has lost
        check_least(self, 0, "sample", "max_tokens", "max_invalid_documents")
        check_least(self, 1, "shard_tokens")
        if not self.sample and not (self.source and self.output):
            raise ValueError("--source and --output are needed, but for --sample")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateConfig(SourceConfig):
    """Search training text: anchored decontaminate --source S --input TEXTS --against F --output D

    Looks in every document for 13 words or 64 letters in a row of the texts of --against, whatever
    their case, spaces and punctuation, and writes D/S.jsonl, which anchored tokenize takes as its
    option --leave-out. Run again after an interruption it goes on with the next input file; any
    number of these commands, on any machines, share the files, as in tokenize.
    """

    against: tuple[Path, ...]
    """Works, prompts and benchmarks to search for: JSON lines, JSON or Parquet (every string in
    them counts), plain text, or folders of these."""
    output: Path
    """Folder of the reports; all sources share the hashes in it, 14 to 16 bytes a passage."""
    least_chars: int = 0
    """Characters that a document must share to be left out; others are reported and kept."""

    def __post_init__(self) -> None:
        SourceConfig.__post_init__(self)
        check_least(self, 0, "least_chars")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """Show what training reads: anchored plan [--config FILE.toml] [--verify]

    Prints the steps, tokens and epochs of every source and stage; anchored dry-run says how long
    they take. With --step it prints one JSON object for every piece of a document that this step
    reads, with its source, licence and position; with --document, one for every piece of that
    document that some step reads.
    """

    config: tuple[ConfigFile, ...] = (COMMON_PILE,)
    """One mixture, or the config of each stage's run, in their order."""
    shards: str = ""
    """Folder with one folder of shards a source, in place of the mixture's."""
    max_epochs: float = 0.0
    """Most times that a source may be read; 0 takes the mixture's limit, or the least of the
    runs'."""
    step: int = 0
    """Step whose documents are listed, from 1 as in the training log; 0 prints the plan."""
    document: str = ""
    """Document whose steps are listed, SOURCE:INPUT_FILE:RECORD as reports and --step name it; the
    record is its line or row from 0."""
    stage: str = ""
    """Stage of --step or --document, where the config has several."""
    verify: bool = False
    """Compare the shards with their checksums, which leaves a stamp in each folder with which a run
    starts at once. What has not changed since its stamp is not read again."""
    output: Path | None = None
    """File for the plan, as JSON."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_epochs")
        if self.document:
            if self.step:
                raise ValueError(f"give step or document, not both: {self.step}, {self.document}")
            document_record(self.document)


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunConfig:
    """Estimate a run without its machine: anchored dry-run --config configs/pretrain/FILE.toml

    Builds the model without memory for its weights (on torch's meta device), shards it with FSDP2
    over fake processes as training would, and prints what a GPU holds and how long the steps take.
    Needs no GPU and no data, and measures nothing.
    """

    config: ConfigFile = STAGE_1
    """Config of a training run."""
    gpus: int = 8
    """GPUs of the run."""
    peak_flops: float = 989e12
    """Dense peak of one GPU in bfloat16, in FLOP/s; that of an H200's data sheet unless given."""
    mfu: float = 0.5
    """Share of the peak that training is assumed to reach."""

    def __post_init__(self) -> None:
        check_input(self.config)
        check_least(self, 1, "gpus", "peak_flops")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu must be in (0, 1], got {self.mfu}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Export a checkpoint: anchored export --checkpoint STEP --tokenizer T --output MODEL

    Writes a Hugging Face folder with the weights, the tokenizer and a model card.
    """

    checkpoint: Path
    """Step folder of a run, such as runs/tinycomma/checkpoint/step-3219."""
    tokenizer: Path
    """Folder with the tokenizer.json that the run's data was tokenized by."""
    output: Path
    """New folder for the model."""
    max_position_embeddings: int = 0
    """Longest context that the model declares; 0 takes the length it was trained at."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the stored weights."""
    average_last: int = 1
    """Checkpoints whose weights are averaged: this one and the whole ones before it."""

    def __post_init__(self) -> None:
        for folder in (self.checkpoint, self.tokenizer):
            check_input(folder, "folder")


def document_record(document: str) -> tuple[str, str, int]:
    """Read SOURCE:INPUT_FILE:RECORD; ValueError where it is not written so."""
    source, _, rest = document.partition(":")
    input_file, colon, number = rest.rpartition(":")
    if not (source and colon and number.isdecimal()):
        raise ValueError(f"document must be SOURCE:INPUT_FILE:RECORD, got {document!r}")
    return source, input_file, int(number)
