"""The config of a run: torchtitan's sections with our defaults, and sections of our own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torchtitan.config as titan
import tyro

from ..configs.config_file import from_table
from .plan.data_config import DataConfig, read_run_config

_CONFIG_FLAGS = ("--job.config_file", "--job.config-file")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldoutSource:
    """One source to measure on."""

    name: str
    path: str
    """Folder of token shards, made by the tokenizer of the training data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionSource:
    """Multiple-choice questions to put to the model."""

    name: str
    path: str = str(Path(__file__).resolve().parent.parent / "configs/pretrain/questions.jsonl")
    """JSON lines of "question", "choices" and "answer"; not given: some of our own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldoutConfig:
    """What the model is measured on while it trains, and how often."""

    interval: int = 500
    """Steps between measurements; the last step is always measured"""
    num_sequences: int = 64
    """Of each source, from its beginning; fewer where it is shorter"""
    sources: tuple[HeldoutSource, ...] = ()
    """Token shards to take the loss on"""
    questions: tuple[QuestionSource, ...] = ()
    """Questions to answer; they need model.tokenizer"""

    def __post_init__(self) -> None:
        for names in ([one.name for one in self.sources], [one.name for one in self.questions]):
            if len(set(names)) < len(names):
                raise ValueError(f"heldout names must differ, got {', '.join(names)}")
        if self.interval < 1 or self.num_sequences < 1:
            raise ValueError(
                f"heldout.interval and num_sequences must be positive, got {self.interval} and "
                f"{self.num_sequences}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeGuardConfig:
    """What counts as a spike, and what is done about it."""

    action: Literal["off", "log", "skip"] = "log"
    """log: write the step's documents to spikes.jsonl; skip: also leave the weights as they are"""
    window: int = 128
    """Losses of this many steps before are compared with; no step is a spike before that many"""
    deviations: float = 6.0
    """A spike exceeds their mean by so many standard deviations"""
    min_rise_nats: float = 0.2
    """And by at least this much"""
    max_nonfinite_steps: int = 3
    """A step with a loss or gradients that are not finite is never taken; so many in a row end
    the run"""

    def __post_init__(self) -> None:
        if self.max_nonfinite_steps < 1:
            raise ValueError(
                f"spike_guard.max_nonfinite_steps must be at least 1, got "
                f"{self.max_nonfinite_steps}"
            )
        if self.window < 2 or self.deviations <= 0 or self.min_rise_nats < 0:
            raise ValueError(
                "spike_guard needs window >= 2, deviations > 0 and min_rise_nats >= 0, got "
                f"{self.window}, {self.deviations} and {self.min_rise_nats}"
            )


@dataclass
class Job(titan.Job):
    verbose: bool = False
    """Show torchtitan's log on stderr too; it always goes to train.log in the dump folder."""

    needs_gpu: bool = False
    """Refuse to start on a machine without a GPU"""

    check_memory: bool = True
    """Refuse to start where a step is estimated not to fit into a GPU's memory"""


@dataclass
class Model(titan.Model):
    name: str = "tinycomma"
    """Which family of models to train"""

    hf_assets_path: str = "."
    """Not used: token shards carry their tokenizer's hash, and export is given its folder"""

    tokenizer: str = ""
    """Folder of the tokenizer that the token shards must have been made by; empty: any"""


@dataclass
class Metrics(titan.Metrics):
    disable_color_printing: bool = True
    """Whether to disable color printing in logs"""

    enable_tensorboard: bool = True
    """Whether to log metrics to TensorBoard"""


@dataclass
class Checkpoint(titan.Checkpoint):
    enable: bool = True
    """Whether to enable checkpoint"""

    last_save_model_only: bool = False
    """Must stay false: a finished run could not be extended, nor started again without failing"""

    keep_moments: bool = False
    """Take AdamW's moments over from initial_load_path with the weights; else they start at zero"""

    interval_minutes: float = 0.0
    """Also save after this many minutes without a checkpoint; 0: by steps only"""

    milestone_interval: int = 0
    """Checkpoints of multiples of this many steps are never deleted; 0: keep_latest_k alone"""


@dataclass
class Loss:
    """How the cross entropy is computed; its value does not depend on it."""

    chunk_tokens: int = 0
    """Tokens of a process whose logits exist at once, inside the model's forward; 0: all"""


@dataclass
class ActivationCheckpoint(titan.ActivationCheckpoint):
    mode: Literal["selective", "full", "memory_budget", "none"] = "none"
    """Type of activation checkpointing to use"""


@dataclass
class JobConfig(titan.JobConfig):
    """Everything that a run can be told; the sections not listed here are torchtitan's own."""

    job: Job = field(default_factory=Job)
    model: Model = field(default_factory=Model)
    metrics: Metrics = field(default_factory=Metrics)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)
    loss: Loss = field(default_factory=Loss)
    spike_guard: SpikeGuardConfig = field(default_factory=SpikeGuardConfig)
    # Tables of sources do not fit on a command line: they are given in the file only.
    heldout: Annotated[HeldoutConfig, tyro.conf.Suppress] = field(default_factory=HeldoutConfig)
    data: Annotated[DataConfig, tyro.conf.Suppress] = field(default_factory=DataConfig)


def load_job_config(arguments: Sequence[str]) -> JobConfig:
    """Defaults, then the file that --job.config_file names, then the other arguments.

    Raises: ValueError for an unknown key, a value of the wrong type or unreadable TOML, and
    FileNotFoundError if there is no such file. A wrong argument exits with status 2.
    """
    return _TomlConfigManager(JobConfig).parse_args(list(arguments))


class _TomlConfigManager(titan.ConfigManager):
    """torchtitan's order of precedence with our reading of the file: torchtitan checks no types."""

    def _maybe_load_toml(self, args: list[str]) -> dict[str, Any] | None:
        for index, argument in enumerate(args):
            flag, has_value, value = argument.partition("=")
            if flag in _CONFIG_FLAGS and (has_value or index + 1 < len(args)):
                return read_run_config(Path(value if has_value else args[index + 1]))
        return None

    def _dict_to_dataclass(self, cls: type, data: dict[str, Any]) -> Any:
        return from_table(cls, data)
