"""How long the stages of a plan take and what they need, on a stated machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from .mixture_config import Hardware, ModelSize
from .stage_plan import StagePlan

_SECONDS_PER_DAY = 86_400
_TOKEN_BYTES = 4
# float32 weights and the two moments of AdamW, as a checkpoint holds them; in memory also float32
# gradients.
_CHECKPOINT_BYTES_PER_PARAMETER = 12
_STATE_BYTES_PER_PARAMETER = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """Time, disk and memory."""

    tokens_per_s_per_gpu: float
    days: dict[str, float]
    """By stage."""
    shards_bytes: int
    """All sources whole, even where a stage reads only a part."""
    checkpoint_bytes: int
    """Of one checkpoint with the optimizer's state."""
    state_bytes_per_gpu: int
    """Weights, gradients and optimizer, sharded over the GPUs; activations come on top."""

    @property
    def total_days(self) -> float:
        return sum(self.days.values())


def estimate_run(stages: Sequence[StagePlan], model: ModelSize, hardware: Hardware) -> RunEstimate:
    """Days = tokens * FLOPs a token / (GPUs * peak * MFU), and the sizes of what is kept."""
    flops_per_s = hardware.peak_flops * hardware.mfu
    days = {}
    for stage in stages:
        flops = stage.num_tokens * model.flops_per_token(stage.seq_len)
        days[stage.name] = flops / (flops_per_s * hardware.num_gpus) / _SECONDS_PER_DAY
    sizes = {source.name: source.size.num_tokens for stage in stages for source in stage.sources}
    return RunEstimate(
        tokens_per_s_per_gpu=flops_per_s / model.flops_per_token(stages[0].seq_len),
        days=days,
        shards_bytes=_TOKEN_BYTES * sum(sizes.values()),
        checkpoint_bytes=_CHECKPOINT_BYTES_PER_PARAMETER * model.num_parameters,
        state_bytes_per_gpu=_STATE_BYTES_PER_PARAMETER * model.num_parameters // hardware.num_gpus,
    )
