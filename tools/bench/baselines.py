"""The baselines of a pair's speed: transformers with one model, and the authors' package."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel

from anchored import ModelPair

PACKAGE = "anchoreddecode"
WARPERS: dict[str, Any] = {"temperature": 0.7, "repetition_penalty": 1.1}
"""Warpers of a pair, in both packages; a model alone has the temperature only."""

Generate = Callable[[int], int]
"""Generates so many symbols for every prompt, returns how many altogether."""


def transformers_alone(model: PreTrainedModel, prompts: list[list[int]]) -> Generate:
    """transformers' generate with one model: a draw by temperature, no penalty, no ledger.

    prompts: of equal lengths.
    """
    input_ids = torch.tensor(prompts, device=model.device)

    def generate(num_tokens: int) -> int:
        sampling = GenerationConfig(
            do_sample=True,
            temperature=WARPERS["temperature"],
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            # Texts do not end early, or a batch would grow cheaper on its way.
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=model.generation_config.eos_token_id,
            pad_token_id=0,
        )
        sequences = cast(Any, model).generate(  # GenerationMixin is no part of its type
            input_ids, attention_mask=torch.ones_like(input_ids), generation_config=sampling
        )
        return int(sequences[:, input_ids.shape[1] :].numel())

    return generate


def official_pair(pair: ModelPair, prompts: list[list[int]], *, k: float) -> Generate | None:
    """The authors' package with the same pair, warpers and budget; None if not installed."""
    module = official_module()
    if module is None:
        return None
    factory = module.AnchoredDecodingFactory(
        pair.safe, pair.risky, pair.tokenizer, k_radius=k, use_prefix_debt=False
    )
    input_ids = torch.tensor(prompts, device=pair.safe.device)
    pad_token_id = 2  # any ordinary token

    def generate(num_tokens: int) -> int:
        sampling = GenerationConfig(
            max_new_tokens=num_tokens, do_sample=True, pad_token_id=pad_token_id, **WARPERS
        )
        sequences = factory.generate(input_ids=input_ids, generation_config=sampling).sequences
        return int((sequences[:, input_ids.shape[1] :] != pad_token_id).sum())

    return generate


def official_module() -> ModuleType | None:
    """The package's token-level module, None if it is not installed.

    `pip install --no-deps anchoreddecode` is enough: the module is loaded from its file, because
    importing the package needs libraries of its byte level that have no wheels.
    """
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "generate.py"
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}_generate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
