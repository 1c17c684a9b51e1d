"""Weights of a checkpoint under their Hugging Face names."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

_NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
}


def llama_weights(checkpoint: Path, model: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Read a step folder's model weights, and nothing else of it, for LlamaForCausalLM.

    model: the shape, in the names of a Hugging Face config.
    Returns: contiguous CPU tensors of `dtype`.
    Raises: ValueError if the checkpoint lacks a weight of this model.
    """
    names = dict(_NAMES)
    for layer in range(model["num_hidden_layers"]):
        for name, exported_name in _LAYER_NAMES.items():
            names[f"layers.{layer}.{name}"] = f"model.layers.{layer}.{exported_name}"
    weights = _read_tensors(checkpoint, list(names))
    num_heads = {"q_proj": model["num_attention_heads"], "k_proj": model["num_key_value_heads"]}
    exported = {}
    for name, exported_name in names.items():
        weight = weights[name]
        projection = exported_name.split(".")[-2]
        if projection in num_heads:
            weight = half_split_rotary(weight, num_heads[projection])
        exported[exported_name] = weight.to(dtype).contiguous()
    return exported


def averaged_llama_weights(
    checkpoints: Sequence[Path], model: dict[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The mean of the weights of several step folders, taken in float32; else `llama_weights`.

    Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and better
    generalization", equal weights.
    """
    mean = llama_weights(checkpoints[0], model, torch.float32)
    for count, checkpoint in enumerate(checkpoints[1:], start=2):
        for name, weight in llama_weights(checkpoint, model, torch.float32).items():
            mean[name].lerp_(weight, 1 / count)
    return {name: weight.to(dtype) for name, weight in mean.items()}


def half_split_rotary(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a query or key projection for Hugging Face's rotary embedding.

    torchtitan turns the pairs (0, 1), (2, 3), ... of a head, Hugging Face the pairs (0, D/2),
    (1, D/2 + 1), ...: within each head the even rows come first, then the odd ones.
    weight: (num_heads * head_dim, hidden_size); returns the same shape.
    """
    pairs = weight.unflatten(0, (num_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _read_tensors(checkpoint: Path, names: list[str]) -> dict[str, Tensor]:
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {}
    for name in names:
        entry = stored.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"checkpoint {checkpoint} has no weight {name}")
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        # no_dist asks for exactly what the warning says is assumed.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return tensors
