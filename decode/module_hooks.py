"""Whether calling a module runs more than the forward of its class."""

from torch import nn
from torch.nn.modules import module as torch_module


def is_hooked(module: nn.Module) -> bool:
    """Forward hooks, pre-hooks, those of all modules, or a forward set on this one object.

    What computes with a module's weights, and not by calling it, would pass these by.
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )
