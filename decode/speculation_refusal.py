"""What keeps a pair from speculating: memories that cannot go back, rows that see later drafts."""

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from .level import Level
from .model_pair import ModelPair
from .output_layer import OutputLayer
from .row_attention import RowAttention
from .row_stream import RowStream

PROBED_TOKENS = (1, 7, 3, 5, 2, 6)
"""A short text; two versions of its second half must leave the first half's logits alone."""


def speculation_refusal(level: Level) -> str:
    """Why a pair cannot speculate at this level, "" if it can.

    The safe model is only ever fed a token at a time; the risky one reads whole drafts, and then
    its law at a position must not depend on the drafts from there on (else the spends are wrong).
    """
    pair = level.pair
    if level.name != "token":
        return f"its level is the {level.name}, not the token"
    for name, model in pair.models.items():
        if pair.row_attention[name] is None:
            return f"the {name} model ({model.config.model_type}) {_fixed_memory(model.config)}"
    return _shared_scale(pair.risky.config) or _leak(pair)


def _fixed_memory(config: PretrainedConfig) -> str:
    kinds = set(getattr(config, "layer_types", None) or ())
    if any("linear" in kind or "mamba" in kind or "recurrent" in kind for kind in kinds):
        return "has a recurrent state, which cannot go back to an earlier token"
    if getattr(config, "sliding_window", None) is not None:
        return "keeps its window in a ring buffer, which cannot go back to an earlier token"
    return "decodes in whole batches, whose cache cannot go back to an earlier token"


def _shared_scale(config: PretrainedConfig) -> str:
    """Quantisation or routing by values that tokens of one forward share."""
    settings: Any = getattr(config, "quantization_config", None)
    plain: dict[str, Any] = {}
    if settings is not None:
        plain = settings if isinstance(settings, dict) else settings.to_dict()
    if plain.get("load_in_8bit") and plain.get("llm_int8_threshold", 6.0) > 0:
        return "the risky model's int8 outliers are found over all tokens of a forward"
    if _scales_by_tensor(plain):
        return "the risky model's activations share one dynamic scale over all tokens of a forward"
    capacity = [key for key, value in config.to_dict().items() if "capacity" in key and value]
    if capacity:
        return f"the risky model's experts drop tokens beyond their capacity ({capacity[0]})"
    return ""


def _scales_by_tensor(settings: object) -> bool:
    """Whether any part of the settings asks for per-tensor dynamic scales of activations."""
    if isinstance(settings, dict):
        scales = settings.get("input_activations") or settings.get("activation")
        if isinstance(scales, dict) and scales.get("dynamic"):
            return bool(scales.get("strategy") == "tensor")
        return any(_scales_by_tensor(value) for value in settings.values())
    return "PerTensor" in type(settings).__name__ or "PerTensor" in str(settings)


def _leak(pair: ModelPair) -> str:
    attention = pair.row_attention["risky"]
    assert attention is not None
    error = largest_leak(pair.risky, attention, pair.vocab_size)
    if error > 0.0:
        return f"the risky model's logits depend on later drafts (by up to {error:.2g})"
    return ""


@torch.inference_mode()
def largest_leak(model: PreTrainedModel, attention: RowAttention, vocab_size: int) -> float:
    """Largest change of a logit through later tokens of its forward, 0 for causal models."""
    half = len(PROBED_TOKENS) // 2
    first, second = PROBED_TOKENS[:half], PROBED_TOKENS[half:]
    logits = [
        _logits(model, attention, [*first, *rest], vocab_size)[:half]
        for rest in (second, tuple(reversed(second)))
    ]
    return (logits[0] - logits[1]).nan_to_num().abs().max().item()


def _logits(
    model: PreTrainedModel, attention: RowAttention, tokens: list[int], vocab_size: int
) -> Tensor:
    stream = RowStream(
        model,
        attention,
        num_rows=1,
        max_length=len(tokens) + 1,
        output=OutputLayer(model, vocab_size),
    )
    stream.read([[0]], [0])
    tokens = [token % vocab_size for token in tokens]
    return stream.feed_ends([0], [tokens], len(tokens))[0]
