"""The config of a run: torchtitan's sections, some with our defaults, and ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final, Literal

import tyro

from ..configs.config_file import from_table, located
from ..wrong_words import boxes_refused
from . import titan
from .plan.data_config import DataConfig, read_run_config

_CONFIG_FLAGS = ("--job.config_file", "--job.config-file")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldoutSource:
    """One source to measure on."""

    name: str
    path: str
    """Folder of token shards, made by the tokenizer of the training data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldoutConfig:
    """Measurements of the model while it trains, and their interval."""

    interval: int = 500
    """Steps between measurements; the first and the last step are always measured"""
    num_sequences: int = 64
    """Sequences of each source, from its beginning; fewer where it is shorter"""
    sources: tuple[HeldoutSource, ...] = ()
    """Token shards to take the loss on"""

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"heldout names must differ, got {', '.join(names)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeGuardConfig:
    """The limit above which a loss is a spike, and the answer to one."""

    action: Literal["off", "log", "skip"] = "log"
    """log: write the step to spikes.jsonl; skip: also leave the weights as they are"""
    window: int = 128
    """Losses of this many steps before are compared with; no step is a spike before that many"""
    deviations: float = 6.0
    """A spike exceeds their mean by so many standard deviations"""
    min_rise_nats: float = 0.2
    """And by at least this much"""
    max_nonfinite_steps: int = 3
    """A step with a loss or gradients that are not finite is never taken; so many in a row end
    the run"""


@dataclass
class Job:
    """The run as a program on this machine."""

    config_file: str | None = None
    """TOML file with the other settings"""

    dump_folder: str = "./outputs"
    """Folder of all that the run writes"""

    description: str = ""
    """Words about the run, for its record"""

    verbose: bool = False
    """Show torchtitan's log on stderr too; it always goes to train.log in the dump folder."""

    needs_gpu: bool = False
    """Refuse to start on a machine without a GPU"""

    check_memory: bool = True
    """Refuse to start where a step is estimated not to fit into a GPU's memory"""


@dataclass
class Model:
    """The model, and the tokenizer that its data must have been made by."""

    name: Literal["tinycomma"] = "tinycomma"
    """Family of models to train"""

    flavor: str = "tinycomma-1.8b"
    """Size of the model"""

    tokenizer: str = ""
    """Folder of the tokenizer that the token shards must have been made by; empty: any"""

    converters: list[Literal["quantize.linear.float8"]] = field(default_factory=list)
    """quantize.linear.float8: the layers' matrix products in float8, as its section says"""


@dataclass
class Float8Linear:
    """Matrix products in float8, by torchao."""

    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = "tensorwise"
    """A scale for each tensor or for each row; gw_hp leaves gradients of weights in bfloat16"""

    filter_fqns: list[str] = field(default_factory=list)
    """Parts of names of layers that stay as they are"""

    emulate: bool = False
    """Round as float8 does, on a machine that has no such products; for trials without compile"""


@dataclass
class QuantizedLinear:
    """The kinds of quantized linear layers."""

    float8: Float8Linear = field(default_factory=Float8Linear)


@dataclass
class Quantize:
    """Settings of the converters that model.converters names."""

    linear: QuantizedLinear = field(default_factory=QuantizedLinear)


@dataclass
class Optimizer:
    """Adam or AdamW, whose one group holds all weights, norms and embeddings too, as in lingua."""

    name: Literal["Adam", "AdamW"] = "AdamW"
    lr: float = 8e-4
    """Learning rate at the height of the schedule"""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"


@dataclass(kw_only=True, slots=True)
class Parallelism(titan.ParallelismConfig):
    spmd_backend: Literal["partial_dtensor"] = "partial_dtensor"
    """Weights are DTensors, and activations are not"""


@dataclass(kw_only=True, slots=True)
class Metrics(titan.MetricsProcessor.Config):
    disable_color_printing: bool = True
    """Disable color printing in logs"""

    enable_tensorboard: bool = True
    """Log metrics to TensorBoard"""


