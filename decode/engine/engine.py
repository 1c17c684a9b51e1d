"""Which engine decodes a batch: steps on the device where they can run, eager ones elsewhere."""

import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, get_args

import torch

from ..levels.level import Level
from ..models.attention import RowAttention, is_hooked
from ..models.model_pair import ModelPair
from ..rules.anchored import Anchored
from ..rules.rule import Rule
from ..settings import EngineName, SamplingConfig, Speculate
from .paired_batch import PairedBatch
from .speculation import Speculation

if TYPE_CHECKING:
    from .device_batch import DeviceBatch

# Triton is not there on every platform: what needs it is imported where it is used.

logger = logging.getLogger(__name__)


class Engine:
    """Opens the batches of one decoder.

    "eager" draws a token a row and looks at it; "device" keeps steps on the device and raises
    ValueError where it cannot; "auto" is "device" on CUDA where that can and agrees with "eager".
    A batch on the device is compared with eager steps when it is made, and kept with its graphs for
    calls of like sizes, see `KeptBatches`. Either can speculate.
    """

    def __init__(
        self, level: Level, rule: Rule, name: EngineName, speculate: Speculate = "off"
    ) -> None:
        if name not in get_args(EngineName):
            raise ValueError(f'engine must be "auto", "eager" or "device", got {name!r}')
        self._speculation = Speculation.of(level, rule, speculate)
        self.level, self.rule, self.name = level, rule, name
        self._kept = KeptBatches()
        self._disagreement = ""
        self._logged: set[str] = set()
        if name == "device":
            _raise_if(pair_refusal(level, rule))
            _check_device(level.pair)

    def check(self, sampling: SamplingConfig) -> None:
        """Raise ValueError if the engine that was asked for by name cannot sample like this.

        The pair is looked at again: its models may have been given hooks.
        """
        if self.name == "device":
            _raise_if(pair_refusal(self.level, self.rule) or sampling_refusal(sampling))

    def open(
        self,
        sampling: SamplingConfig,
        num_rows: int,
        max_length: int,
        *,
        prompts_differ: bool = False,
    ) -> PairedBatch:
        """An empty batch of `num_rows` rows of up to `max_length` symbols.

        prompts_differ: some models read something else than the prompt, as in a chat.
        Raises ValueError if the engine was asked for by name and cannot run or differs.
        """
        sizes = (sampling, num_rows, max_length)
        if self.name == "device":
            self.check(sampling)
            _raise_if(PROMPTS_DIFFER if prompts_differ else "")
            batch: PairedBatch | None = self._device_batch(*sizes)
            _raise_if(self._disagreement)
        elif self.name == "auto" and _is_on_cuda(self.level.pair):
            batch = self._device_batch_or_reason(*sizes, PROMPTS_DIFFER if prompts_differ else "")
        else:
            batch = None
        return self._eager_batch(*sizes) if batch is None else batch

    def _device_batch_or_reason(
        self, sampling: SamplingConfig, num_rows: int, max_length: int, refusal: str
    ) -> PairedBatch | None:
        """A batch for "auto"; None where it decodes eagerly: each reason is logged once."""
        from triton.errors import TritonError

        refusal = refusal or pair_refusal(self.level, self.rule) or sampling_refusal(sampling)
        batch = None
        try:
            batch = None if refusal else self._device_batch(sampling, num_rows, max_length)
        except (RuntimeError, TritonError) as error:
            self._disagreement = f"steps on the device fail: {error}"
        refusal = refusal or self._disagreement
        if refusal and refusal not in self._logged:
            self._logged.add(refusal)
            logger.warning("decoding step by step from the host: %s", refusal)
        return batch

    @property
    def _draft_lengths(self) -> tuple[int, ...]:
        return (0,) if self._speculation is None else self._speculation.device_lengths

    def _eager_batch(self, sampling: SamplingConfig, num_rows: int, max_length: int) -> PairedBatch:
        if self._speculation is not None and self._speculation.fits(max_length):
            return self._speculation.open(sampling, num_rows=num_rows, max_length=max_length)
        return PairedBatch(
            self.level, self.rule, sampling, num_rows=num_rows, max_length=max_length
        )

    def _device_batch(
        self, sampling: SamplingConfig, num_rows: int, max_length: int
    ) -> "DeviceBatch | None":
        """A kept batch or a new one; None if steps differ from eager ones, now or before."""
        if self._disagreement:
            return None
        if (kept := self._kept.fitting(num_rows, max_length)) is not None:
            kept.serve(sampling, num_rows)
            return kept
        make = partial(self._new_batch, sampling, num_rows, max_length)
        batch = self._kept.added(make, self.level.pair.safe.device)
        if self._disagreement:
            self._kept = KeptBatches()
            return None
        return batch

    def _new_batch(self, sampling: SamplingConfig, num_rows: int, max_length: int) -> "DeviceBatch":
        from .device_batch import DeviceBatch

        assert isinstance(self.rule, Anchored)
        batch = DeviceBatch(
            self.level,
            self.rule,
            sampling,
            num_rows=num_rows,
            max_length=max_length,
            draft_lengths=self._draft_lengths,
        )
        self._disagreement = _disagreement(batch)
        return batch


