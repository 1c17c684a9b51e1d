"""Settings of Anchored Decoding that vLLM draws, before the pair of transformers takes the GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ... import Anchored
from ..recorded_texts import grouped
from .experiment import Experiment, Setting
from .generations import generation_task
from .sharing import share
from .sweep import Sweep


def draw_by_vllm(sweep: Sweep, experiment: Experiment) -> None:
    """Generate what is missing of every setting whose rule is `Anchored`.

    The tokens and ledgers are those of a `Decoder`, up to the models' own batch numerics. An engine
    for each group of rules that differ in k alone: it starts once and is gone before the next.
    Raises ImportError, and ValueError, as `open_pair` does.
    """
    ours = [(own, own.rule) for own in experiment.settings if isinstance(own.rule, Anchored)]
    for members in grouped(ours, lambda own: repr(replace(own[1], k=1.0, K=None))).values():
        _draw(sweep, experiment, members)


def _draw(
    sweep: Sweep, experiment: Experiment, settings: Sequence[tuple[Setting, Anchored]]
) -> None:
    from ...decode.vllm.engine import open_pair

    engine: list[Any] = []

    def decoder_of(rule: Anchored) -> Any:
        """Of the engine, which starts with the first setting that is not generated yet."""
        if not engine:
            placement = sweep.placement
            safe, risky = sweep.models.locations.values()
            arguments = {"tensor_parallel_size": placement.gpus, **placement.vllm}
            engine.append(open_pair(safe, risky, rule, **arguments))
        return type(engine[0])(engine[0].llm, engine[0].pair, rule)

    try:
        tasks = [
            generation_task(experiment, setting, partial(decoder_of, rule))
            for setting, rule in settings
        ]
        share(tasks, experiment.claims, waits=False)
    finally:
        for decoder in engine:
            decoder.llm.llm_engine.engine_core.shutdown()
