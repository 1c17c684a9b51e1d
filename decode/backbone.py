"""A model without its output layer: tokens to hidden states over a row cache."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from .kv_cache import RowCache
from .lean_backbone import LeanBackbone, lean_refusal
from .row_attention import Masks, RowAttention

# R rows of one forward, T new columns, D hidden size.


class Backbone(Protocol):
    """What computes hidden states of new columns after `RowCache.place` or `place_at`."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        """(R, T, D) of token_ids, positions (R, T) int64.

        masks: of `RowAttention`; None where new columns see all before them, and each other
        causally.
        """


class ModuleBackbone:
    """The modules of transformers as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        # get_decoder() of Llama 4 is the whole model.
        is_gpt2 = model.config.model_type == "gpt2"
        self._modules = model.get_submodule("transformer" if is_gpt2 else "model")

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        hidden: Tensor = self._modules(
            input_ids=token_ids,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden


def read_prompts(
    backbone: Backbone,
    cache: RowCache,
    rows: Sequence[int],
    token_ids: Tensor,
    lengths: Sequence[int],
) -> Tensor:
    """Hidden states (R, T, D) of prompts read into empty rows; token_ids (R, T), padded behind."""
    place = cache.place(rows, token_ids.shape[1], token_ids.device)
    assert place.is_fresh, f"rows {rows} were not freed"
    # Nothing lies before these tokens and padding only after them: no mask is needed, which leaves
    # the fused attention kernels usable.
    hidden = backbone(token_ids, place.columns, None, cache)
    cache.advance(rows, lengths)
    return hidden


def backbone_of(model: PreTrainedModel, attention: RowAttention) -> Backbone:
    """The one with the least work on the host that computes this model."""
    return ModuleBackbone(model) if lean_refusal(model, attention) else LeanBackbone(model)
