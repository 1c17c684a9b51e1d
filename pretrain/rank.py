"""Which share of the input files this process takes."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `world_size` processes, started by torchrun or as a Slurm array, or the only one."""

    rank: int
    world_size: int
    num_local: int
    """Processes on this machine, which share its cores."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), got {self.rank}")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Rank":
        """torchrun's RANK and WORLD_SIZE, else Slurm's array task, else 0 of 1.

        Raises: ValueError if a variable is not a number or the rank is out of range.
        """
        if "RANK" in environment:
            local = _number(environment, "LOCAL_WORLD_SIZE", 1)
            return cls(_number(environment, "RANK"), _number(environment, "WORLD_SIZE"), local)
        if "SLURM_ARRAY_TASK_ID" in environment:
            first = _number(environment, "SLURM_ARRAY_TASK_MIN")
            step = _number(environment, "SLURM_ARRAY_TASK_STEP", 1)
            place = (_number(environment, "SLURM_ARRAY_TASK_ID") - first) // step
            return cls(place, _number(environment, "SLURM_ARRAY_TASK_COUNT"), 1)
        return cls(0, 1, 1)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise ValueError(f"environment variable {name} must be a number, got {text!r}")
    return int(text)
