"""Rules by name: what a ledger or a command line names becomes the rule again."""

from typing import Any

from .anchored import Anchored
from .rule import Rule
from .single_model import RiskyOnly, SafeOnly

RULES: dict[str, type[Any]] = {
    "anchored": Anchored,
    "anchored_inf": Anchored,
    "safe_only": SafeOnly,
    "risky_only": RiskyOnly,
}


def make_rule(name: str, settings: dict[str, Any]) -> Rule:
    """The rule of this name with these settings; ValueError for an unknown name or setting."""
    if name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    try:
        rule: Rule = RULES[name](**settings)
    except TypeError as error:
        raise ValueError(f"settings of rule {name}: {error}") from None
    return rule
