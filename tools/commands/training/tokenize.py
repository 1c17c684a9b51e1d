"""Text to token shards."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from anchored import text_tables
from anchored.fields import check_least
from anchored.inputs import check_input
from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.tokens.decontamination import Report
from anchored.pretrain.tokens.documents import (
    DEFAULT_MAX_DOCUMENT_BYTES,
    DEFAULT_MAX_INVALID_DOCUMENTS,
    DEFAULT_SHARD_TOKENS,
    DocumentRules,
    RecordFields,
    Verdict,
    input_documents,
)
from anchored.pretrain.tokens.input_files import SourceFiles, hub_files, local_files
from anchored.pretrain.tokens.job import TokenizeJob
from anchored.pretrain.tokens.shards import MANIFEST_NAME, Manifest
from anchored.pretrain.tokens.tokenizer import DocumentEncoder, tokenizer_file
from anchored.pretrain.tokens.workers import do_files
from anchored.pretrain.tokens.writer import HELDOUT_FOLDER, DocumentTally

from ..option_types import TrainingFile

STILL_AT_WORK = "other processes are still at work; run this again where they were stopped"
NO_TEXTS = "give one of --input, --dataset, or --mixture that has the source"
_NUM_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """The texts of a source."""

    source: str = ""
    """Name of the source, recorded in the manifest; where only reports are written, every source of
    the mixture unless given."""
    input: tuple[Path, ...] = ()
    """Local files or folders of .jsonl, .ndjson or .json (also .gz and .zst), or .parquet; without
    --source, a folder that holds one folder a source."""
    dataset: str = ""
    """Hub dataset to stream in place of local files."""
    revision: str = ""
    """Commit of the dataset; for local files, what to call this version of them."""
    mixture: TrainingFile | None = None
    """Config that gives the dataset, revision and licenses of its sources."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    workers: int = 0
    """Processes on this machine; 0 starts one a core."""

    def __post_init__(self) -> None:
        if not self.source and self.mixture is None:
            raise ValueError("--source is needed, or a --mixture of several")
        if (self.input and self.dataset) or not (self.input or self.dataset or self.mixture):
            raise ValueError(NO_TEXTS)
        check_least(self, 0, "workers")
        check_input(self.mixture)


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
    begin_token: str = ""
    """Special token before every document, or "none"; unless given, the one that the tokenizer puts
    before a text, if it does."""
    end_token: str = ""
    """Special token after every document; unless given, eos_token of the tokenizer_config.json that
    is next to the tokenizer."""
    output: Path | None = None
    """New folder of token shards; held-out documents go to the folder heldout in it."""
    sample: int = 0
    """Documents of each source to report what would be kept and refused of, while nothing is
    written; 0 writes the shards."""
    licenses: tuple[str, ...] = ()
    """Licenses that are allowed, as shell patterns; those of the mixture unless given, and all
    without a mixture."""
    license: str = ""
    """License of every document, where records do not state it."""
    license_field: str = "metadata.license"
    """Field that holds the license, or a list of them."""
    license_separator: str = ""
    """Text between several licenses in one field, all of which must be allowed, as "," for SPDX
    ids; a field is one license unless given."""
    license_if_none: str = ""
    """License of documents that have none; they are without one unless given."""
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
        _ = self.rules  # ValueError for values out of range

    @property
    def rules(self) -> DocumentRules:
        """The rules for which documents are kept."""
        return DocumentRules(
            licenses=self.licenses,
            max_document_bytes=self.max_document_bytes,
            heldout_fraction=self.heldout_fraction,
        )

    @property
    def fields(self) -> RecordFields:
        """The fields of a record that are read."""
        return RecordFields(
            text=self.text_field,
            license=self.license_field,
            fixed_license=self.license,
            license_separator=self.license_separator,
            license_if_none=self.license_if_none,
        )

    @property
    def encoder(self) -> DocumentEncoder:
        """The encoder of documents, with the tokens around them."""
        file = tokenizer_file(self.tokenizer)
        return DocumentEncoder(file, begin_token=self.begin_token, end_token=self.end_token)


