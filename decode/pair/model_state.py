"""Checks of a pair's models: apart from each other, without adapters, and as they were."""

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PretrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

NUM_SAMPLED = 64
"""Numbers of a weight by which a write to all of it is noticed where torch does not count it: a
write through `.data`, by which adapters are merged, or to an inference tensor."""

ADAPTER_PACKAGES = ("peft.", "adapters.", "loralib.")
"""Libraries whose modules take the place of a model's layers."""

FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies are those of every length: no forward writes to them."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
SWITCHES = ("_active_adapter", "_disable_adapters")
"""Attributes of peft's layers that say which adapter acts; no other private one is watched."""
UNWATCHED = (
    *("training", "max_seq_len_cached"),  # set to evaluation again; written by forwards
    *("architectures", "dtype", "gradient_checkpointing", "use_cache"),
)
"""Plain attributes that no figure depends on: the last ones are of training and of saved files."""


def check_apart(safe: PreTrainedModel, risky: PreTrainedModel) -> None:
    """Raise ValueError, with names, for an adapter in the safe model or memory of both models.

    A risky model that wraps (a part of) the safe one may change it. One model may be both.
    """
    for path, module in safe.named_modules():
        for kind in type(module).__mro__:
            if kind.__module__.startswith(ADAPTER_PACKAGES):
                raise ValueError(
                    f"the safe model holds an adapter, {kind.__module__}.{kind.__name__} at "
                    f"{path or 'its root'}: adapters change their base model in place, so the "
                    "bound would hold against the adapted one. Load the safe model once more, "
                    "without it, or merge_and_unload() an adapter that belongs to it"
                )
    if safe is risky:
        return
    # In the order of their first bytes, a tensor that overlaps an earlier one of the other model
    # overlaps the one of those that reaches furthest.
    furthest = {"safe": (0, ""), "risky": (0, "")}
    for start, end, path, name in sorted([*_spans(safe, "safe"), *_spans(risky, "risky")]):
        furthest[name] = max(furthest[name], (end, path))
        shared = {model: path for model, (last, path) in furthest.items() if last > start}
        if len(shared) == len(furthest):
            raise ValueError(
                f"the models share memory, {shared['safe']} of the safe one with {shared['risky']} "
                "of the risky one: what changes one model changes the other. Load each by itself, "
                "or make the risky one of a copy.deepcopy of the safe one"
            )


def _spans(model: PreTrainedModel, name: str) -> Iterator[tuple[int, int, str, str]]:
    """(first byte, the one after the last, path, name) of each tensor.

    A tensor without memory, as of weights that are loaded when they are needed, is at the place of
    its object, which none of another model can have.
    """
    for module_path, module in model.named_modules():
        for path, tensor in _tensors(module_path, module, [*module._parameters, *module._buffers]):
            start, size = id(tensor), 1
            if address := _address(tensor):
                start, size = address, _extent(tensor) * tensor.element_size()
            yield start, start + size, path, name


def check_hooks() -> None:
    """Raise ValueError, with its name, for a hook that is registered for the modules of all models.

    Lean layers would pass it by, and no `ModelPair` says that it was there.
    """
    for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
        if changing := _changing(hooks.values()):
            raise ValueError(
                f"a hook of all modules, {_shown(changing)}, would act on both models: remove "
                "it, or register it with one of them before the ModelPair is made"
            )


def _changing(hooks: Iterable[object]) -> list[object]:
    """Hooks without those that only look: of torch (`FlopCounterMode`) and transformers."""
    lookers = ("torch.", "transformers.")
    return [hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith(lookers)]


class ModelState:
    """The state of a model when its pair was made, as far as it can be read at every call."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        """name: "safe" or "risky", for messages."""
        self._model, self._name = model, name
        self._facts = _facts(model)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the state anew for a copy of the model, whose tensors lie elsewhere."""
        return ModelState, (self._model, self._name)

    def check(self) -> None:
        """Raise ValueError for other modules, weights, hooks, forwards or plain attributes than
        before. A model in training mode is set to evaluation again, with a warning.
        """
        if any(module.training for module in self._model.modules()):
            logger.warning("the %s model was in training mode: set to evaluation", self._name)
            self._model.train(False)
        facts = _facts(self._model)
        if facts == self._facts:
            return
        for name in self._facts | facts:
            was, now = self._facts.get(name), facts.get(name)
            if was != now:
                raise ValueError(
                    f"the {self._name} model has changed since the ModelPair was made: "
                    f"{_change(name, was, now)}. Make a new ModelPair of what it is now"
                )


class _TensorFacts(NamedTuple):
    """The facts of a tensor that need no reading of its numbers."""

    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    address: int
    version: int
    """The number of writes to it; inference tensors do not count them."""


