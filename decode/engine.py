"""Which engine decodes a batch: steps on the device where they can run, eager ones elsewhere."""

import logging
from typing import TYPE_CHECKING, get_args

from .choices import EngineName, Speculate
from .device_refusal import pair_refusal, sampling_refusal
from .level import Level
from .model_pair import ModelPair
from .paired_batch import PairedBatch
from .rules.anchored import Anchored
from .rules.rule import Rule
from .sampling_config import SamplingConfig
from .speculation import Speculation

if TYPE_CHECKING:
    from .device_batch import DeviceBatch

# Triton is not there on every platform: what needs it is imported where it is used.

logger = logging.getLogger(__name__)


class Engine:
    """Opens the batches of one decoder.

    "eager" draws a token a row and looks at it; "device" keeps steps on the device and raises
    ValueError where it cannot; "auto" is "device" on CUDA where that can and agrees with "eager".
    One batch on the device is kept with its graph, and its memory, for calls of the same size.
    Either can speculate.
    """

    def __init__(
        self, level: Level, rule: Rule, name: EngineName, speculate: Speculate = "off"
    ) -> None:
        if name not in get_args(EngineName):
            raise ValueError(f'engine must be "auto", "eager" or "device", got {name!r}')
        self._speculation = Speculation.of(level, rule, speculate)
        self.level, self.rule, self.name = level, rule, name
        self._kept: DeviceBatch | None = None
        self._disagreement: str | None = None
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

    def open(self, sampling: SamplingConfig, num_rows: int, max_length: int) -> PairedBatch:
        """An empty batch of `num_rows` rows of up to `max_length` symbols.

        Raises ValueError if the engine was asked for by name and cannot run or differs.
        """
        if self.name == "device":
            self.check(sampling)
            _raise_if(self._found_disagreement())
        elif self.name == "eager" or self._logged_refusal(sampling):
            return self._eager_batch(sampling, num_rows, max_length)
        return self._device_batch(sampling, num_rows, max_length)

    def _logged_refusal(self, sampling: SamplingConfig) -> str:
        """Why "auto" decodes eagerly, "" if it does not; each reason is logged once."""
        if not _is_on_cuda(self.level.pair):
            return "there is no CUDA device"
        refusal = pair_refusal(self.level, self.rule) or sampling_refusal(sampling)
        refusal = refusal or self._found_fault()
        if refusal and refusal not in self._logged:
            self._logged.add(refusal)
            logger.warning("decoding step by step from the host: %s", refusal)
        return refusal

    def _found_fault(self) -> str:
        """As `_found_disagreement`; an error of the device or of a kernel is one too."""
        from triton.errors import TritonError

        try:
            return self._found_disagreement()
        except (RuntimeError, TritonError) as error:
            self._disagreement = f"steps on the device fail: {error}"
            return self._disagreement

    def _found_disagreement(self) -> str:
        """How a few steps differ from eager ones, "" if only by rounding; looked at once."""
        from .device_check import largest_difference

        if self._disagreement is None:
            assert isinstance(self.rule, Anchored)
            error, tolerance = largest_difference(
                self.level.pair, self.rule.divergence, num_drafts=max(self._draft_lengths)
            )
            self._disagreement = (
                ""
                if error <= tolerance
                else f"steps on the device differ by {error:.2g} nats ({tolerance:.2g} allowed)"
            )
        return self._disagreement

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
    ) -> "DeviceBatch":
        from .device_batch import DeviceBatch

        kept = self._kept
        if kept is not None and kept.fits(num_rows, max_length):
            kept.warp_by(sampling)
            return kept
        assert isinstance(self.rule, Anchored)
        self._kept = None  # its memory is free before the next one takes its own
        self._kept = DeviceBatch(
            self.level,
            self.rule,
            sampling,
            num_rows=num_rows,
            max_length=max_length,
            draft_lengths=self._draft_lengths,
        )
        return self._kept


def _is_on_cuda(pair: ModelPair) -> bool:
    return pair.safe.device.type == "cuda"


def _check_device(pair: ModelPair) -> None:
    from ..kernels.triton_launch import check_device

    check_device(pair.safe.device)


def _raise_if(refusal: str) -> None:
    if refusal:
        raise ValueError(f'engine="device" cannot run here: {refusal}')
