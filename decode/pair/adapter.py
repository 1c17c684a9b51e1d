"""PEFT adapters: whether one can be merged into its base model, and that it was merged right."""

import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import in_one_line
from ..streams.capabilities import allowed_nats

NUM_COMPARED = 32
"""Tokens, spread evenly over the vocabulary, that are read before and after merging. All that an
output layer knows shows in the logits of a single one."""

PEFT_ASKS = "`is_gradient_checkpointing` is deprecated"
"""The warning of transformers about what peft asks of each model; no user can change it."""

IGNORED = (
    *("Found missing adapter keys", "Model (with|has) `tie_word_embeddings=True`"),
    *("Input and output embeddings are no longer tied", PEFT_ASKS),
)
"""Beginnings of warnings; missing tensors and tied weights are checked here."""


def check_adapter(adapter: Path, *, is_quantized: bool) -> None:
    """Before the base model is loaded: ModuleNotFoundError without peft, ValueError for rounding.

    is_quantized: of the base model, whose rounded weights would have to be rounded once more.
    """
    if find_spec("peft") is None:
        raise ModuleNotFoundError(
            f"{adapter} is a PEFT adapter, but peft is not installed: pip install 'anchored[peft]'",
            name="peft",
        )
    if is_quantized:
        raise ValueError(f"the adapter in {adapter} cannot be merged into quantized weights")


def merged(model: PreTrainedModel, adapter: Path) -> PreTrainedModel:
    """The base model with the adapter's changes added to its weights, in place.

    Weights that two layers share, tied embeddings above all, become two where the adapter changes
    one of them. Raises ValueError, in one line, for an adapter that cannot be read, that lacks a
    tensor or holds one too many, that does not fit or whose method cannot be merged, and for a
    merged model that is another one than the adapted model by more than rounding explains.
    """
    from peft import PeftModel

    with in_one_line(f"the adapter in {adapter} cannot be merged"), warnings.catch_warnings():
        for message in IGNORED:
            warnings.filterwarnings("ignore", message)
        # 1. The adapter next to its base model, whole and without a tensor that fits nowhere.
        size = model.config.get_text_config().vocab_size
        tokens = torch.linspace(0, size - 1, NUM_COMPARED).long()[None].to(model.device)
        adapted = PeftModel.from_pretrained(model, str(adapter)).eval()
        _check_tensors(adapted, adapter)
        before = _logits(adapted, tokens)
        # 2. Merged into weights that no other layer reads.
        _separate_weights(adapted)
        whole: PreTrainedModel = adapted.merge_and_unload()
        # 3. One forward each way.
        changes = _logits(whole, tokens).log_softmax(-1) - before.log_softmax(-1)
        off, allowed = changes.abs().max().item(), allowed_nats(whole.dtype, before)
        if not off <= allowed:
            raise ValueError(
                f"the merged model's log-probabilities are off by {off:.2g} nats from those of the "
                f"adapted one ({allowed:.2g} allowed)"
            )
        return whole


def _check_tensors(adapted: Any, adapter: Path) -> None:
    """Raise ValueError unless the file holds the adapter's tensors, all of them and no others."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    config = adapted.active_peft_config
    if config.is_prompt_learning:
        raise ValueError(f"{config.peft_type.value} changes no weights")
    weights = load_peft_weights(str(adapter), device="cpu")
    stored = set(weights)
    expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if missing := sorted(expected - stored):
        raise ValueError(f"it lacks {missing[0]} ({len(missing)} in all)")
    loaded: Any = set_peft_model_state_dict(adapted, weights)
    if unexpected := sorted(loaded.unexpected_keys):
        raise ValueError(
            f"it holds {unexpected[0]} ({len(unexpected)} in all), which fits nothing in its base"
        )


def _separate_weights(adapted: nn.Module) -> None:
    """Give every layer that the adapter changes separate weights.

    An adapter on one of two layers that share a weight (tied embeddings, replicated layers) changes
    that layer alone; merging would write the change into both.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    uses = Counter(id(w) for module in adapted.modules() for w in module._parameters.values())
    for layer in adapted.modules():
        if isinstance(layer, BaseTunerLayer):
            base = layer.get_base_layer()
            for name, weight in [*base.named_parameters(recurse=False)]:
                if uses[id(weight)] > 1:
                    setattr(base, name, nn.Parameter(weight.detach().clone(), False))


@torch.inference_mode()
def _logits(model: Any, tokens: Tensor) -> Tensor:
    """(tokens, V) float64 on the CPU."""
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    return logits.cpu().double()
