"""Checks of a pair's models: apart from each other, without adapters, and as they were."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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

SWITCHES = ("_active_adapter", "_disable_adapters")
"""Attributes of peft's layers that say which adapter acts; no other private one is watched."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")

UNWATCHED = (
    *("training", "max_seq_len_cached"),  # set to evaluation again; written by forwards
    *("architectures", "dtype", "gradient_checkpointing", "use_cache"),
)
"""Plain attributes that no figure depends on: the last ones are of training and of saved files."""

SAMPLED_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def check_apart(safe: PreTrainedModel, risky: PreTrainedModel) -> None:
    """Raise ValueError, with names, for an adapter in the safe model or memory of both models.

    An adapter, active or not, is put into its base model, which is no longer what was loaded then;
    a risky model that wraps (a part of) the safe one may change it likewise. One model may be both.
    """
    for name, module in safe.named_modules():
        kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__]
        if any(kind.startswith(ADAPTER_PACKAGES) for kind in kinds):
            raise ValueError(
                f"the safe model holds an adapter, {kinds[0]} at {name or 'its root'}: adapters "
                "change their base model in place, so the bound would hold against the adapted "
                "one. Load the safe model once more, without it, or merge_and_unload() an adapter "
                "that belongs to it"
            )
    if safe is not risky and (shared := _shared_names(safe, risky)):
        raise ValueError(
            f"the models share memory, {shared['safe']} of the safe one with {shared['risky']} of "
            "the risky one: what changes one model changes the other. Load each by itself, or make "
            "the risky one of a copy.deepcopy of the safe one"
        )


def check_hooks() -> None:
    """Raise ValueError, with its name, for a hook that is registered for the modules of all models.

    Lean layers would pass it by, and no `ModelPair` says that it was there.
    """
    for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
        for hook in hooks.values():
            if not _only_looks(hook):
                raise ValueError(
                    f"a hook of all modules, {_names([hook])}, would act on both models: remove "
                    "it, or register it with one of them before the ModelPair is made"
                )


def _only_looks(hook: object) -> bool:
    """True for hooks of torch (`FlopCounterMode`) and transformers (`output_hidden_states`)."""
    return str(getattr(hook, "__module__", "")).startswith(("torch.", "transformers."))


class ModelState:
    """The state of a model when its pair was made, as far as it can be read at every call."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        """name: "safe" or "risky", for messages."""
        self._model, self._name = model, name
        self._modules = dict(model.named_modules())
        self._tensors = dict(_tensors(self._modules, fixed=True))
        self._facts = {name: _Facts.of(tensor) for name, tensor in self._tensors.items()}
        self._samples, self._settings = _samples(self._tensors), _settings(self._modules)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the state anew for a copy of the model, whose tensors lie elsewhere."""
        return ModelState, (self._model, self._name)

    def check(self) -> None:
        """Raise ValueError for another module or weight than before, or one that was written to.

        Hooks, a replaced `forward` and plain attributes of modules and configs count too.

        A model in training mode is set to evaluation again, with a warning.
        """
        modules = dict(self._model.named_modules())
        for name in self._modules | modules:
            if self._modules.get(name) is not modules.get(name):
                self._refuse(f"its module {name or 'at the root'} is another one")
        tensors = dict(_tensors(modules, fixed=True))
        for name in self._tensors | tensors:
            before = self._facts.get(name)
            after = _Facts.of(tensors[name]) if name in tensors else None
            if before != after:
                self._refuse(_Facts.change(name, before, after))
        for name, sample in _samples(tensors).items():
            if sample != self._samples[name]:
                self._refuse(f"{name} was written to")
        settings = _settings(modules)
        for name in self._settings | settings:
            was, now = self._settings.get(name, []), settings.get(name, [])
            if was != now:
                self._refuse(f"{name} is {_names(now)}, it was {_names(was)}")
        self.check_running()

    def check_running(self) -> None:
        """The same between two steps of a call, of what takes no time to ask: modes and writes."""
        if any(module.training for module in self._modules.values()):
            logger.warning("the %s model was in training mode: set to evaluation", self._name)
            self._model.train(False)
        for name, tensor in self._tensors.items():
            if _version(tensor) != self._facts[name].version:
                self._refuse(f"{name} was written to")

    def _refuse(self, change: str) -> None:
        raise ValueError(
            f"the {self._name} model has changed since the ModelPair was made: {change}. Make a "
            "new ModelPair of what it is now"
        )


class _Facts(NamedTuple):
    """The facts of a tensor that are known without reading it."""

    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    address: int
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> "_Facts":
        return cls(tensor.dtype, tensor.shape, tensor.device, _address(tensor), _version(tensor))

    @staticmethod
    def change(name: str, before: "_Facts | None", after: "_Facts | None") -> str:
        if before is None or after is None:
            return f"{name} is {'gone' if after is None else 'new'}"
        for was, now in zip(before[:3], after[:3], strict=True):
            if was != now:
                return f"{name} is {_plain(now)}, it was {_plain(was)}"
        return f"{name} was replaced or written to"


