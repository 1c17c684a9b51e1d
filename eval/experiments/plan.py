"""What a sweep would generate, about how long that takes and what it leaves, before it begins."""

import math
from collections.abc import Iterator
from typing import Final

from ... import text_tables
from ...decode.byte.byte_level import BYTES_PER_TOKEN
from .experiment import Setting
from .sweep import Sweep, sweep_prompts, sweep_settings

STEP_BYTES: Final = 221
"""Of a step in a ledger, measured on the quickstart's pair."""
TEXT_BYTES: Final = 3000
"""Of a text's row, and of its ledger beside the steps."""
REACHED: Final = 0.5
"""The share of its memory bandwidth that a GPU reaches in the forwards of a batch."""


def sweep_plan(sweep: Sweep) -> str:
    """The settings, how much they generate, where the pair lies, hours and disk.

    Raises ValueError for prompts, rules or settings that cannot be, and for weights that the GPUs
    of a process do not hold.
    """
    settings = sweep_settings(sweep)
    num_prompts, num_seeds = len(sweep_prompts(sweep)), len(sweep.seeds)
    num_texts = len(settings) * num_prompts * num_seeds
    rows = [
        [setting.name, setting.rule.name, "yes" if setting.rule.is_certified else "no"]
        for setting in settings
    ]
    count = (
        f"{len(settings)} settings x {num_prompts} prompts x {num_seeds} seeds = {num_texts} "
        f"generations of at most {sweep.max_new_tokens} tokens: {num_texts * sweep.max_new_tokens} "
        "tokens (four bytes each at byte level)"
    )
    num_steps = sweep.max_new_tokens * (1 if sweep.level == "token" else BYTES_PER_TOKEN)
    disk = num_texts * (num_steps * STEP_BYTES + TEXT_BYTES) / 1e9
    return "\n".join(
        [
            f"{text_tables.aligned(['setting', 'rule', 'certified'], rows)}\n\n{count}",
            sweep.placement.plan(sweep.models),
            *_time(
                sweep, settings, math.ceil(num_prompts * num_seeds / sweep.batch_size) * num_steps
            ),
            f"about {disk:,.1f} GB of texts and ledgers, two files a setting",
        ]
    )


def _time(sweep: Sweep, settings: tuple[Setting, ...], num_steps: int) -> Iterator[str]:
    """Hours of one process, where the weights are here and the GPUs' bandwidth is named.

    num_steps: of a setting, each of which reads the weights of every stream of its rule once.
    """
    sizes, bandwidth = sweep.placement.weights(sweep.models), sweep.placement.gpu_bandwidth
    read = [stream.model for setting in settings for stream in setting.rule.streams.values()]
    yield f"{num_steps * len(read):,} forwards of a batch, where bytes take one each"
    if sizes is not None and bandwidth:
        seconds = num_steps * sum(sizes[model] for model in read) / (REACHED * bandwidth * 1e9)
        slow = dict.fromkeys(own.rule.name for own in settings if own.rule.looks_back)
        more = f"; {', '.join(slow)} step from the host and take longer" if slow else ""
        yield f"about {seconds / 3600:,.1f} hours of one process, from the bytes of weights{more}"
