"""The plan of what training reads: by source, by step, by document."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anchored.configs.config_file import CONFIGS
from anchored.durable_files import write_durably
from anchored.fields import check_least
from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.data_plan import DataPlan, data_record, skipped_steps
from anchored.pretrain.plan.provenance import (
    find_document,
    parts_read,
    sequence_documents,
)
from anchored.pretrain.plan.stages import StagePlan, StageSpec, missing_sources
from anchored.pretrain.run.record import RECORD_NAME, RunRecord
from anchored.pretrain.tokens.decontamination import search_summary
from anchored.pretrain.tokens.shards import MANIFEST_NAME, TokenShards, is_verified, verify_shards
from anchored.pretrain.tokens.writer import HELDOUT_FOLDER

from ..files import check_outputs
from ..option_types import TrainingFile

COMMON_PILE = CONFIGS / "pretrain" / "common_pile.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """Show what training reads: anchored plan [--config FILE.toml] [--verify]

    Prints the steps, tokens and epochs of every source and stage; anchored pretrain --dry-run says
    how long they take. With --step it prints one JSON object for every piece of a document that
    this step reads, with its source, license and position; with --document, one for every piece of
    that document that some step reads.
    """

    config: tuple[TrainingFile, ...] = (COMMON_PILE,)
    """One mixture, or the config of each stage's run, in their order; --list names the
    package's."""
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
        check_least(self, 0, "max_epochs", "step")
        if self.document:
            if self.step:
                raise ValueError(f"give step or document, not both: {self.step}, {self.document}")
            document_record(self.document)
        check_outputs(self, self.output)


def document_record(document: str) -> tuple[str, str, int]:
    """Read SOURCE:INPUT_FILE:RECORD; ValueError where it is not written so."""
    source, _, rest = document.partition(":")
    input_file, colon, number = rest.rpartition(":")
    if not (source and colon and number.isdecimal()):
        raise ValueError(f"document must be SOURCE:INPUT_FILE:RECORD, got {document!r}")
    return source, input_file, int(number)


def run(config: PlanConfig) -> int:
    """Print the plan, a step's documents or a document's steps; returns the exit status.

    Raises: ValueError or FileNotFoundError with one line about what cannot be planned or saved.
    """
    mixture = None
    if len(config.config) == 1 and stages.is_mixture(config.config[0]):
        mixture = load_mixture(config.config[0])
        mixture = replace(mixture, shards_folder=config.shards or mixture.shards_folder)
    specs = stages.mixture_specs(mixture) if mixture else list(map(stages.run_spec, config.config))
    if config.step:
        return _print_step(_stage_of(specs, config.stage), config.step)
    if config.document:
        return _print_document(_stage_of(specs, config.stage), config.document)
    if config.verify:
        return _verify({Path(source.path): 0 for spec in specs for source in spec.data.sources})
    missing = sorted({name for spec in specs for name in missing_sources(spec.data)})
    planned = [stages.plan_stage(spec) for spec in specs]
    lines = [line for stage in planned for line in _stage_lines(stage)]
    shards_bytes = stages.shards_bytes(planned, mixture) if mixture else None
    if shards_bytes is not None:
        lines.append(f"disk: {shards_bytes / 1e9:,.1f} GB of token shards")
    if missing:
        lines.append(f"token shards are missing of {len(missing)} sources: {', '.join(missing)}")
    print("\n".join(lines))
    allowed = config.max_epochs or min(spec.data.max_epochs for spec in specs)
    sources = [source for stage in planned for source in stage.sources]
    stages.check_epochs([(one.name, one.contents, one.epochs) for one in sources], allowed)
    if config.output is not None:
        table = {
            "schema": "anchored-plan-report/1",
            "stages": [asdict(stage) | {"num_tokens": stage.num_tokens} for stage in planned],
            "shards_bytes": shards_bytes,
            "missing_shards": missing,
        }
        text = json.dumps(table, indent=2) + "\n"
        write_durably(config.output, text, overwrite=config.overwrite)
        print(f"saved to {config.output}", file=sys.stderr)
    return 0


def _verify(folders: Iterable[Path]) -> int:
    """Verify the shards of folders that have no valid stamp; 1 if any of them is damaged."""
    num_damaged = 0
    for folder in folders:
        if is_verified(folder):
            print(f"{folder}: unchanged since it was verified")
            continue
        try:
            size = verify_shards(folder) / 1e9
        except ValueError as error:
            num_damaged += 1
            print(f"anchored plan: {error}", file=sys.stderr)
            continue
        print(f"{folder}: {size:,.1f} GB verified", flush=True)
    return 1 if num_damaged else 0


def _stage_of(specs: Sequence[StageSpec], name: str) -> StageSpec:
    by_name = {spec.name: spec for spec in specs}
    if not name and len(specs) == 1:
        return specs[0]
    if name not in by_name:
        raise ValueError(f"--stage must be one of {', '.join(by_name)}, got {name!r}")
    return by_name[name]