Config = TypeVar("Config", bound=SourceConfig)


def run(config: TokenizeConfig) -> int:
    """Tokenize the files that no other process is at work on; the last one completes the folder."""
    if config.sample:
        return run_sample(config)
    # Before the folder is begun, which then belongs to this tokenizer.
    encoder = config.encoder
    job = _job(config, encoder)
    job.start()
    if not job.is_complete:
        print(do_files(job, num_workers=config.workers, unit="tokens"))
        if not job.finish(encoder):
            print(f"{config.source}: {STILL_AT_WORK}")
            return 0
    print(_report(job.output, encoder))
    return 0


def _report(folder: Path, encoder: DocumentEncoder) -> str:
    """List what a folder of shards holds and what was left out."""
    manifest = Manifest.read(folder)
    left_out = {
        "empty": manifest.num_empty_documents,
        **manifest.invalid_documents,
        f"longer than {manifest.max_document_bytes:,} bytes": manifest.num_oversized_documents,
        "license not allowed": sum(manifest.refused_licenses.values()),
        "by decontamination": manifest.num_contaminated_documents,
    }
    lines = [f"{manifest.source}: {_size(manifest)} in {folder}"]
    lines += [f"  {manifest.num_bytes / manifest.num_tokens:.2f} bytes a token"]
    lines += [f"  {_around(encoder)}"]
    if (folder / HELDOUT_FOLDER / MANIFEST_NAME).is_file():
        heldout = Manifest.read(folder / HELDOUT_FOLDER)
        lines.append(f"  held out: {_size(heldout)}")
    lines += [f"  left out, {reason}: {count:,}" for reason, count in left_out.items() if count]
    lines += [f"  license {name}: {count:,}" for name, count in manifest.licenses.items()]
    lines += [f"  refused {name}: {count:,}" for name, count in manifest.refused_licenses.items()]
    return "\n".join(lines)


def _size(manifest: Manifest) -> str:
    return (
        f"{manifest.num_documents:,} documents, {manifest.num_bytes / 1e6:,.1f} MB, "
        f"{manifest.num_tokens:,} tokens"
    )


def _around(encoder: DocumentEncoder) -> str:
    begin = f"begin with {encoder.begin_token} and " if encoder.bos_id is not None else ""
    return f"documents {begin}end with {encoder.end_token}"


def _job(config: TokenizeConfig, encoder: DocumentEncoder) -> TokenizeJob:
    config = with_mixture(config)
    assert config.output is not None
    inputs, fields, rules = input_files(config, config.output), config.fields, config.rules
    check_input(config.leave_out)
    decontamination = {}
    if config.leave_out is not None:
        report = Report.read(config.leave_out)
        report.check(inputs, fields)
        rules, decontamination = replace(rules, left_out=report.left_out), report.summary()
    return TokenizeJob(
        source=config.source,
        output=config.output,
        inputs=inputs,
        tokenizer_file=encoder.file,
        begin_token=encoder.begin_token,
        end_token=encoder.end_token,
        fields=fields,
        rules=rules,
        decontamination=decontamination,
        max_tokens=config.max_tokens or 0,
        max_tokens_per_shard=config.shard_tokens,
        max_invalid_documents=config.max_invalid_documents,
    )


def with_mixture(config: Config) -> Config:
    """The config, with what the mixture says where it says nothing itself."""
    if config.mixture is None:
        return config
    mixture = load_mixture(config.mixture)
    source = mixture.source(config.source)
    if not config.input:
        config = replace(
            config,
            dataset=config.dataset or source.dataset,
            revision=config.revision or source.revision,
        )
    if not isinstance(config, TokenizeConfig):
        return config
    separator = "," if source.license_form == "spdx" else ""
    most = config.max_tokens
    return replace(
        config,
        licenses=config.licenses or mixture.allowed_licenses(source),
        license_separator=config.license_separator or separator,
        license_if_none=config.license_if_none or source.license_if_none,
        max_tokens=stages.needed_tokens(mixture, source.name) if most is None else most,
    )


