"""The authors' package `anchoreddecode`, where it is installed: a baseline for benchmarks only."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PACKAGE = "anchoreddecode"
NUM_NEWTON_STEPS = 20
"""The package's own default."""

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


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
