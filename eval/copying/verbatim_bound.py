"""What a bound says of verbatim copying: how likely a text can have become to begin with one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...decode.byte.byte_level import ByteLevel
from ...decode.decoder import Decoder
from ...decode.generation import Generation
from ...decode.models.model_pair import ModelPair
from ...decode.replay.replay import recorded_level
from ...decode.rules.event_bound import event_bound
from ...decode.rules.registry import make_rule
from ...decode.rules.single_model import SafeOnly


@dataclass(frozen=True, kw_only=True, slots=True)
class VerbatimBound:
    """Of one generation: the event that its text begins with the reference."""

    num_symbols: int
    """Tokens, or bytes, of the reference that a text of its horizon can hold."""
    safe_log_prob: float
    """Nats, log p of the event under the safe model with the generation's warpers."""
    bound: float
    """Nats, the ledger's `total_bound`; infinite where none holds."""
    probability: float
    """The largest that the event can have under p*; 1 where no bound holds."""


def verbatim_bounds(
    pair: ModelPair, generations: Sequence[Generation], references: Sequence[str]
) -> list[VerbatimBound]:
    """For each generation, what its bound leaves of the chance to begin with its reference.

    generations: of one level and one setting of warpers, none of which failed. references: texts
    that follow the prompts as they stand, leading white space included; at token level the event is
    their own tokens, which is not every spelling of them. The safe model runs once over each.
    Raises ValueError unless there are as many of both, of one level and one sampling.
    Source: `event_bound`, which says what such a probability is and what it is not.
    """
    if len(generations) != len(references):
        raise ValueError(f"got {len(generations)} generations and {len(references)} references")
    headers = [generation.ledger.header for generation in generations]
    if not headers:
        return []
    first = headers[0]
    if any((own.level, own.sampling) != (first.level, first.sampling) for own in headers):
        raise ValueError("generations must be of one level and one setting of warpers")
    level = recorded_level(pair, first.level, first.level_settings)
    events = [
        level.encode_continuation(reference)[: header.horizon]
        for header, reference in zip(headers, references, strict=True)
    ]
    byte_settings = level.byte_settings if isinstance(level, ByteLevel) else None
    decoder = Decoder(pair, SafeOnly(), level=level.name, byte_settings=byte_settings)
    scores = decoder.score(
        [header.prompt_token_ids for header in headers], events, **first.sampling
    )
    return [
        _bound(generation, score.log_prob, len(event))
        for generation, score, event in zip(generations, scores, events, strict=True)
    ]


def _bound(generation: Generation, safe_log_prob: float, num_symbols: int) -> VerbatimBound:
    header, bound = generation.ledger.header, generation.ledger.total_bound
    rule = make_rule(header.rule, header.rule_settings)
    probability = 1.0
    if math.isfinite(bound):
        divergence = rule.divergence or "kl"
        probability = event_bound(bound, min(0.0, safe_log_prob), divergence=divergence)
    return VerbatimBound(
        num_symbols=num_symbols,
        safe_log_prob=safe_log_prob,
        bound=bound,
        probability=probability,
    )
