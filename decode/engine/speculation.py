"""Whether and how far a decoder speculates."""

import logging

from ..levels.level import Level
from ..models.capabilities import fixed_memory, largest_leak, shared_scale
from ..rules.rule import BOTH, Rule
from ..settings import Speculate
from .speculative_batch import LENGTHS, DraftLength

logger = logging.getLogger(__name__)


def draft_length(level: Level, rule: Rule, speculate: Speculate) -> DraftLength | None:
    """How far the batches of a decoder draft, which share what is learnt about drafts.

    None for "off", and, with one log line, for "auto" where the pair cannot speculate. Raises
    ValueError for another value, and for a number where the pair cannot speculate.
    """
    if speculate == "off":
        return None
    if speculate != "auto" and (type(speculate) is not int or speculate < 1):
        raise ValueError(f'speculate must be "auto", "off" or >= 1, got {speculate!r}')
    refusal = speculation_refusal(level, rule)
    if not refusal:
        return DraftLength(LENGTHS if speculate == "auto" else (int(speculate),))
    if speculate != "auto":
        raise ValueError(f"speculate={speculate} cannot run here: {refusal}")
    logger.warning("decoding without speculation: %s", refusal)
    return None


def drafts_fit(length: DraftLength, level: Level, max_length: int) -> bool:
    """Whether rows of up to this many tokens can speculate; for "auto" a log line if not.

    Raises ValueError where a draft of a fixed length does not fit.
    """
    longest = length.longest
    if level.rows_can_join(max_length + longest):
        return True
    refusal = f"rows of {max_length} tokens and drafts of {longest} exceed the models' reach"
    if len(length.lengths) == 1:
        raise ValueError(f"speculate={longest} cannot run here: {refusal}")
    logger.warning("decoding without speculation: %s", refusal)
    return False


def speculation_refusal(level: Level, rule: Rule) -> str:
    """Why a pair cannot speculate at this level under this rule, "" if it can.

    The safe model is only ever fed a token at a time; the risky one reads whole drafts, and then
    its law at a position must not depend on the drafts from there on (else the spends are wrong).
    """
    pair = level.pair
    if len(rule.streams) == 1:
        return f"the rule {rule.name} reads the {' and '.join(rule.streams)} model alone"
    if dict(rule.streams) != BOTH or rule.looks_back:
        return f"the rule {rule.name} reads more than both models' next tokens"
    if level.name != "token":
        return f"its level is the {level.name}, not the token"
    for name, model in pair.models.items():
        if pair.row_attention[name] is None:
            return f"the {name} model ({model.config.model_type}) {fixed_memory(model.config)}"
    if refusal := shared_scale(pair.risky.config):
        return refusal
    attention = pair.row_attention["risky"]
    assert attention is not None
    if error := largest_leak(pair.runners["risky"], attention):
        return f"the risky model's logits depend on later drafts (by up to {error:.2g})"
    return ""
