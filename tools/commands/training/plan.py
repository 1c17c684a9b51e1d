"""The plan of what training reads."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from anchored.durable_files import write_durably
from anchored.pretrain.plan import stages
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.data_plan import DataPlan, data_record, skipped_steps
from anchored.pretrain.plan.provenance import consumed_documents
from anchored.pretrain.plan.stages import StagePlan, StageSpec, missing_sources
from anchored.pretrain.run.record import RECORD_NAME, RunRecord
from anchored.pretrain.tokens.decontamination import search_summary

from ..files import check_outputs
from .training_options import PlanConfig


def run(config: PlanConfig) -> int:
    """Print the plan or a step's documents; returns the exit status.

    Raises: ValueError or FileNotFoundError with one line about what cannot be planned or saved.
    """
    check_outputs(config, config.output)
    mixture = None
    if len(config.config) == 1 and stages.is_mixture(config.config[0]):
        mixture = load_mixture(config.config[0])
        mixture = replace(mixture, shards_folder=config.shards or mixture.shards_folder)
    specs = stages.mixture_specs(mixture) if mixture else list(map(stages.run_spec, config.config))
    if config.step:
        _print_step(stage_of(specs, config.stage), config.step)
        return 0
    missing = sorted({name for spec in specs for name in missing_sources(spec.data)})
    planned = [stages.plan_stage(spec, missing_sources(spec.data)) for spec in specs]
    lines = [line for stage in planned for line in _stage_lines(stage)]
    shards_bytes = stages.shards_bytes(planned, mixture) if mixture else None
    if shards_bytes is not None:
        lines.append(f"disk: {shards_bytes / 1e9:,.1f} GB of token shards")
    if missing:
        lines.append(f"token shards are missing of {len(missing)} sources: {', '.join(missing)}")
    print("\n".join(lines))
    allowed = config.max_epochs or min(spec.data.max_epochs for spec in specs)
    stages.check_epochs([stage.epochs for stage in planned], allowed)
    if config.output is not None:
        table = {
            "schema": "anchored-plan-report/1",
            "stages": [asdict(stage) | {"num_tokens": stage.num_tokens} for stage in planned],
            "shards_bytes": shards_bytes,
            "missing_shards": missing,
        }
        config.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(table, indent=2) + "\n"
        write_durably(config.output, text, overwrite=config.overwrite)
        print(f"saved to {config.output}", file=sys.stderr)
    return 0


def stage_of(specs: Sequence[StageSpec], name: str) -> StageSpec:
    by_name = {spec.name: spec for spec in specs}
    if not name and len(specs) == 1:
        return specs[0]
    if name not in by_name:
        raise ValueError(f"--stage must be one of {', '.join(by_name)}, got {name!r}")
    return by_name[name]


def _print_step(spec: StageSpec, step: int) -> None:
    if not 1 <= step <= spec.num_steps:
        raise ValueError(f"--step must be in [1, {spec.num_steps}], got {step}")
    if missing := missing_sources(spec.data):
        raise ValueError(f"--step needs the token shards of every source; missing: {missing[0]}")
    plan = DataPlan.open(spec.data, seq_len=spec.seq_len, verify=False)
    licences: Counter[str] = Counter()
    data_step = step + skipped_steps(run_data(spec, plan), step - 1)
    for document in consumed_documents(plan, data_step, sequences_per_step=spec.sequences_per_step):
        table = asdict(document)
        span = table.pop("span")
        print(json.dumps(table | span, ensure_ascii=False))
        licences[document.span.licence] += document.span.num_tokens
    print(f"step {step} of {spec.name}, plan {plan.hash}", file=sys.stderr)
    for licence, num_tokens in licences.most_common():
        print(f"  {num_tokens:>12,} tokens  {licence}", file=sys.stderr)


def run_data(spec: StageSpec, plan: DataPlan) -> dict[str, Any]:
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
            f"  {source.name:<31} {_count(source.size.num_tokens):>10} "
            f"{source.size.origin:<10} {source.share:>9.4%} "
            f"{_count(source.num_tokens):>10} {source.epochs:>7.3f}"
        )
    for source in stage.sources:
        if search := source.decontamination:
            lines.append(f"  {source.name} was searched: {search_summary(search)}")
    unsearched = [
        source.name
        for source in stage.sources
        if source.size.origin == "shards" and not source.decontamination
    ]
    if unsearched:
        lines.append(
            f"  {', '.join(unsearched)}: not searched for texts that must not be trained on "
            "(`anchored decontaminate`)"
        )
    known = stage.plan_hash or "none until the shards of all sources are there"
    return [*lines, f"  plan hash: {known}", ""]


def _count(num_tokens: int) -> str:
    if num_tokens < 1e7:
        return f"{num_tokens:,}"
    return f"{num_tokens / 1e9:,.1f}B" if num_tokens >= 1e10 else f"{num_tokens / 1e9:.4f}B"
