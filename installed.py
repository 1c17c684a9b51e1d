"""Rules and metrics of other packages, by the entry points that these declare.

A package's pyproject.toml has [project.entry-points."anchored.rules"], then blend = "module:Blend".
Nothing of a package is imported before its entry point is loaded.
"""

import functools
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@functools.cache
def declared(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a group in the packages that are installed, by name."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        by_name.setdefault(entry.name, []).append(entry)
    return by_name


def entry_point(group: str, name: str, *, builtin: Collection[str]) -> EntryPoint | None:
    """The entry point of this name; None where no package declares one.

    builtin: the names in this package. Raises ValueError, with the packages, for an entry
    point that has one of these, or that two packages declare.
    """
    entries = declared(group).get(name, [])
    if not entries:
        return None
    if name in builtin or len(entries) > 1:
        packages = " and ".join(sorted(map(package_of, entries)))
        problem = "is a name of anchored" if name in builtin else "is declared more than once"
        raise ValueError(f"{group}: {name!r} of {packages} {problem}: rename or uninstall one")
    return entries[0]


def loaded(entry: EntryPoint) -> Any:
    """The object that an entry point names; ValueError, with its package, if there is none."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{entry.group}: {entry.name!r} of {package_of(entry)} cannot be imported: {error}"
        ) from error


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that declares an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
