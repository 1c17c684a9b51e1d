"""A ladder: a run's recipe on smaller models, each on as many tokens a parameter, swept over rates.

Parameters are counted without embeddings.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.config_file import BASE_KEY, Tables, from_table, read_toml, toml_text
from ..durable_files import write_durably
from .plan.data_config import read_run_config
from .plan.stages import StageSpec, run_spec

MEAN = "mean"
"""Name of the mean over held-out sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """Runs of one size."""

    flavor: str
    """As model.flavor."""
    sequences_per_step: int
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    """Of the initial weights and of the order of the data; each rate is tried with all of them."""

    def __post_init__(self) -> None:
        if self.sequences_per_step < 1:
            raise ValueError(f"sequences_per_step must be positive, got {self.sequences_per_step}")
        if not (self.learning_rates and self.seeds and min(self.learning_rates) > 0):
            raise ValueError(f"{self.flavor} needs positive learning_rates and seeds")


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderConfig:
    """A file of rungs."""

    run: str
    """Config of the run that is predicted, relative to this file."""
    folder: str
    """Of the rungs' configs and runs."""
    rungs: tuple[Rung, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderRun:
    """One model of a ladder at one learning rate."""

    name: str
    flavor: str
    learning_rate: float
    seed: int
    num_parameters: int
    num_steps: int
    num_tokens: int
    folder: Path
    tables: Tables
    """Its config."""

    @property
    def config_file(self) -> Path:
        return self.folder.with_name(f"{self.name}.toml")

    def write_config(self) -> None:
        """Raises ValueError if the run was begun with another one."""
        text = toml_text(self.tables)
        if self.config_file.exists() and self.config_file.read_text() == text:
            return
        if self.folder.exists():
            raise ValueError(
                f"{self.folder} was begun with another {self.config_file.name} than the ladder "
                "says now: name another folder, or remove it"
            )
        self.config_file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.config_file, text)

    def last_measured(self) -> tuple[int, dict[str, float]]:
        """The step of the last held-out losses, and these by source with their mean; 0 if none."""
        path = self.folder / "heldout.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if not whole:
            return 0, {}
        last = json.loads(whole[-1])
        losses: dict[str, float] = last["losses"]
        if losses:
            losses = losses | {MEAN: math.fsum(losses.values()) / len(losses)}
        return last["step"], losses

    def losses(self) -> dict[str, float] | None:
        """Held-out losses by source, and their mean, of a finished run; None before."""
        step, losses = self.last_measured()
        return losses if step == self.num_steps and losses else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """The runs below another one."""

    target: str
    """Flavor of the run that is predicted."""
    num_parameters: int
    num_tokens: int
    """Of that run."""
    folder: Path
    runs: tuple[LadderRun, ...]


def read_ladder(path: Path) -> LadderConfig:
    """Raises FileNotFoundError, or ValueError with the key that is unknown, missing or wrong."""
    config: LadderConfig = from_table(LadderConfig, read_toml(path))
    return config


def load_ladder(path: Path) -> Ladder:
    """Raises FileNotFoundError, or ValueError with what is wrong in which file."""
    config = read_ladder(path)
    target_file = path.parent / config.run
    spec, tables = run_spec(target_file), read_run_config(target_file)
    flavor = tables.get("model", {}).get("flavor", "")
    num_tokens = spec.num_steps * spec.sequences_per_step * spec.seq_len
    num_parameters = model_size(flavor)
    warmup_share = tables.get("lr_scheduler", {}).get("warmup_steps", 0) / spec.num_steps
    runs = [
        run
        for rung in config.rungs
        for run in _runs(
            rung,
            spec,
            target_file,
            Path(config.folder),
            tokens_per_parameter=num_tokens / num_parameters,
            warmup_share=warmup_share,
        )
    ]
    return Ladder(
        target=flavor,
        num_parameters=num_parameters,
        num_tokens=num_tokens,
        folder=Path(config.folder),
        runs=tuple(runs),
    )


def model_size(flavor: str) -> int:
    """Parameters of a flavor without its embeddings. Raises ValueError if there is no such one."""
    # Not before: these import torchtitan, which binds its device at that moment.
    from .model.tinycomma import flavors
    from .run.memory import body_parameter_count

    if flavor not in flavors():
        raise ValueError(f"model.flavor must be one of {', '.join(flavors())}, got {flavor!r}")
    return body_parameter_count(flavors()[flavor])


def _runs(
    rung: Rung,
    spec: StageSpec,
    target_file: Path,
    folder: Path,
    *,
    tokens_per_parameter: float,
    warmup_share: float,
) -> Iterator[LadderRun]:
    num_parameters = model_size(rung.flavor)
    step_tokens = rung.sequences_per_step * spec.seq_len
    num_steps = max(1, round(tokens_per_parameter * num_parameters / step_tokens))
    warmup_steps = round(warmup_share * num_steps)
    for rate in rung.learning_rates:
        for seed in rung.seeds:
            name = f"{rung.flavor}-lr{rate:g}-seed{seed}"
            tables: dict[str, Any] = {
                BASE_KEY: os.path.relpath(target_file, folder),
                "job": {"dump_folder": str(folder / name), "description": f"ladder: {name}"},
                "model": {"flavor": rung.flavor},
                "optimizer": {"lr": rate},
                "lr_scheduler": {"warmup_steps": warmup_steps},
                "training": {"steps": num_steps, "global_batch_size": rung.sequences_per_step},
                "checkpoint": {"keep_latest_k": 2, "milestone_interval": 0},
                "debug": {"seed": seed},
                "data": {"seed": seed},
            }
            yield LadderRun(
                name=name,
                flavor=rung.flavor,
                learning_rate=rate,
                seed=seed,
                num_parameters=num_parameters,
                num_steps=num_steps,
                num_tokens=num_steps * step_tokens,
                folder=folder / name,
                tables=tables,
            )


def best_runs(ladder: Ladder, source: str = MEAN) -> dict[str, list[LadderRun]]:
    """By flavor, the finished runs of the learning rate whose mean loss is least."""
    finished: dict[str, dict[float, list[LadderRun]]] = {}
    for run in ladder.runs:
        if (losses := run.losses()) is not None and math.isfinite(losses[source]):
            finished.setdefault(run.flavor, {}).setdefault(run.learning_rate, []).append(run)

    def mean_loss(runs: list[LadderRun]) -> float:
        return math.fsum((run.losses() or {})[source] for run in runs) / len(runs)

    return {flavor: min(rates.values(), key=mean_loss) for flavor, rates in finished.items()}
