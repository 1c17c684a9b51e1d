"""Whether, when and how often a run reads a document."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.plan.provenance import (
    Reading,
    StreamDocument,
    document_of_shard,
    find_document,
    readings,
)
from anchored.pretrain.plan.stages import StageSpec, missing_sources
from anchored.pretrain.tokens.encoder import tokenizer_file
from anchored.pretrain.tokens.manifest import MANIFEST_NAME
from anchored.pretrain.tokens.segments import HELDOUT_FOLDER
from anchored.pretrain.tokens.shards import TokenShards
from anchored.pretrain.tokens.text_index import TextIndex

from .plan import run_data, stage_of
from .training_options import ProvenanceConfig


def run(config: ProvenanceConfig) -> int:
    """Print the readings of the document as JSON lines, a summary on stderr."""
    spec = _spec(config)
    num_steps = config.steps or spec.num_steps
    if num_steps > spec.num_steps:
        raise ValueError(f"--steps must be in [1, {spec.num_steps}], got {num_steps}")
    if missing := missing_sources(spec.data):
        raise ValueError(f"the token shards of every source are needed; missing: {missing[0]}")
    plan = DataPlan.open(spec.data, seq_len=spec.seq_len, verify=False)
    data = run_data(spec, plan)
    documents = _holding(plan, config) if config.text else _named(plan, config)
    for name, document in documents:
        found = readings(plan, document, data, num_steps=num_steps)
        for reading in found:
            row = {"source": document.source, "input_file": document.input_file}
            print(json.dumps(row | {"record": document.record} | asdict(reading)))
        print(_summary(name, document, found, num_steps, plan.seq_len), file=sys.stderr)
    return 0


def _named(plan: DataPlan, config: ProvenanceConfig) -> Iterator[tuple[str, StreamDocument]]:
    source, input_file, record = config.place
    by_name = {
        each.name: shards for each, shards in zip(plan.config.sources, plan.shards, strict=True)
    }
    if source not in by_name:
        raise ValueError(f"the run reads no source {source!r}: {', '.join(by_name)}")
    if document := find_document(source, by_name[source], input_file, record):
        yield config.document, document
    else:
        reason = _absence(by_name[source].folder, source, input_file, record)
        print(f"{config.document}: {reason}", file=sys.stderr)


def _holding(plan: DataPlan, config: ProvenanceConfig) -> Iterator[tuple[str, StreamDocument]]:
    assert config.text is not None
    text, tokenizer = config.text.read_text(encoding="utf-8"), tokenizer_file(config.tokenizer)
    for source, shards in zip(plan.config.sources, plan.shards, strict=True):
        for shard, number, base, share in TextIndex(shards, tokenizer).find(text):
            document = document_of_shard(source.name, shards, shard, number, base)
            place = f"{source.name}:{document.input_file}:{document.record}"
            yield f"{place}, which holds {share:.0%} of the text", document


def _spec(config: ProvenanceConfig) -> StageSpec:
    if not stages.is_mixture(config.config):
        return stages.run_spec(config.config)
    return stage_of(stages.mixture_specs(load_mixture(config.config)), config.stage)


def _absence(folder: Path, source: str, input_file: str, record: int) -> str:
    """Why training never reads a document of a source."""
    heldout = folder / HELDOUT_FOLDER
    if (heldout / MANIFEST_NAME).is_file():
        shards = TokenShards.open(heldout, verify=False)
        if find_document(source, shards, input_file, record):
            return "never read: it is held out"
    return f"never read: the token shards of {source} do not hold it"


def _summary(
    name: str, document: StreamDocument, found: list[Reading], num_steps: int, seq_len: int
) -> str:
    steps = sorted({reading.step for reading in found})
    # The last token of a sequence is a label alone and opens the next one as an input.
    num_inputs = sum(min(one.num_tokens, seq_len - one.position) for one in found)
    times = num_inputs / document.num_tokens
    when = "not read in any"
    if steps:
        when = f"read {times:.2f} times in {len(steps):,} steps, {steps[0]:,} to {steps[-1]:,},"
    return (
        f"{name}: {document.num_tokens:,} tokens under {document.licence}; "
        f"{when} of the first {num_steps:,}"
    )
