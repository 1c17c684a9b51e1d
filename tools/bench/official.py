"""The authors' package `anchoreddecode`, where it is installed: a baseline for benchmarks only."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .byte_pair import BytePair
from .byte_work import BUDGET, Texts
from .timing import THREAD, Stopwatch

PACKAGE = "anchoreddecode"
NUM_NEWTON_STEPS = 20
"""The package's own default."""

Step = Callable[[Tensor, Tensor, Tensor], Tensor]
NUM_DEBT_BYTES = 5
"""The package's own default."""


def official_module() -> ModuleType | None:
    """The package's token-level module, None if it is not installed.

    `pip install --no-deps anchoreddecode` is enough: the module is loaded from its file, because
    importing the package needs libraries of its byte level that have no wheels.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "generate.py"
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}_generate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def official_step() -> Step | None:
    """One step as the package does it, (risky_logits, safe_logits, budget) -> token ids (B,).

    Its solver, its fused law and a draw from that. None if the package is not installed.
    """
    module = official_module()
    if module is None:
        return None
    factory: Any = object.__new__(module.AnchoredDecodingFactory)  # a step needs no models
    factory.solver_max_iter = NUM_NEWTON_STEPS

    def step(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
        weights = factory.solve_optimization_newton(safe_logits, risky_logits, budget)
        log_probs = factory._get_logp_from_weights(*weights)[0]
        return torch.multinomial(log_probs.exp(), 1)[:, 0]

    return step


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
