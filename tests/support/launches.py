"""What a step launches on a device, counted on tensors of the meta device, which have no values."""

from functools import partial

from torch.utils._python_dispatch import TorchDispatchMode

from anchored.decode.models import column_attention
from anchored.kernels import decode_attention, layers, walk
from anchored.kernels.gpu import layers as gpu_layers
from anchored.kernels.gpu import walk_kernel

VIEWS = {"view", "_unsafe_view", "t", "transpose", "detach", "slice", "unsqueeze", "as_strided"}
VIEWS |= {"expand", "select", "empty", "empty_like", "new_empty", "_reshape_alias", "alias"}
VIEWS |= {"unbind", "split", "squeeze", "permute"}
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
TINYCOMMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}


class Launches(TorchDispatchMode):
    """Names of what is launched: operations that compute, and Triton kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))

    def __getitem__(self, grid):
        """In place of any kernel."""
        return lambda *_, **__: self.names.append("triton")


def counted_launches(monkeypatch) -> Launches:
    """In place of every kernel of a step."""
    counted = Launches()
    for module in (layers, walk):
        monkeypatch.setattr(module, "resolved_backend", lambda backend, device: "triton")
    attention = partial(column_attention.decode_attention, backend="triton")
    monkeypatch.setattr(column_attention, "decode_attention", attention)
    for module in (gpu_layers, decode_attention, walk_kernel):
        for name in vars(module):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, counted)
    return counted
