"""The claims of a rule, checked before anything is decoded, recorded or verified by them."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ...kernels.reference import DIVERGENCES
from .rule import SAFE, NextToken, OpenRule, Rule, StepInputs, StreamSpec, Symbols

logger = logging.getLogger(__name__)


FLAGS = ("looks_back", "is_certified", "is_projection", "charges_debt", "retokenizes")


def _wrong_type(rule: Rule | OpenRule) -> str:
    """The first fault in the types of a rule's claims, "" if there is none.

    Types are exact: what derives from str or bool may compare as it likes.
    """
    if type(rule.name) is not str:
        return f"must have a str for its name, got {rule.name!r}"
    for flag in FLAGS:
        if type(getattr(rule, flag)) is not bool:
            return f"must have True or False for {flag}, got {getattr(rule, flag)!r}"
    if not isinstance(rule.streams, Mapping):
        return f"must have streams by name, got {rule.streams!r}"
    for name, spec in rule.streams.items():
        is_plain = type(spec) is StreamSpec and type(spec.takes_passage) is bool
        if not is_plain or {type(name), type(spec.model), type(spec.preface)} != {str}:
            return f"must have a StreamSpec of plain values for each of its streams, got {spec!r}"
        if spec.model not in ("safe", "risky"):
            return f'must read "safe" or "risky" by its stream {name!r}, got {spec.model!r}'
    return ""


def _false_claim(rule: Rule | OpenRule) -> str:
    """Why a rule that says it is certified cannot be, "" where nothing speaks against it.

    `verify` computes the named divergence of p* from the stream "safe", and judges by the stream
    "risky" whether tokens were chosen within rounding; the rule decides neither.
    """
    if not rule.is_certified:
        return ""
    divergence, charge, safe = rule.divergence, rule.charge, rule.streams.get("safe")
    # Drawn tokens are charged where `verify` knows p* by itself.
    charges = ["worst", "drawn"][: 1 + rule.is_projection] if divergence == "max" else ["mean"]
    if type(divergence) is not str or divergence not in DIVERGENCES:
        fault = f"its divergence must be one of {', '.join(DIVERGENCES)}, got {divergence!r}"
    elif type(charge) is not str or charge not in charges:
        fault = f"its charge must be {' or '.join(charges)}, got {charge!r}"
    elif safe != SAFE:
        fault = f'its stream "safe" must be the safe model on the prompt alone, got {safe}'
    elif "risky" in rule.streams and rule.streams["risky"].model != "risky":
        fault = f'its stream "risky" must be the risky model, got {rule.streams}'
    elif rule.retokenizes:
        fault = "it cannot decode tokens that the safe model does not have"
    elif type(rule.gain) not in (int, float) or rule.gain != 1.0:
        fault = f"its gain must be 1, got {rule.gain!r}"
    else:
        return ""
    return f"is certified, so {fault}"


def check_claims(rule: Rule | OpenRule, kind: type[Rule]) -> None:
    """Raise ValueError, in one line, for claims of a kind of rule that are of no use or false."""
    if wrong := _wrong_type(rule) or _false_claim(rule):
        raise ValueError(f"the rule {kind.__name__} {wrong}")


def opened(rule: Rule, level: Symbols) -> OpenRule:
    """The rule opened for a level, its claims checked.

    One of another package is handed copies of its inputs, so that what it writes into them reaches
    nothing else. Raises ValueError as `check_claims` does, and for a level at which the rule cannot
    decode.
    """
    open_rule = rule.open(level)
    if _is_of_this_package(type(rule)):
        return open_rule
    if type(open_rule) is not OpenRule:
        raise ValueError(
            f"the rule {type(rule).__name__} must open as an OpenRule, got {open_rule!r}"
        )
    check_claims(open_rule, type(rule))
    return replace(open_rule, next_token=partial(_by_copies, open_rule.next_token))


def _is_of_this_package(kind: type[Rule]) -> bool:
    module = sys.modules.get(kind.__module__)
    is_here = kind.__module__.startswith(f"{__package__}.")
    return is_here and getattr(module, kind.__qualname__, None) is kind


def _by_copies(next_token: Callable[[StepInputs], NextToken], inputs: StepInputs) -> NextToken:
    return next_token(
        replace(
            inputs,
            logits={name: logits.clone() for name, logits in inputs.logits.items()},
            budget=inputs.budget.clone(),
            uniform=None if inputs.uniform is None else inputs.uniform.clone(),
        )
    )


def warn_of_left_out(rule: OpenRule) -> None:
    """Log one line of the words that a rule leaves out at its level, if there are any."""
    if rule.used_words is not None and (left_out := rule.used_words["left_out"]):
        logger.warning(
            "%s leaves out %d of %d words, which are not one token of both models: %s",
            rule.name,
            len(left_out),
            len(left_out) + len(rule.used_words["swapped"]),
            ", ".join(left_out),
        )