def each_source(config: Config) -> list[Config]:
    """The config of --source, or of every source of the mixture, with a folder of local texts."""
    if config.source or config.mixture is None:
        return [config]
    names = [source.name for source in load_mixture(config.mixture).sources]
    return [
        replace(config, source=name, input=tuple(folder / name for folder in config.input))
        for name in names
    ]


def input_files(config: SourceConfig, output: Path | None) -> SourceFiles:
    """The input files of a source; none of them may lie in the output."""
    if bool(config.input) == bool(config.dataset):
        raise ValueError(NO_TEXTS)
    if config.dataset:
        return hub_files(config.dataset, revision=config.revision)
    for folder in config.input:
        if output and folder.resolve() in output.resolve().parents:
            raise ValueError(f"output {output} must not lie in the input folder {folder}")
    return local_files(config.input, revision=config.revision or "local")


def run_sample(config: TokenizeConfig) -> int:
    """Print what becomes of a few documents of each source; 1 if one gives nothing to keep."""
    encoder = config.encoder
    rows, notes = [], []
    for part in each_source(config):
        name = part.source
        try:
            tally, num_tokens = _sampled(with_mixture(part), encoder)
        except ValueError as error:
            if config.source:
                raise
            rows.append([name, "cannot be read", *[""] * 5])
            notes.append(f"{name}: {error}")
            continue
        rows.append(_sample_row(name, tally, num_tokens))
        notes += _sample_notes(name, tally)
    head = ("source", "documents", "kept", "refused", "empty", "invalid", "tokens each")
    print("\n".join([text_tables.aligned(head, rows), "", _around(encoder), *notes]))
    return 1 if any(row[2] in ("", "0.0%") for row in rows) else 0


def _sampled(config: TokenizeConfig, encoder: DocumentEncoder) -> tuple[DocumentTally, int]:
    """A tally over documents of the first, middle and last file, and the tokens that are kept."""
    files, fields, rules = input_files(config, None).files, config.fields, config.rules
    chosen = sorted({0, len(files) // 2, len(files) - 1})
    tally, num_tokens, most = DocumentTally(), 0, rules.max_document_bytes
    for index in chosen:
        documents = input_documents(files[index], fields, max_document_bytes=most)
        some = islice(documents, -(-config.sample // len(chosen)))
        for encoded in encoder.encode(some, rules):
            tally.add(encoded.document, encoded.verdict)
            num_tokens += encoded.size[1]
    return tally, num_tokens


def _sample_row(name: str, tally: DocumentTally, num_tokens: int) -> list[str]:
    total = max(1, tally.verdicts.total())
    num_kept = sum(tally.verdicts[one] for one in Verdict if one.is_kept)
    kinds = (Verdict.REFUSED, Verdict.EMPTY, Verdict.INVALID)
    return [
        name,
        f"{tally.verdicts.total():,}",
        f"{num_kept / total:.1%}",
        *(f"{tally.verdicts[kind] / total:.1%}" for kind in kinds),
        f"{num_tokens / num_kept:,.0f}" if num_kept else "",
    ]


def _sample_notes(name: str, tally: DocumentTally) -> list[str]:
    """The commonest licenses that are refused and kept, and what cannot be read, in lines."""
    counts = [
        (f"{word} {license}", count)
        for word, verdict in (("refused", Verdict.REFUSED), ("kept", Verdict.TRAIN))
        for license, count in list(tally.histogram(verdict).items())[:_NUM_NAMED]
    ]
    return [f"{name}: {what}: {count:,}" for what, count in (*counts, *tally.problems.items())]
