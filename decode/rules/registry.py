"""Rules by name: what a ledger, a config or a command line names becomes the rule again.

The rules of this package come first, then those that installed packages declare as entry points of
the group "anchored.rules". Nothing is imported before a rule is asked for by its name.
"""

import importlib
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final

from ...installed import declared, entry_point, loaded

if TYPE_CHECKING:
    from .rule import Rule

GROUP: Final = "anchored.rules"
RULES: Final = {
    "anchored": "anchored.Anchored",
    "anchored_inf": "anchored.Anchored",
    "pathwise": "pathwise.Pathwise",
    "safe_only": "one_model.SafeOnly",
    "risky_only": "one_model.RiskyOnly",
    "system": "one_model.System",
    "memfree": "memfree.MemFree",
    "rcad": "mixtures.RCAD",
    "cp_fuse": "mixtures.CPFuse",
    "token_swap": "token_swap.TokenSwap",
    "no_opt": "anchored.NoOpt",
    "cold_start": "one_model.ColdStart",
    "global_switch": "one_model.GlobalSwitch",
}
"""The rules of this package by name, each as FILE.CLASS of this folder."""


def installed_rule(name: str) -> EntryPoint | None:
    """The entry point of this name in another package; None for a rule of this package.

    Raises ValueError for a name that nobody has, with those that there are, or that two have.
    """
    entry = entry_point(GROUP, name, builtin=RULES)
    if entry is None and name not in RULES:
        known = ", ".join([*RULES, *sorted(declared(GROUP))])
        raise ValueError(f"rule must be one of {known}, got {name!r}: no installed package has it")
    return entry


def rule_class(name: str) -> type[Any]:
    """The dataclass of this name, whose fields are the rule's settings, imported if it was not.

    Raises ValueError as `installed_rule` does, and for an entry point that is no dataclass.
    """
    entry = installed_rule(name)
    if entry is None:
        file, _, kind = RULES[name].partition(".")
        ours: type[Any] = getattr(importlib.import_module(f".{file}", __package__), kind)
        return ours
    other = loaded(entry)
    if not (isinstance(other, type) and is_dataclass(other)):
        raise ValueError(f"{GROUP}: {name!r} must be a dataclass, got {entry.value}")
    return other


def make_rule(name: str, settings: dict[str, Any]) -> "Rule":
    """The rule of this name with these settings.

    Raises ValueError for an unknown name or setting, and for a rule of another package whose claims
    do not hold, see `check_claims`.
    """
    kind = rule_class(name)
    if name == "anchored_inf":
        settings = {"divergence": "max", **settings}
    known = [each.name for each in fields(kind) if each.init]
    if unknown := [setting for setting in settings if setting not in known]:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(f"settings of rule {name}: there is no {unknown[0]!r}; {has}")
    try:
        rule: Rule = kind(**settings)
    except TypeError as error:
        raise ValueError(f"settings of rule {name}: {error}") from None
    if name not in RULES:
        from .claims import check_claims

        check_claims(rule, kind)
        if rule.name != name:  # no ledger of it would be read again
            both = f"{name!r} has the name {rule.name!r}"
            raise ValueError(f"{GROUP}: {both}: both must be the same")
    return rule
