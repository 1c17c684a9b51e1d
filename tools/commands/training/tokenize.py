"""Text to token shards."""

import os
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from anchored import text_tables
from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.tokens import workers
from anchored.pretrain.tokens.decontamination import Report
from anchored.pretrain.tokens.documents import (
    DocumentRules,
    RecordFields,
    Verdict,
    input_documents,
)
from anchored.pretrain.tokens.encoder import DocumentEncoder, tokenizer_file
from anchored.pretrain.tokens.input_files import SourceFiles, hub_files, local_files
from anchored.pretrain.tokens.job import TokenizeJob
from anchored.pretrain.tokens.manifest import MANIFEST_NAME, DocumentTally, Manifest
from anchored.pretrain.tokens.segments import HELDOUT_FOLDER

from ..files import check_input
from .training_options import TokenizeConfig

_NUM_NAMED = 3


def run(config: TokenizeConfig) -> int:
    """Tokenise this process's share of the files; the last process completes the folder."""
    if config.sample:
        return run_sample(config)
    job = _job(config)
    share = workers.FileShare.of(os.environ)
    # Before the folder is begun, which then belongs to this tokenizer.
    encoder = None if job.is_complete else DocumentEncoder(job.tokenizer_file)
    job.start()
    if encoder is not None:
        done = workers.do_share(
            job,
            share,
            name=job.source,
            num_files=len(job.inputs.files),
            num_workers=config.workers,
            unit="tokens",
        )
        print(done)
        if not job.finish(encoder):
            print(f"{config.source}: other processes are still at work on {job.partial}")
            return 0
    print(report(job.output))
    return 0


def report(folder: Path) -> str:
    """What a folder of shards holds and what was left out, in lines."""
    manifest = Manifest.read(folder)
    left_out = {
        "empty": manifest.num_empty_documents,
        **manifest.invalid_documents,
        f"longer than {manifest.max_document_bytes:,} bytes": manifest.num_oversized_documents,
        "licence not allowed": sum(manifest.refused_licences.values()),
        "found by decontamination": manifest.num_contaminated_documents,
    }
    lines = [f"{manifest.source}: {_size(manifest)} in {folder}"]
    if (folder / HELDOUT_FOLDER / MANIFEST_NAME).is_file():
        heldout = Manifest.read(folder / HELDOUT_FOLDER)
        lines.append(f"  held out: {_size(heldout)}")
    lines += [f"  left out, {reason}: {count:,}" for reason, count in left_out.items() if count]
    lines += [f"  licence {name}: {count:,}" for name, count in manifest.licences.items()]
    lines += [f"  refused {name}: {count:,}" for name, count in manifest.refused_licences.items()]
    return "\n".join(lines)


def _size(manifest: Manifest) -> str:
    return (
        f"{manifest.num_documents:,} documents, {manifest.num_bytes / 1e6:,.1f} MB, "
        f"{manifest.num_tokens:,} tokens"
    )


@dataclass(frozen=True, slots=True)
class Source:
    """What is read of a source, and by which rules."""

    inputs: SourceFiles
    fields: RecordFields
    rules: DocumentRules
    max_tokens: int


def _job(config: TokenizeConfig) -> TokenizeJob:
    assert config.output is not None
    source = source_of(config)
    check_input(config.leave_out)
    report = None if config.leave_out is None else Report.read(config.leave_out)
    if report is not None:
        report.check(source.inputs, source.fields)
    return TokenizeJob(
        source=config.source,
        output=config.output,
        inputs=source.inputs,
        tokenizer_file=tokenizer_file(config.tokenizer),
        fields=source.fields,
        rules=replace(source.rules, left_out=report.left_out) if report else source.rules,
        decontamination=report.summary() if report else {},
        max_tokens=source.max_tokens,
        max_tokens_per_shard=config.shard_tokens,
        max_invalid_documents=config.max_invalid_documents,
    )