def _print_step(spec: StageSpec, step: int) -> int:
    if not 1 <= step <= spec.num_steps:
        raise ValueError(f"--step must be in [1, {spec.num_steps}], got {step}")
    plan = _open_plan(spec)
    licenses: Counter[str] = Counter()
    data_step = step + skipped_steps(_run_data(spec, plan), step - 1)
    first = (data_step - 1) * spec.sequences_per_step
    for sequence in range(first, first + spec.sequences_per_step):
        for document in sequence_documents(plan, sequence):
            print(json.dumps(asdict(document), ensure_ascii=False))
            licenses[document.license] += document.num_tokens
    print(f"step {step} of {spec.name}, plan {plan.hash}", file=sys.stderr)
    for license, num_tokens in licenses.most_common():
        print(f"  {num_tokens:>12,} tokens  {license}", file=sys.stderr)
    return 0


def _print_document(spec: StageSpec, name: str) -> int:
    plan = _open_plan(spec)
    source, input_file, record = document_record(name)
    names = [one.name for one in plan.config.sources]
    if source not in names:
        raise ValueError(f"the run reads no source {source!r}: {', '.join(names)}")
    index = names.index(source)
    place = find_document(plan.shards[index], input_file, record)
    if place is None:
        heldout = plan.shards[index].folder / HELDOUT_FOLDER
        is_there = (heldout / MANIFEST_NAME).is_file()
        is_held_out = is_there and find_document(TokenShards.open(heldout), input_file, record)
        reason = f"the token shards of {source} do not hold it"
        print(f"{name}: never read: {'it is held out' if is_held_out else reason}", file=sys.stderr)
        return 0
    start, document = place
    data = _run_data(spec, plan)
    parts = parts_read(plan, index, start, document, data, num_steps=spec.num_steps)
    for step, part in parts:
        print(json.dumps({"step": step, **asdict(part)}, ensure_ascii=False))
    steps = sorted({step for step, _ in parts})
    # The last token of a sequence is a label alone and opens the next one as an input.
    num_inputs = sum(min(part.num_tokens, plan.seq_len - part.position) for _, part in parts)
    when = "not read in any"
    if steps:
        times = f"{num_inputs / document.num_tokens:.2f} times in {len(steps):,} steps"
        when = f"read {times}, {steps[0]:,} to {steps[-1]:,},"
    size = f"{document.num_tokens:,} tokens under {document.license}"
    print(f"{name}: {size}; {when} of {spec.num_steps:,}", file=sys.stderr)
    return 0


def _open_plan(spec: StageSpec) -> DataPlan:
    if missing := missing_sources(spec.data):
        raise ValueError(f"the token shards of every source are needed; missing: {missing[0]}")
    return DataPlan.open(spec.data, seq_len=spec.seq_len)


def _run_data(spec: StageSpec, plan: DataPlan) -> dict[str, Any]:
    """Return what a stage's run records of its data, and of what it left out where it went back."""
    data = data_record(plan, batch_size=spec.sequences_per_step)
    if spec.dump_folder is None or not (spec.dump_folder / RECORD_NAME).is_file():
        return data
    recorded = RunRecord.read(spec.dump_folder).data
    return recorded if recorded["plan_hash"] == plan.hash else data


def _stage_lines(stage: StagePlan) -> list[str]:
    lines = [
        f"{stage.name}: {stage.num_steps:,} steps of {stage.sequences_per_step:,} sequences of "
        f"{stage.seq_len:,} tokens, {_count(stage.num_tokens)} tokens, weights by "
        f"{stage.weight_unit}",
        f"  {'source':<31} {'has':>10} {'':<10} {'share':>9} {'reads':>10} {'epochs':>7}",
    ]
    for source in stage.sources:
        lines.append(
            f"  {source.name:<31} {_count(source.source_tokens):>10} "
            f"{source.origin:<10} {source.share:>9.4%} "
            f"{_count(source.num_tokens):>10} {source.epochs:>7.3f}"
        )
    for source in stage.sources:
        if search := source.decontamination:
            lines.append(f"  {source.name} was searched: {search_summary(search)}")
    unsearched = [
        source.name
        for source in stage.sources
        if source.origin == "shards" and not source.decontamination
    ]
    if unsearched:
        lines.append(
            f"  {', '.join(unsearched)}: not searched for texts that must not be trained on "
            "(`anchored decontaminate`)"
        )
    plan_hash = stage.plan_hash or "none until the shards of all sources are there"
    return [*lines, f"  plan hash: {plan_hash}", ""]


def _count(num_tokens: int) -> str:
    if num_tokens < 1e7:
        return f"{num_tokens:,}"
    return f"{num_tokens / 1e9:,.1f}B" if num_tokens >= 1e10 else f"{num_tokens / 1e9:.4f}B"
