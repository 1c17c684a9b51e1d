"""What a pair's speed is a ratio to: one model by itself, and the authors' package where it is."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from anchored import ModelPair
from anchored.decode.engine.device_batch import CapturedStep
from anchored.decode.models.row_stream import RowStream
from anchored.kernels.sampler import inverse_cdf

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


TEMPERATURE = 0.7


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