def _plain(fact: object) -> str:
    return str(tuple(fact) if isinstance(fact, torch.Size) else fact).removeprefix("torch.")


def _tensors(modules: Mapping[str, nn.Module], *, fixed: bool) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name.

    fixed: without buffers that some forward makes anew. Those are not saved with the model:
    frequencies of dynamic rotary embeddings, sinusoids of texts that grow.
    """
    for prefix, module in modules.items():
        is_fixed = getattr(module, "rope_type", "") in FIXED_ROTATIONS
        left_out = module._non_persistent_buffers_set if fixed and not is_fixed else ()
        for name, tensor in (module._parameters | module._buffers).items():
            if tensor is not None and name not in left_out:
                yield from _parts(f"{prefix}.{name}" if prefix else name, tensor)


def _parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor itself, or those that a quantized or a distributed one is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{part}", getattr(tensor, part))


def _address(tensor: Tensor) -> int:
    """The address of its numbers; 0 for one without any, as on the meta device."""
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


def _version(tensor: Tensor) -> int:
    """The number of writes to it; inference tensors do not count them."""
    return 0 if tensor.is_inference() else tensor._version


def _settings(modules: Mapping[str, nn.Module]) -> dict[str, list[Any]]:
    """What a forward follows next to weights, by name: hooks, a `forward` of one object, and plain
    values of modules and their configs."""
    held = [vars(module).get("config") for module in modules.values()]
    configs = {id(config): config for config in held if isinstance(config, PretrainedConfig)}
    named = [(type(config).__name__, config) for config in configs.values()]
    settings: dict[str, list[Any]] = {}
    for path, thing in [*modules.items(), *named]:
        for name, value in vars(thing).items():
            if name in HOOKS:
                values = [hook for hook in value.values() if not _only_looks(hook)]
            elif name == "forward":
                values = [value]
            elif _is_watched(name) and _is_plain(value):
                values = [str(value)]
            else:
                continue
            settings[f"{path}.{name}".removeprefix(".")] = values
    return settings


def _is_watched(name: str) -> bool:
    return name in SWITCHES or not (name in UNWATCHED or name.startswith("_"))


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool | int | float | str)


def _names(values: list[Any]) -> str:
    """Plain values, and names of hooks and functions, in one line."""
    names = (v if isinstance(v, str) else getattr(v, "__qualname__", type(v)) for v in values)
    return ", ".join(map(str, names)) or "none"


def _samples(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """`NUM_SAMPLED` numbers or a few more of each tensor that can be read, as bytes by name."""
    groups: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        data = tensor.data
        is_plain = type(data) is Tensor and data.layout == torch.strided and _address(data)
        if is_plain and (data.dtype.is_floating_point or data.dtype in SAMPLED_INTEGERS):
            groups.setdefault((data.device, data.dtype), {})[name] = _sample(data)
    sampled: dict[str, bytes] = {}
    for samples in groups.values():
        # One transfer for all of a device, which then is waited for once.
        read, start = torch.cat([*samples.values()]).view(torch.uint8).cpu().numpy().tobytes(), 0
        for name, sample in samples.items():
            sampled[name] = read[start : start + sample.nbytes]
            start += sample.nbytes
    return sampled


def _sample(data: Tensor) -> Tensor:
    step = max(1, data.numel() // NUM_SAMPLED)
    if data.is_contiguous():
        return data.view(-1)[::step]
    chosen = torch.arange(0, data.numel(), step, device=data.device)
    return data[torch.unravel_index(chosen, data.shape)]


def _shared_names(safe: PreTrainedModel, risky: PreTrainedModel) -> dict[str, str]:
    """The first tensors that lie in the same memory, in whole or in part, by model; {} for none."""
    furthest: dict[str, tuple[int, str]] = {}
    for start, end, name, model in sorted([*_spans(safe, "safe"), *_spans(risky, "risky")]):
        for other, (last, theirs) in furthest.items():
            if other != model and start < last:
                return {model: name, other: theirs}
        furthest[model] = max(furthest.get(model, (0, "")), (end, name))
    return {}


def _spans(model: PreTrainedModel, name: str) -> Iterator[tuple[int, int, str, str]]:
    """(first byte, the one after the last, name, model) of all that a model holds.

    A tensor without memory, as of weights that are loaded when they are needed, is at the place of
    its object, which none of another model can have.
    """
    for path, part in _tensors(dict(model.named_modules()), fixed=False):
        start, size = _address(part) or id(part), 1
        if _address(part):
            steps = zip(part.shape, part.stride(), strict=True)
            size = part.element_size() * (1 + sum((n - 1) * step for n, step in steps))
        yield start, start + size, path, name