def _facts(model: PreTrainedModel) -> dict[str, Any]:
    """Facts by name that decide what a model computes, to be compared; they keep no weight alive.

    Every call of a pair runs this, over thousands of attributes: the loops call no functions.
    """
    facts: dict[str, Any] = {}
    samples: dict[torch.device, dict[str, Tensor]] = {}
    parts: dict[str, Any] = dict(model.named_modules())
    for module in [*parts.values()]:
        if isinstance(config := vars(module).get("config"), PretrainedConfig):
            parts[type(config).__name__] = config
    for path, part in parts.items():
        # 1. The module, its hooks, a forward that is no method of its class, plain attributes.
        if isinstance(part, nn.Module):
            facts[path] = ref(part)
        for name, value in vars(part).items():
            if name in HOOKS:
                value = _changing(value.values()) if value else []
            elif name != "forward":
                if name in UNWATCHED or (name[0] == "_" and name not in SWITCHES):
                    continue
                if isinstance(value, list | tuple | dict):
                    value = _plain_text(value)
                elif not isinstance(value, bool | int | float | str):
                    continue
            facts[f"{path}.{name}".removeprefix(".")] = value
        # 2. Its tensors, without buffers that are not saved with a model, as forwards make them
        #    anew: sinusoids, frequencies of dynamic rotary embeddings.
        names = [*part._parameters, *part._buffers] if isinstance(part, nn.Module) else []
        if names and vars(part).get("rope_type") not in FIXED_ROTATIONS:
            names = [name for name in names if name not in part._non_persistent_buffers_set]
        for name, tensor in _tensors(path, part, names) if names else ():
            address, version = _address(tensor), 0 if tensor.is_inference() else tensor._version
            facts[name] = _TensorFacts(tensor.dtype, tensor.shape, tensor.device, address, version)
            if address and type(tensor.data) is Tensor:
                samples.setdefault(tensor.device, {})[name] = _sample(tensor.data)
    # 3. Some of their numbers: one transfer for all of a device, which then is waited for once.
    for of_device in samples.values():
        read, start = torch.cat([*of_device.values()]).cpu().numpy().tobytes(), 0
        for name, sample in of_device.items():
            facts[f"{name} numbers"] = read[start : start + len(sample)]
            start += len(sample)
    return facts


def _plain_text(value: object) -> str | None:
    """A list or a mapping as JSON, as it may change in place; None where it holds objects."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


def _tensors(path: str, module: nn.Module, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers with their paths; a quantized or distributed one is its parts."""
    for name in names:
        tensor = getattr(module, name)
        if hasattr(tensor, "__tensor_flatten__"):
            yield from _tensors(f"{path}.{name}", tensor, tensor.__tensor_flatten__()[0])
        elif tensor is not None:
            yield f"{path}.{name}".removeprefix("."), tensor


def _address(tensor: Tensor) -> int:
    """The address of its numbers; 0 for one without any, as on the meta device."""
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


def _extent(tensor: Tensor) -> int:
    """Numbers from its first one to its last one in memory."""
    if tensor.is_contiguous():
        return tensor.numel()
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _sample(tensor: Tensor) -> Tensor:
    """The bytes of `NUM_SAMPLED` numbers of a tensor, or a few more, evenly over its memory."""
    extent, size = _extent(tensor), tensor.element_size()
    step = max(1, extent // NUM_SAMPLED)
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    start, shape = tensor.storage_offset() * size, (-(-extent // step), size)
    return memory.set_(tensor.untyped_storage(), start, shape, (step * size, 1)).flatten()


def _change(name: str, was: Any, now: Any) -> str:
    """The change of one fact, in a clause."""
    kinds = {type(was), type(now)}
    if ReferenceType in kinds:
        return f"its module {name or 'at the root'} is another one"
    if bytes in kinds:
        return f"{name.removesuffix(' numbers')} was written to"
    if _TensorFacts not in kinds:
        return f"{name} is {_shown(now)}, it was {_shown(was)}"
    if was is None or now is None:
        return f"{name} is {'gone' if now is None else 'new'}"
    for before, after in zip(was[:3], now[:3], strict=True):
        if before != after:
            return f"{name} is {_shown(after)}, it was {_shown(before)}"
    return f"{name} was replaced or written to"


def _shown(fact: Any) -> str:
    """Plain values, tensors' dtypes and shapes, and names of functions, in one line."""
    if isinstance(fact, list):
        return ", ".join(map(_shown, fact)) or "none"
    if fact is None:
        return "none"
    text = tuple(fact) if isinstance(fact, torch.Size) else getattr(fact, "__qualname__", fact)
    return str(text).removeprefix("torch.")
