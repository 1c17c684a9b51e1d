"""Whether and how far a decoder speculates."""

import logging
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from ..levels.level import Level
from ..models.attention import RowAttention
from ..models.model_pair import ModelPair
from ..models.output_layer import OutputLayer
from ..models.row_stream import RowStream
from ..rules.rule import BOTH, Rule
from ..settings import SamplingConfig, Speculate
from .draft_length import LENGTHS, DraftLength
from .speculative_batch import SpeculativeBatch

logger = logging.getLogger(__name__)


class Speculation:
    """Opens speculative batches of one decoder, which share what is learnt about drafts."""

    def __init__(self, level: Level, rule: Rule, length: DraftLength) -> None:
        self.level, self.rule, self.length = level, rule, length

    @classmethod
    def of(cls, level: Level, rule: Rule, speculate: Speculate) -> "Speculation | None":
        """None for "off", and, with one log line, for "auto" where the pair cannot speculate.

        Raises ValueError for another value, and for a number where the pair cannot speculate.
        """
        if speculate == "off":
            return None
        if speculate != "auto" and (type(speculate) is not int or speculate < 1):
            raise ValueError(f'speculate must be "auto", "off" or >= 1, got {speculate!r}')
        refusal = speculation_refusal(level, rule)
        if not refusal:
            lengths = LENGTHS if speculate == "auto" else (int(speculate),)
            return cls(level, rule, DraftLength(lengths))
        if speculate != "auto":
            raise ValueError(f"speculate={speculate} cannot run here: {refusal}")
        logger.warning("decoding without speculation: %s", refusal)
        return None

    @property
    def device_lengths(self) -> tuple[int, ...]:
        """Draft lengths of steps on the device."""
        return self.length.lengths

    def fits(self, max_length: int) -> bool:
        """Whether rows of up to this many tokens can speculate; for "auto" a log line if not.

        Raises ValueError where a draft of a fixed length does not fit.
        """
        longest = self.length.longest
        if self.level.rows_can_join(max_length + longest):
            return True
        refusal = f"rows of {max_length} tokens and drafts of {longest} exceed the models' reach"
        if self.length.is_fixed:
            raise ValueError(f"speculate={longest} cannot run here: {refusal}")
        logger.warning("decoding without speculation: %s", refusal)
        return False

    def open(self, sampling: SamplingConfig, *, num_rows: int, max_length: int) -> SpeculativeBatch:
        """An empty batch of `num_rows` rows of up to `max_length` tokens."""
        return SpeculativeBatch(
            self.level,
            self.rule,
            sampling,
            num_rows=num_rows,
            max_length=max_length,
            length=self.length,
        )


PROBED_TOKENS = (1, 7, 3, 5, 2, 6)
"""A short text; two versions of its second half must leave the first half's logits alone."""


def speculation_refusal(level: Level, rule: Rule) -> str:
    """Why a pair cannot speculate at this level under this rule, "" if it can.

    The safe model is only ever fed a token at a time; the risky one reads whole drafts, and then
    its law at a position must not depend on the drafts from there on (else the spends are wrong).
    """
    pair = level.pair
    if set(rule.streams) != set(BOTH):
        return f"the rule {rule.name} reads the {' and '.join(rule.streams)} model alone"
    if level.name != "token":
        return f"its level is the {level.name}, not the token"
    for name, model in pair.models.items():
        if pair.row_attention[name] is None:
            return f"the {name} model ({model.config.model_type}) {_fixed_memory(model.config)}"
    return _shared_scale(pair.risky.config) or _leak(pair)


def _fixed_memory(config: PretrainedConfig) -> str:
    kinds = set(getattr(config, "layer_types", None) or ())
    if any("linear" in kind or "mamba" in kind or "recurrent" in kind for kind in kinds):
        return "has a recurrent state, which cannot go back to an earlier token"
    if getattr(config, "sliding_window", None) is not None:
        return "keeps its window in a ring buffer, which cannot go back to an earlier token"
    return "decodes in whole batches, whose cache cannot go back to an earlier token"


def _shared_scale(config: PretrainedConfig) -> str:
    """Quantisation or routing by values that tokens of one forward share."""
    settings: Any = getattr(config, "quantization_config", None)
    plain: dict[str, Any] = {}
    if settings is not None:
        plain = settings if isinstance(settings, dict) else settings.to_dict()
    if plain.get("load_in_8bit") and plain.get("llm_int8_threshold", 6.0) > 0:
        return "the risky model's int8 outliers are found over all tokens of a forward"
    if _scales_by_tensor(plain):
        return "the risky model's activations share one dynamic scale over all tokens of a forward"
    capacity = [key for key, value in config.to_dict().items() if "capacity" in key and value]
    if capacity:
        return f"the risky model's experts drop tokens beyond their capacity ({capacity[0]})"
    return ""


def _scales_by_tensor(settings: object) -> bool:
    """Whether any part of the settings asks for per-tensor dynamic scales of activations."""
    if isinstance(settings, dict):
        scales = settings.get("input_activations") or settings.get("activation")
        if isinstance(scales, dict) and scales.get("dynamic"):
            return bool(scales.get("strategy") == "tensor")
        return any(_scales_by_tensor(value) for value in settings.values())
    return "PerTensor" in type(settings).__name__ or "PerTensor" in str(settings)


def _leak(pair: ModelPair) -> str:
    attention = pair.row_attention["risky"]
    assert attention is not None
    error = largest_leak(pair.risky, attention, pair.vocab_size)
    if error > 0.0:
        return f"the risky model's logits depend on later drafts (by up to {error:.2g})"
    return ""


@torch.inference_mode()
def largest_leak(model: PreTrainedModel, attention: RowAttention, vocab_size: int) -> float:
    """Largest change of a logit through later tokens of its forward, 0 for causal models."""
    half = len(PROBED_TOKENS) // 2
    first, second = PROBED_TOKENS[:half], PROBED_TOKENS[half:]
    logits = [
        _logits(model, attention, [*first, *rest], vocab_size)[:half]
        for rest in (second, tuple(reversed(second)))
    ]
    return (logits[0] - logits[1]).nan_to_num().abs().max().item()


def _logits(
    model: PreTrainedModel, attention: RowAttention, tokens: list[int], vocab_size: int
) -> Tensor:
    stream = RowStream(
        model,
        attention,
        num_rows=1,
        max_length=len(tokens) + 1,
        output=OutputLayer(model, vocab_size),
    )
    stream.read([[0]], [0])
    tokens = [token % vocab_size for token in tokens]
    return stream.feed_ends([0], [tokens], len(tokens))[0]
