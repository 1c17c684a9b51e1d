"""All that a training run imports, with the CPU in the place of a missing accelerator."""

from importlib import import_module

from anchored.pretrain.cpu_device import use_cpu_without_accelerator

use_cpu_without_accelerator()  # before torchtitan is imported
for name in (
    "anchored.pretrain.run.preflight",
    "torch.distributed.checkpoint",
    "torch.utils.tensorboard",
):
    import_module(name)
