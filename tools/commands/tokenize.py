"""Text to token shards."""

import os
from pathlib import Path

from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.tokens import workers
from anchored.pretrain.tokens.documents import DocumentRules, RecordFields
from anchored.pretrain.tokens.encoder import DocumentEncoder, tokenizer_file
from anchored.pretrain.tokens.input_files import SourceFiles, hub_files, local_files
from anchored.pretrain.tokens.job import TokenizeJob
from anchored.pretrain.tokens.manifest import MANIFEST_NAME, Manifest
from anchored.pretrain.tokens.segments import HELDOUT_FOLDER

from .training_options import TokenizeConfig


def run(config: TokenizeConfig) -> int:
    """Tokenise this process's share of the files; the last process completes the folder."""
    job = _job(config)
    share = workers.FileShare.of(os.environ)
    # Before the folder is begun, which then belongs to this tokenizer.
    encoder = None if job.is_complete else DocumentEncoder(job.tokenizer_file)
    job.start()
    if encoder is not None:
        _tokenize_share(job, encoder, share, config.workers)
        if not job.finish(encoder):
            print(f"{config.source}: other processes are still at work on {job.partial}")
            return 0
    print(report(config.output))
    return 0


def report(folder: Path) -> str:
    """What a folder of shards holds and what was left out, in lines."""
    manifest = Manifest.read(folder)
    left_out = {
        "empty": manifest.num_empty_documents,
        **manifest.invalid_documents,
        f"longer than {manifest.max_document_bytes:,} bytes": manifest.num_oversized_documents,
        "licence not allowed": sum(manifest.refused_licences.values()),
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


def _tokenize_share(
    job: TokenizeJob, encoder: DocumentEncoder, share: workers.FileShare, requested_workers: int
) -> None:
    indices = range(share.index, len(job.inputs.files), share.count)
    num_cores = max(1, len(os.sched_getaffinity(0)) // share.num_local)
    counts = workers.WorkerCounts.of(
        num_cores=num_cores, num_files=len(indices), requested=requested_workers
    )
    throughput = workers.Throughput(job.source, num_files=len(indices))
    try:
        if counts.num_workers == 1:
            workers.tokenize_here(job, encoder, indices, throughput)
        else:
            workers.tokenize_in_processes(job, indices, counts, throughput)
    finally:
        rate = throughput.close()
    print(
        f"{job.source}: process {share.index} of {share.count} with {counts.num_workers} "
        f"workers: {len(indices)} of {len(job.inputs.files)} files, {rate}"
    )


def _job(config: TokenizeConfig) -> TokenizeJob:
    dataset, revision, licences = config.dataset, config.revision, config.licences
    if config.mixture is not None:
        mixture = load_mixture(config.mixture)
        source = mixture.source(config.source)
        licences = licences or mixture.licences
        if not (dataset or config.input):
            dataset, revision = source.dataset, revision or source.revision
    rules = DocumentRules(
        licences=licences,
        max_document_bytes=config.max_document_bytes,
        heldout_fraction=config.heldout_fraction,
    )
    fields = RecordFields(
        text=config.text_field, licence=config.licence_field, fixed_licence=config.licence
    )
    return TokenizeJob(
        source=config.source,
        output=config.output,
        inputs=_inputs(config, dataset, revision),
        tokenizer_file=tokenizer_file(config.tokenizer),
        fields=fields,
        rules=rules,
        max_tokens_per_shard=config.shard_tokens,
        max_invalid_documents=config.max_invalid_documents,
    )


def _inputs(config: TokenizeConfig, dataset: str, revision: str) -> SourceFiles:
    if bool(config.input) == bool(dataset):
        raise ValueError("give one of --input, --dataset, or --mixture that has the source")
    if dataset:
        return hub_files(dataset, revision=revision)
    for folder in config.input:
        if folder.resolve() in config.output.resolve().parents:
            raise ValueError(f"output {config.output} must not lie in the input folder {folder}")
    return local_files(config.input, revision=revision or "local")
