"""What keeps a pair, a rule or a way of sampling from decoding on the device."""

from importlib.util import find_spec

import torch

from .level import Level
from .model_pair import ModelPair
from .module_hooks import is_hooked
from .row_attention import RowAttention
from .rules.anchored import Anchored
from .rules.rule import Rule
from .sampling_config import SamplingConfig

FAMILIES = ("llama", "mistral", "olmo2", "gpt2", "qwen2", "qwen3")
"""Families whose layers are tested with one column at a position on the device. Llama 4 is not
among them: its layers attend in chunks and send tokens to experts by values on the host."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Logits are warped in float32; a float64 pair promises more digits than that."""


def pair_refusal(level: Level, rule: Rule) -> str:
    """Why a pair cannot decode on the device at this level under this rule, "" if it can."""
    pair = level.pair
    if level.name != "token":
        return f"its level is the {level.name}, not the token"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not isinstance(rule, Anchored):
        return f"the rule {rule.name} is not Anchored"
    if pair.num_processes > 1:
        return "the risky model is split over processes"
    if pair.quantization:
        return f"the {' and the '.join(pair.quantization)} model is quantised"
    devices = {p.device for model in pair.models.values() for p in model.parameters()}
    if len(devices) > 1:
        return f"the models are on {len(devices)} devices, not one"
    refusals = (_model_refusal(pair, name) for name in pair.models)
    return next((refusal for refusal in refusals if refusal), "")


def sampling_refusal(sampling: SamplingConfig) -> str:
    """Why tokens cannot be sampled like this on the device, "" if they can."""
    if sampling.is_greedy:
        return "temperature 0 samples nothing"
    names = {"top_k": sampling.top_k > 0, "top_p": sampling.top_p < 1, "min_p": sampling.min_p > 0}
    used = [name for name, is_used in names.items() if is_used]
    return f"{' and '.join(used)} cut off tokens" if used else ""


def _model_refusal(pair: ModelPair, name: str) -> str:
    model, attention = pair.models[name], pair.row_attention[name]
    family = model.config.model_type
    if model.dtype not in DTYPES:
        return f"the {name} model is {model.dtype}, not one of float32, bfloat16, float16"
    if family not in FAMILIES or attention is None or not _is_full(attention):
        return f"the {name} model ({family}) is not of a tested family with full attention"
    if hooked := next((n for n, module in model.named_modules() if is_hooked(module)), None):
        return f"the {name} model has a hook on {hooked}, which a captured step may not run"
    return ""


def _is_full(attention: RowAttention) -> bool:
    return attention.layer_types == ("full_attention",)
