"""Matrix products in float8, by torchao: faster where a GPU has them, and another training."""

from dataclasses import replace

import torch._inductor.config
from torch import nn

from ..job_config import JobConfig

_MULTIPLE = 16
"""Products of float8 want both sides of a matrix in multiples of this."""


def use_float8(model: nn.Module, config: JobConfig) -> None:
    """Make linear layers multiply in float8, in place, before the model is compiled and sharded.

    Those that quantize.linear.float8.filter_fqns names stay as they are.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    settings = config.quantize.linear.float8
    recipe = Float8LinearConfig.from_recipe_name(settings.recipe_name)

    def is_converted(module: nn.Linear, name: str) -> bool:
        is_named = any(part in name for part in settings.filter_fqns)
        return not is_named and not any(size % _MULTIPLE for size in module.weight.shape)

    if settings.recipe_name == "rowwise":  # or a compiled layer rounds in other places, at a loss
        torch._inductor.config.emulate_precision_casts = True  # pytorch issue 150859
    chosen = replace(recipe, emulate=settings.emulate)
    convert_to_float8_training(model, config=chosen, module_filter_fn=is_converted)
