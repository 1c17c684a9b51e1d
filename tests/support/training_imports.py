"""All that a training run imports, which takes seconds."""

from importlib import import_module

for name in (
    "anchored.pretrain.run.preflight",
    "torch.distributed.checkpoint",
    "torch.utils.tensorboard",
):
    import_module(name)