PROMPTS_DIFFER = "each model reads the messages by its own chat template"

MOST_KEPT = 8
"""Batches with their graphs; a conversation that grows needs another one now and then."""

KEPT_FRACTION = 0.125
"""Of the device's memory that kept batches may hold beside the newest."""


class KeptBatches:
    """Batches on the device of an engine, the one that was used last at the end.

    A graph is worth seconds of capturing, and holds keys and values of all its rows. So those that
    were not used for longest make room for a new one: all of them where it does not fit otherwise.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[DeviceBatch, int]] = []
        """With the bytes that each took."""

    def __len__(self) -> int:
        return len(self._batches)

    def fitting(self, num_rows: int, max_length: int) -> "DeviceBatch | None":
        """An empty batch for these sizes, if there is one."""
        for place, (batch, _) in enumerate(self._batches):
            if batch.fits(num_rows, max_length):
                self._batches.append(self._batches.pop(place))
                return batch
        return None

    def added(self, make: "Callable[[], DeviceBatch]", device: torch.device) -> "DeviceBatch":
        """A new batch, for which there is room."""
        is_cuda = device.type == "cuda"
        total = torch.cuda.get_device_properties(device).total_memory if is_cuda else 0
        while self._batches and not self._may_stay(KEPT_FRACTION * total):
            self._batches.pop(0)
        before = torch.cuda.memory_allocated(device) if is_cuda else 0
        try:
            batch = make()
        except torch.OutOfMemoryError:
            self._batches.clear()
            batch = make()
        num_bytes = torch.cuda.memory_allocated(device) - before if is_cuda else 0
        self._batches.append((batch, num_bytes))
        return batch

    def _may_stay(self, most_bytes: float) -> bool:
        """Whether all of them may, and a new one come."""
        num_bytes = sum(num_bytes for _, num_bytes in self._batches)
        return len(self._batches) < MOST_KEPT and num_bytes <= most_bytes


def _disagreement(batch: "DeviceBatch") -> str:
    """How its first steps differ from eager ones, "" if only by rounding."""
    from .device_check import largest_difference

    error, tolerance = largest_difference(batch)
    if error <= tolerance:
        return ""
    return f"steps on the device differ by {error:.2g} nats ({tolerance:.2g} allowed)"


def _is_on_cuda(pair: ModelPair) -> bool:
    return pair.safe.device.type == "cuda"


def _check_device(pair: ModelPair) -> None:
    from ...kernels.backend import check_triton

    check_triton(pair.safe.device)


def _raise_if(refusal: str) -> None:
    if refusal:
        raise ValueError(f'engine="device" cannot run here: {refusal}')


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
    if banned := pair.shared.banned_token_ids:
        return f"{len(banned)} tokens below the largest shared one are not in both tokenizers"
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