def source_of(config: TokenizeConfig) -> Source:
    """The config, with what the mixture says where it says nothing itself."""
    if config.mixture is not None:
        mixture = load_mixture(config.mixture)
        source = mixture.source(config.source)
        config = replace(
            config,
            licences=config.licences or mixture.allowed_licences(source),
            licence_separator=config.licence_separator
            or ("," if source.licence_form == "spdx" else ""),
            licence_if_none=config.licence_if_none or source.licence_if_none,
            dataset=config.dataset or ("" if config.input else source.dataset),
            revision=config.revision or ("" if config.input else source.revision),
            max_tokens=stages.needed_tokens(mixture, source.name)
            if config.max_tokens is None
            else config.max_tokens,
        )
    rules = DocumentRules(
        licences=config.licences,
        max_document_bytes=config.max_document_bytes,
        heldout_fraction=config.heldout_fraction,
    )
    fields = RecordFields(
        text=config.text_field,
        licence=config.licence_field,
        fixed_licence=config.licence,
        licence_separator=config.licence_separator,
        licence_if_none=config.licence_if_none,
    )
    return Source(_inputs(config), fields, rules, config.max_tokens or 0)


def _inputs(config: TokenizeConfig) -> SourceFiles:
    if bool(config.input) == bool(config.dataset):
        raise ValueError("give one of --input, --dataset, or --mixture that has the source")
    if config.dataset:
        return hub_files(config.dataset, revision=config.revision)
    for folder in config.input:
        if config.output and folder.resolve() in config.output.resolve().parents:
            raise ValueError(f"output {config.output} must not lie in the input folder {folder}")
    return local_files(config.input, revision=config.revision or "local")


def run_sample(config: TokenizeConfig) -> int:
    """Print what becomes of a few documents of each source; 1 if one gives nothing to keep."""
    encoder = DocumentEncoder(tokenizer_file(config.tokenizer))
    names = [config.source] if config.source else []
    if config.mixture is not None and not names:
        names = [source.name for source in load_mixture(config.mixture).sources]
    if not names:
        raise ValueError("--sample needs a --source, or a --mixture of several")
    rows, notes = [], []
    for name in names:
        own = tuple(folder / name for folder in config.input) if not config.source else config.input
        try:
            tally, num_tokens = _sampled(replace(config, source=name, input=own), encoder)
        except ValueError as error:
            if config.source:
                raise
            rows.append([name, "cannot be read", *[""] * 5])
            notes.append(f"{name}: {error}")
            continue
        rows.append(_sample_row(name, tally, num_tokens))
        notes += _sample_notes(name, tally)
    head = ("source", "documents", "kept", "refused", "empty", "invalid", "tokens each")
    print("\n".join([text_tables.aligned(head, rows), "", *notes]))
    return 1 if any(row[2] in ("", "0.0%") for row in rows) else 0


def _sampled(config: TokenizeConfig, encoder: DocumentEncoder) -> tuple[DocumentTally, int]:
    """A tally over documents of the first, middle and last file, and the tokens that are kept."""
    source = source_of(config)
    files = source.inputs.files
    chosen = sorted({0, len(files) // 2, len(files) - 1})
    tally, num_tokens = DocumentTally(), 0
    for index in chosen:
        documents = input_documents(files[index], source.fields)
        some = islice(documents, -(-config.sample // len(chosen)))
        for encoded in encoder.encode(some, source.rules):
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
    """The commonest licences that are refused and kept, and what cannot be read, in lines."""
    notes = []
    for verdict in (Verdict.REFUSED, Verdict.TRAIN):
        common = list(tally.histogram(verdict).items())[:_NUM_NAMED]
        word = "refused" if verdict is Verdict.REFUSED else "kept"
        notes += [f"{name}: {word} {licence}: {count:,}" for licence, count in common]
    return notes + [f"{name}: {problem}: {count:,}" for problem, count in tally.problems.items()]
