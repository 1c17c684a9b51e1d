"""Whether, when and how often a run reads a document."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.plan.provenance import PartRead, StreamDocument, find_document, parts_read
from anchored.pretrain.plan.stages import StageSpec, missing_sources
from anchored.pretrain.tokens.shards import MANIFEST_NAME, TokenShards
from anchored.pretrain.tokens.writer import HELDOUT_FOLDER

from .plan import run_data, stage_of
from .training_options import ProvenanceConfig


def run(config: ProvenanceConfig) -> int:
    """Print what reads the document as JSON lines, a summary on stderr."""
    spec = _spec(config)
    num_steps = config.steps or spec.num_steps
    if num_steps > spec.num_steps:
        raise ValueError(f"--steps must be in [1, {spec.num_steps}], got {num_steps}")
    if missing := missing_sources(spec.data):
        raise ValueError(f"the token shards of every source are needed; missing: {missing[0]}")
    plan = DataPlan.open(spec.data, seq_len=spec.seq_len, verify=False)
    source, input_file, record = config.record
    names = [each.name for each in plan.config.sources]
    if source not in names:
        raise ValueError(f"the run reads no source {source!r}: {', '.join(names)}")
    shards = plan.shards[names.index(source)]
    document = find_document(source, shards, input_file, record)
    if document is None:
        reason = _absence(shards.folder, source, input_file, record)
        print(f"{config.document}: {reason}", file=sys.stderr)
        return 0
    parts = parts_read(plan, document, run_data(spec, plan), num_steps=num_steps)
    for part in parts:
        row = {"source": source, "input_file": input_file, "record": record}
        print(json.dumps(row | asdict(part)))
    print(_summary(config.document, document, parts, num_steps, plan.seq_len), file=sys.stderr)
    return 0


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
    name: str, document: StreamDocument, parts: list[PartRead], num_steps: int, seq_len: int
) -> str:
    steps = sorted({part.step for part in parts})
    # The last token of a sequence is a label alone and opens the next one as an input.
    num_inputs = sum(min(part.num_tokens, seq_len - part.position) for part in parts)
    times = num_inputs / document.num_tokens
    when = "not read in any"
    if steps:
        when = f"read {times:.2f} times in {len(steps):,} steps, {steps[0]:,} to {steps[-1]:,},"
    return (
        f"{name}: {document.num_tokens:,} tokens under {document.licence}; "
        f"{when} of the first {num_steps:,}"
    )
