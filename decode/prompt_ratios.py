"""Log-likelihood ratios of prompts, kept in a file so that no model needs to compute them again."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

SCHEMA = "anchored-prompt-ratios/1"
SHOWN = 80
"""Most characters of a setting in an error."""


@dataclass(frozen=True, slots=True)
class PromptRatios:
    """The ratios behind the prefix debts of some prompts: for any k, seed, rule and warpers.

    They are never used for other models, settings or prompts than those they were computed with.
    """

    source: dict[str, Any]
    """What decides them, as plain JSON values: see `ratio_source`."""
    by_prompt: dict[str, Tensor] = field(default_factory=dict)
    """By `prompt_digest`: (num_positions,) float64 log p_r - log p_s, in nats of a token."""

    def __len__(self) -> int:
        return len(self.by_prompt)

    def of(self, prompt: list[int]) -> Tensor:
        """The ratios of a prompt, given by its symbols."""
        return self.by_prompt[prompt_digest(prompt)]

    def check_prompts(self, prompts: list[list[int]]) -> None:
        """Raise ValueError, in one line, for a prompt that is not among these."""
        for prompt in prompts:
            if (digest := prompt_digest(prompt)) not in self.by_prompt:
                raise ValueError(
                    f"no ratios are given for the prompt of {len(prompt)} symbols with sha256 "
                    f"{digest[:12]}: they are for {len(self)} other prompts"
                )

    def check(self, source: dict[str, Any]) -> None:
        """Raise ValueError, in one line, if they were computed with anything else than `source`."""
        for name in {**source, **self.source}:
            here, there = source.get(name), self.source.get(name)
            if here != there:
                raise ValueError(
                    f"the prompts' ratios were computed with another {name}: {_shown(there)}, "
                    f"here it is {_shown(here)}"
                )

    def save(self, path: Path | str) -> None:
        """Write a safetensors file, atomically: one tensor a prompt, the source as metadata."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        save_file(self.by_prompt, partial, {"schema": SCHEMA, "source": json.dumps(self.source)})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path | str) -> "PromptRatios":
        """Read what `save` wrote; ValueError for a file of another kind."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                by_prompt = {digest: file.get_tensor(digest) for digest in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from None
        if metadata.get("schema") != SCHEMA:
            raise ValueError(f"{path} holds no {SCHEMA}: its schema is {metadata.get('schema')}")
        return cls(json.loads(metadata["source"]), by_prompt)


def prompt_digest(prompt: list[int]) -> str:
    """sha256 (hex) of a prompt's symbols as little-endian int64."""
    return hashlib.sha256(np.array(prompt, dtype="<i8").tobytes()).hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
