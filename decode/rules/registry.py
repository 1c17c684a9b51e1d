"""Rules by name, and the options of a budget: what a ledger or a command line has becomes a rule.

The rules of this package come first, then those that installed packages declare as entry points of
the group "anchored.rules". Torch is imported when a rule is made, so that --help costs nothing.
"""

import importlib
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final

from ...fields import field_error, field_types
from ...installed import declared, entry_point, loaded
from ..settings import DebtMode, Divergence, Schedule

if TYPE_CHECKING:
    from .rule import Rule

GROUP: Final = "anchored.rules"
RULES: Final = {
    "anchored": "anchored.Anchored",
    "anchored_inf": "anchored.Anchored",
    "pathwise": "anchored.Pathwise",
    "safe_only": "anchored.SafeOnly",
    "risky_only": "unbounded.RiskyOnly",
    "system": "unbounded.System",
    "memfree": "memfree.MemFree",
    "rcad": "mixtures.RCAD",
    "cp_fuse": "mixtures.CPFuse",
    "token_swap": "mixtures.TokenSwap",
    "no_opt": "anchored.NoOpt",
    "cold_start": "unbounded.ColdStart",
    "global_switch": "unbounded.GlobalSwitch",
}
"""The rules of this package by name, each as FILE.CLASS of this folder."""


DEFAULT_K = 1.5
"""Nats per step where a command or a request names neither k nor K."""


# Both classes have no slots, so that options may have one of them as a second base.
@dataclass(frozen=True)
class BudgetSize:
    """The size of a budget, by one of two numbers."""

    k: float | None = None
    """Budget in nats per token, or per byte at byte level: K = k * horizon, and the bank. Commands
    take 1.5 unless K is named, and 1 for the rule pathwise."""
    K: float | None = field(default=None, kw_only=True)
    """Budget in nats of the whole text, in place of k."""


@dataclass(frozen=True, kw_only=True)
class DebtOptions:
    """The debt of a prompt, nats that are not there for its continuation."""

    debt: DebtMode = "top"
    """Nats that the prompt's log-likelihood ratios cost before the first token: top charges the
    mean of the largest, average that of all, none nothing."""
    debt_window: int = 5
    """Tokens of the prompt whose ratios the top debt is the mean of."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(DebtOptions):
    """The way in which a budget of any size is counted and spent."""

    budget: Schedule = "adaptive"
    """Use of unspent nats: adaptive carries them over, global frees all of them from the start,
    fixed loses them, and charges no debt."""
    bank: float | None = None
    """Nats of a bucket that is full at the start, gets k per token and holds no more, so that K =
    bank + k * horizon and any w tokens in a row spend at most bank + w k; without one, adaptive
    carries over all that is left of K = k * horizon. The rule pathwise has one of 20 nats unless
    another is named."""
    divergence: Divergence = "kl"
    """Divergence that each step spends and the budget bounds: kl the mean log-ratio of p* to the
    safe model, max its largest value."""

    def budget_options(self) -> dict[str, Any]:
        """These options by name, to make a rule of."""
        return {name: getattr(self, name) for name in field_types(BudgetOptions)}


BUDGET_OPTIONS: Final = (*field_types(BudgetSize), *field_types(BudgetOptions))
"""The names of all options of a budget."""
BUDGETED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("anchored", "anchored_inf", "no_opt"), BUDGET_OPTIONS),
    "pathwise": ("k", "bank", "debt", "debt_window"),
    "cold_start": ("k",),
    "global_switch": ("K",),
}
"""The budget options that a rule of this package takes, by its name."""


def budget_names(rule: str) -> tuple[str, ...]:
    """The options of a budget that the rule of this name takes: of another package's rule, those
    that it has as fields.

    ValueError for an unknown rule; none is imported but that of another package.
    """
    if installed_rule(rule) is None:
        return BUDGETED.get(rule, ())
    names = field_types(rule_class(rule))
    return tuple(name for name in BUDGET_OPTIONS if name in names)


def installed_rule(name: str) -> EntryPoint | None:
    """The entry point of this name in another package; None for a rule of this package.

    Raises ValueError for a name that nobody has, with those that there are, or that two have.
    """
    entry = entry_point(GROUP, name, builtin=RULES)
    if entry is None and name not in RULES:
        names = ", ".join([*RULES, *sorted(declared(GROUP))])
        raise ValueError(f"rule must be one of {names}, got {name!r}: no installed package has it")
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

    Raises ValueError for an unknown name, for a setting that is unknown, missing or of another
    type, and for a rule of another package whose claims do not hold, see `check_claims`.
    """
    kind = rule_class(name)
    if name == "anchored_inf":
        settings = {"divergence": "max", **settings}
    if wrong := field_error(kind, settings):
        raise ValueError(f"settings of rule {name}: {wrong}")
    rule: Rule = kind(**settings)
    if name not in RULES:
        from .claims import check_claims

        check_claims(rule, kind)
        if rule.name != name:  # no ledger of it would be read again
            both = f"{name!r} has the name {rule.name!r}"
            raise ValueError(f"{GROUP}: {both}: both must be the same")
    return rule