@dataclass
class Checkpoint:
    """The times at which a run saves, what it keeps, and the weights that it starts from."""

    folder: str = "checkpoint"
    """Name in the dump folder"""

    interval: int = 500
    """Steps between saves; the first and the last step are always saved"""

    interval_minutes: float = 0.0
    """Also save after this many minutes without a checkpoint; 0: by steps only"""

    keep_latest_k: int = 10
    """Number of the latest checkpoints that are kept; 0: all"""

    milestone_interval: int = 0
    """Checkpoints of multiples of this many steps are never deleted; 0: keep_latest_k alone"""

    async_mode: Literal["disabled", "async"] = "disabled"
    """async: training goes on while a checkpoint is written"""

    initial_load_path: str | None = None
    """Checkpoint of another run whose weights this one starts with"""

    keep_moments: bool = False
    """Take AdamW's moments over from initial_load_path with the weights; else they start at zero"""

    fork_from: str | None = None
    """Checkpoint of another run, of the same model and data, that this one goes on from: at the
    step after it, with other settings perhaps"""

    fork_skip_steps: int = 0
    """Leave out the data of so many steps there, those after a spike for example"""

    def __post_init__(self) -> None:
        if self.keep_latest_k < 0 or self.keep_latest_k == 1:
            raise ValueError(
                "checkpoint.keep_latest_k must be 0 (all) or at least 2, as the last one may be "
                f"torn by a kill, got {self.keep_latest_k}"
            )
        if self.keep_moments and not self.initial_load_path:
            raise ValueError("checkpoint.keep_moments needs checkpoint.initial_load_path")
        if self.fork_from and self.initial_load_path:
            raise ValueError("checkpoint.fork_from and initial_load_path exclude each other")
        if self.fork_skip_steps and not self.fork_from:
            raise ValueError("checkpoint.fork_skip_steps needs checkpoint.fork_from")


@dataclass
class Loss:
    """The computation of the cross entropy, whose value does not depend on it."""

    chunk_tokens: int = 0
    """Tokens of a process whose logits exist at once, inside the model's forward; 0: all"""


@dataclass
class ActivationCheckpoint:
    """The activations that backward computes again in place of keeping them."""

    mode: Literal["selective", "full", "memory_budget", "none"] = "none"
    """selective: of cheap operations; full: of layers; memory_budget: as the compiler chooses"""

    memory_budget: float = 0.5
    """Share of the memory that activations take without it"""


_POSITIVE: Final = (
    *("training.steps", "training.seq_len", "training.local_batch_size", "training.max_norm"),
    *("optimizer.lr", "parallelism.data_parallel_replicate_degree", "metrics.log_freq"),
    *("checkpoint.interval", "heldout.interval", "heldout.num_sequences"),
    *("spike_guard.window", "spike_guard.max_nonfinite_steps"),
)
"""Zero would be divided by, or would train nothing."""


@dataclass
class JobConfig:
    """All settings of a run."""

    job: Job = field(default_factory=Job)
    model: Model = field(default_factory=Model)
    quantize: Quantize = field(default_factory=Quantize)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lr_scheduler: titan.LRSchedulersContainer.Config = field(
        default_factory=titan.LRSchedulersContainer.Config
    )
    training: titan.TrainingConfig = field(default_factory=titan.TrainingConfig)
    parallelism: Parallelism = field(default_factory=Parallelism)
    activation_checkpoint: ActivationCheckpoint = field(default_factory=ActivationCheckpoint)
    compile: titan.CompileConfig = field(default_factory=titan.CompileConfig)
    comm: titan.CommConfig = field(default_factory=titan.CommConfig)
    loss: Loss = field(default_factory=Loss)
    spike_guard: SpikeGuardConfig = field(default_factory=SpikeGuardConfig)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    metrics: Metrics = field(default_factory=Metrics)
    profiling: titan.Profiler.Config = field(default_factory=titan.Profiler.Config)
    debug: titan.DebugConfig = field(default_factory=titan.DebugConfig)
    # Tables of sources do not fit on a command line: they are in the file only.
    heldout: Annotated[HeldoutConfig, tyro.conf.Suppress] = field(default_factory=HeldoutConfig)
    data: Annotated[DataConfig, tyro.conf.Suppress] = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not (value := attrgetter(name)(self)) > 0:
                raise ValueError(f"{name} must be positive, got {value}")


def place_of(config: JobConfig, key: str, name: str) -> Path:
    """The file or folder that a key names: next to the config, or where the run is.

    Raises: FileNotFoundError with the key and both places.
    """
    file = config.job.config_file
    return located(key, name, [Path(file).parent, Path()] if file else [Path()])


def load_job_config(arguments: Sequence[str]) -> JobConfig:
    """Defaults, then the file that --job.config_file names, then the other arguments.

    Raises: ValueError for an unknown key, a value of the wrong type or unreadable TOML, and
    FileNotFoundError if there is no such file; Refused for a wrong argument.
    """
    # Not torchtitan's manager, which checks no types and knows no mixtures.
    words = [word for argument in arguments for word in argument.split("=", 1)]
    files = [value for flag, value in pairwise(words) if flag in _CONFIG_FLAGS]
    tables = read_run_config(Path(files[-1])) if files else {}
    default = from_table(JobConfig, tables)
    with boxes_refused():
        config: JobConfig = tyro.cli(
            JobConfig, args=list(arguments), default=default, prog="anchored.pretrain"
        )
    return config
