"""The authors' package at byte level, where it is installed: what ours is compared with."""

import importlib
from types import ModuleType
from typing import Any

import torch

from ..timing import THREAD, Stopwatch
from .pair import BytePair
from .work import BUDGET, Texts

NUM_DEBT_BYTES = 5
"""The package's own default."""


def official_bytes(pair: BytePair) -> "OfficialBytes | None":
    """The package over both models, None if it cannot be imported.

    `pip install anchoreddecode` compiles PyICU, which needs a compiler and the ICU headers.
    """
    try:
        module = importlib.import_module("anchoreddecode.generate_byte")
    except ImportError:
        return None
    return OfficialBytes(module, pair)


class OfficialBytes:
    """Its samplers of both models, one text at a time; its fusion of the two laws is left out."""

    def __init__(self, module: ModuleType, pair: BytePair) -> None:
        self._module = module
        self._models = {
            f"tcs_{name}": module.ByteConditioning(
                each.model, tokenizer=each.pretrained_tokenizer()
            )
            for name, each in pair.models.items()
        }

    def walk_s(self, texts: Texts) -> float:
        """Both models' laws behind every byte of the rest."""
        sampler = self._sampler()
        _read(sampler, bytes(texts.prompt))
        with Stopwatch(THREAD) as watch:
            for byte in texts.rest:
                _read(sampler, bytes([byte]))
        return watch.seconds

    def debt_s(self, texts: Texts) -> float:
        """The prefix debt of the prompt."""
        sampler = self._sampler()
        with Stopwatch(THREAD) as watch:
            self._debt(sampler, texts)
        return watch.seconds

    def first_byte_s(self, texts: Texts, *, has_debt: bool) -> float:
        """Both models' laws behind the prompt, with its debt or without."""
        sampler, rest = self._sampler(), bytes(texts.prompt)
        with Stopwatch(THREAD) as watch:
            if has_debt:
                self._debt(sampler, texts)
                rest = b""  # the samplers stand behind the prompt then
            _read(sampler, rest)
        return watch.seconds

    def _sampler(self) -> Any:
        return self._module.BytewiseAnchoredDecoding(1, k_radius=BUDGET, **self._models)

    def _debt(self, sampler: Any, texts: Texts) -> None:
        prompt = bytes(texts.prompt).decode()
        self._module.get_prefix_debt_bytewise(sampler, [prompt], n=NUM_DEBT_BYTES)


@torch.inference_mode()
def _read(sampler: Any, data: bytes) -> None:
    sampler.add_context([data])
    for model in (sampler.bs_safe, sampler.bs_risky):
        model.get_dists()
