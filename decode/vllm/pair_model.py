"""One model of vLLM that holds two: its logits are p_s, those of p_r are kept apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.backends import set_model_tag
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.utils import maybe_prefix
from vllm.transformers_utils.config import get_config

from .pair_description import EngineSettings

RISKY = "risky."
NAMES = ("safe", "risky")

# N tokens of a step, R rows of logits, H_s and H_r hidden sizes, V vocabulary.


class AnchoredPairForCausalLM(nn.Module):
    """p_s and p_r side by side: every token passes both bodies, each with KV caches.

    `compute_logits` returns the SAFE model's rows, so whatever the engine samples or reports
    without asking the fusion (raw logprobs, prompt logprobs, a processor that was not loaded) is
    p_s: a mistake costs utility, never the bound.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        facts = EngineSettings.of(vllm_config.additional_config).facts
        # The overrides by which the engine finds this class are in the safe model's config.
        configs = {name: get_config(getattr(facts, name), False) for name in NAMES}
        bodies = {}
        for name in NAMES:
            folder = getattr(facts, name) if name in facts.quantization else None
            # A quantized folder names its layers from its root.
            layer_prefix = prefix if folder else maybe_prefix(prefix, name)
            with set_model_tag(name):
                bodies[name] = _body(vllm_config, configs[name], folder, layer_prefix)
        self.safe: Any = bodies["safe"]
        self.risky: Any = bodies["risky"]
        safe, risky = (configs[name].get_text_config() for name in NAMES)
        self._safe_width, self._num_risky_rows = safe.hidden_size, risky.vocab_size
        self._must_clamp = risky.vocab_size < safe.vocab_size
        self.secondary_weights = [
            DefaultModelLoader.Source(facts.risky, None, prefix=RISKY, fall_back_to_pt=False)
        ]
        self.rows: tuple[Tensor, Tensor] | None = None
        """(R, V) each, of the safe and the risky model: the rows that were computed last."""
        self.num_drawn = 0
        """Number of these rows that were drawn from: the engine asks for parts of many drafts."""
        self.hidden: Tensor | None = None
        """(N, H_s + H_r) of the step's tokens; None where a CUDA graph was replayed."""
        self.last_hidden: Tensor | None = None
        """(R, H_s + H_r) of the rows that were computed last."""

    @staticmethod
    def get_model_state_cls() -> type:
        """The hook of the V2 runner, the only one that has it."""
        from .pair_state import PairState

        return PairState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """The safe model's: asked for by the loader, not used, as no embeddings are taken."""
        embeddings: Tensor = self.safe.embed_input_ids(input_ids)
        return embeddings

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """(N, H_s + H_r), both bodies' hidden states; the engine's gathering of rows keeps the
        two together. Raises ValueError for embeddings and for pipeline stages."""
        if inputs_embeds is not None or intermediate_tensors is not None:
            raise ValueError("a pair takes token ids only, on one pipeline stage")
        # An id that only the safe model has is banned and fails its request: never read by p_r.
        risky_ids = input_ids.clamp(max=self._num_risky_rows - 1) if self._must_clamp else input_ids
        hidden = torch.cat([self.safe(input_ids, positions), self.risky(risky_ids, positions)], -1)
        self.hidden = hidden
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """(R, V) logits of the safe model; the risky one's are kept in `rows`."""
        safe, risky = self.both_logits(hidden_states)
        self.last_hidden = hidden_states
        if safe is not None and risky is not None:  # only some ranks gather
            # The engine edits logits in place (penalties): what is fused is a copy.
            self.rows, self.num_drawn = (safe.clone(), risky), 0
        return safe

    def both_logits(self, hidden_states: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(R, V) logits of the safe and of the risky model after hidden states (R, H_s + H_r)."""
        width = self._safe_width
        safe = self.safe.compute_logits(hidden_states[:, :width].contiguous())
        return safe, self.risky.compute_logits(hidden_states[:, width:].contiguous())

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Both checkpoints, the safe one first as the loader reads them; returns what was set."""
        loaded: set[str] = set()
        # Read on the way: neither checkpoint is held in memory.
        for is_risky, named in itertools.groupby(weights, lambda pair: pair[0].startswith(RISKY)):
            name, body = ("risky", self.risky) if is_risky else ("safe", self.safe)
            parameters = body.load_weights((key.removeprefix(RISKY), w) for key, w in named)
            loaded |= {f"{name}.{parameter}" for parameter in parameters}
        return loaded


def _body(vllm_config: Any, config: Any, quantized: str | None, prefix: str) -> nn.Module:
    """quantized: folder of a quantized checkpoint; the engine knows the safe model's way only."""
    alone = vllm_config.with_hf_config(config, architectures=config.architectures)
    alone.quant_config = quantized and _quantization(vllm_config, quantized)
    body: nn.Module = initialize_model(vllm_config=alone, prefix=prefix)
    return body


def _quantization(vllm_config: Any, folder: str) -> Any:
    """Raises ValueError, as vLLM does, for a way that this device or this dtype has not."""
    engine = vllm_config.model_config
    quantized = ModelConfig(
        model=folder, tokenizer=folder, dtype=engine.dtype, max_model_len=engine.max_model_len
    )
    return VllmConfig.get_quantization_config(quantized, vllm_config.load_config)
