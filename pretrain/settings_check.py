"""Settings that cannot work, whatever the machine and the data."""

from importlib.util import find_spec

from .job_config import JobConfig
from .model import flavors

FLOAT8_CONVERTER = "quantize.linear.float8"


def check_settings(config: JobConfig) -> None:
    """Raises ValueError with one line about the first setting that cannot work."""
    _check_model(config)
    _check_parallelism(config)
    _check_checkpoint(config)
    _check_packages(config)
    if config.validation.enable:
        raise ValueError("validation.enable is not supported: there is no validation data")


def _check_model(config: JobConfig) -> None:
    if config.model.name != "tinycomma" or config.model.flavor not in flavors():
        raise ValueError(
            f"model.flavor must be one of {', '.join(flavors())} of model.name tinycomma, "
            f"got {config.model.flavor} of {config.model.name}"
        )
    if config.debug.seed is None:
        raise ValueError("debug.seed is not set: the initial weights are drawn from it")


def _check_parallelism(config: JobConfig) -> None:
    for kind in ("tensor", "pipeline", "context", "expert"):
        if (degree := getattr(config.parallelism, f"{kind}_parallel_degree")) != 1:
            raise ValueError(
                f"parallelism.{kind}_parallel_degree must be 1, got {degree}: a model of this size "
                "is trained in data-parallel shards (data_parallel_replicate_degree for HSDP)"
            )


def _check_checkpoint(config: JobConfig) -> None:
    if not config.checkpoint.enable:
        raise ValueError("checkpoint.enable is false: the run would leave nothing behind")
    if config.checkpoint.last_save_model_only or config.checkpoint.last_save_in_hf:
        raise ValueError(
            "checkpoint.last_save_model_only and last_save_in_hf must be false: a run that ends "
            "so cannot be started again; use `anchored export` on its checkpoint"
        )
    if config.checkpoint.keep_latest_k == 1:
        raise ValueError(
            "checkpoint.keep_latest_k must be 0 (all) or at least 2, got 1: the last one may be "
            "torn by a kill"
        )


def _check_packages(config: JobConfig) -> None:
    if config.metrics.enable_wandb and find_spec("wandb") is None:
        raise ValueError("metrics.enable_wandb needs a package: pip install wandb")
    if FLOAT8_CONVERTER not in config.model.converters:
        return
    if "output" not in config.quantize.linear.float8.filter_fqns:
        raise ValueError(
            'quantize.linear.float8.filter_fqns must hold "output": the vocabulary projection '
            "stays in bfloat16"
        )
    if find_spec("torchao") is None:
        raise ValueError(
            f"model.converters {FLOAT8_CONVERTER} needs a package: pip install torchao"
        )
