"""What a pair's speed is a ratio to: one model by itself, and the authors' package where it is."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from anchored import ModelPair
from anchored.decode.engine.device_batch import CapturedStep
from anchored.decode.models.row_stream import RowStream
from anchored.kernels.sampler import inverse_cdf

PACKAGE = "anchoreddecode"
TEMPERATURE = 0.7


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


class ModelAlone:
    """Draws from one model with its own row cache: no second model, no penalty, no ledger.

    on_device: steps stay there, as one CUDA graph on CUDA, like those of the device engine; else
    the host sees every token, like the eager one.
    """

    def __init__(
        self, pair: ModelPair, name: str, *, num_rows: int, max_length: int, on_device: bool
    ) -> None:
        """Raises ValueError for a model that decodes in whole batches."""
        attention = pair.row_attention[name]
        if attention is None:
            raise ValueError(f"the {name} model decodes in whole batches")
        model = pair.models[name]
        shape, device = (num_rows, pair.vocab_size), model.device
        self._stream = RowStream(
            model,
            attention,
            num_rows=num_rows,
            max_length=max_length,
            output=pair.output_layers[name],
            scores_prompts=False,
        )
        self._rows = list(range(num_rows))
        self._step: Callable[[], None] = self._step_on_host
        self._logits = torch.zeros(shape, dtype=model.dtype, device=device)
        self._positions = torch.zeros(num_rows, dtype=torch.int64, device=device)
        if on_device:
            self._open_on_device(device)

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_tokens: int) -> int:
        """Draw `num_tokens` tokens for one prompt a row; returns how many altogether."""
        self._logits.copy_(self._stream.read(prompts, self._rows).logits)
        self._positions.copy_(torch.tensor([len(prompt) - 1 for prompt in prompts]))
        for _ in range(num_tokens - 1):
            self._step()
        self._drawn()
        for row in self._rows:
            self._stream.free(row)
        return len(prompts) * num_tokens

    def _drawn(self) -> Tensor:
        """(B,) int64, one token a row."""
        probs = (self._logits.double() / TEMPERATURE).softmax(-1)
        return inverse_cdf(probs, torch.rand_like(probs[:, 0]))

    def _step_on_host(self) -> None:
        tokens = self._drawn().tolist()
        self._logits.copy_(self._stream.feed_rows(self._rows, [[token] for token in tokens]))

    def _step_on_device(self) -> None:
        tokens = self._drawn()
        self._positions.add_(1)
        logits = self._stream.feed_at(tokens[:, None], self._positions[:, None])
        self._logits.copy_(logits[:, 0])

    @torch.inference_mode()
    def _open_on_device(self, device: torch.device) -> None:
        self._stream.reserve()
        self._stream.read([[0]], [0])  # takes the memory
        self._stream.free(0)
        self._step = self._step_on_device
        if device.type == "cuda":
            self._step = CapturedStep(self._step_on_device, device)
