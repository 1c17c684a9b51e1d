"""Rules by name: what a ledger or a command line names becomes the rule again."""

from typing import Any

from .anchored import Anchored, NoOpt
from .memfree import MemFree
from .mixtures import RCAD, CPFuse
from .one_model import ColdStart, GlobalSwitch, RiskyOnly, SafeOnly, System
from .rule import Rule
from .token_swap import TokenSwap

RULES: dict[str, type[Any]] = {
    "anchored": Anchored,
    "anchored_inf": Anchored,
    "safe_only": SafeOnly,
    "risky_only": RiskyOnly,
    "system": System,
    "memfree": MemFree,
    "rcad": RCAD,
    "cp_fuse": CPFuse,
    "token_swap": TokenSwap,
    "no_opt": NoOpt,
    "cold_start": ColdStart,
    "global_switch": GlobalSwitch,
}


def make_rule(name: str, settings: dict[str, Any]) -> Rule:
    """The rule of this name with these settings; ValueError for an unknown name or setting."""
    if name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    if name == "anchored_inf":
        settings = {"divergence": "max", **settings}
    try:
        rule: Rule = RULES[name](**settings)
    except TypeError as error:
        raise ValueError(f"settings of rule {name}: {error}") from None
    return rule
