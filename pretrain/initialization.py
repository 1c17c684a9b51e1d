"""Initial weights as in lingua, the same for any number of processes."""

import hashlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

# Truncated at three standard deviations, as lingua does for every matrix.
_CUTOFF = 3.0
_WRAPPER_PREFIXES = ("_orig_mod.", "_checkpoint_wrapped_module.")


def initialize_weights(model: nn.Module, *, dim: int, hidden_dim: int, seed: int) -> None:
    """Fill every parameter of a Llama model in place.

    Norms are 1; w2 of the feed-forward has standard deviation hidden_dim**-0.5, every other matrix
    dim**-0.5, without depth scaling. Each parameter is drawn whole from a generator keyed by the
    seed and its name, then cut to the local shard: so the values do not depend on the sharding.
    Source: lingua (2024), init_std_factor "disabled", init_base_std None.
    """
    for name, parameter in model.named_parameters():
        for prefix in _WRAPPER_PREFIXES:
            name = name.replace(prefix, "")
        if "norm" in name:
            nn.init.ones_(parameter)
        else:
            width = hidden_dim if name.endswith("feed_forward.w2.weight") else dim
            _fill_truncated_normal(parameter, std=width**-0.5, key=f"{seed}/{name}")


@torch.no_grad()
def _fill_truncated_normal(parameter: Tensor, *, std: float, key: str) -> None:
    key_bytes = hashlib.sha256(key.encode()).digest()[:8]
    generator = torch.Generator(parameter.device)
    generator.manual_seed(int.from_bytes(key_bytes, "little") >> 1)
    full = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
    cutoff = _CUTOFF * std
    nn.init.trunc_normal_(full, std=std, a=-cutoff, b=cutoff, generator=generator)
    if isinstance(parameter, DTensor):
        # src_data_rank=None: every rank has drawn the same values, so none needs to be sent.
        full = distribute_tensor(
            full, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    parameter.copy_(full)
