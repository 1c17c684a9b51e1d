"""Non-literal copying: which characters of a work appear in a story about it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ..recorded_texts import RecordedText, grouped, rows_by_setting
from ..statistics import SeedStatistics, over_seeds

CHARACTER_METRIC: Final = "character_overlap_v1"
"""Version of the metric: raised with every change by which some text gets another figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonLiteralConfig:
    """What counts as taking over a work's characters."""

    num_characters: int = 3
    comparator: Literal[">", ">="] = ">"
    """A text counts with more than `num_characters` of the work's characters, as the paper says;
    CopyBench's own summary takes ">=" with the same 3."""
    debt: Literal["none", "any"] = "none"
    """The paper decodes these stories without a prefix debt; "none" counts the generations that
    had one, "any" does not look."""

    def __post_init__(self) -> None:
        if self.num_characters < 0:
            raise ValueError(f"num_characters must be at least 0, got {self.num_characters}")
        if self.comparator not in (">", ">="):
            raise ValueError(f"comparator must be '>' or '>=', got {self.comparator!r}")
        if self.debt not in ("none", "any"):
            raise ValueError(f"debt must be 'none' or 'any', got {self.debt!r}")

    def counts(self, num_matched: int) -> bool:
        """Whether a text with so many of the work's characters counts."""
        least = self.num_characters + (self.comparator == ">")
        return num_matched >= least


def character_matches(text: str, characters: Sequence[Sequence[str]]) -> list[bool]:
    """For each character, whether one of its names stands in the text.

    characters: the names of each. A name matches as whole words in a row, whatever their case and
    what is between them that is no letter, digit or underscore.
    Raises: ValueError for a name without any of these.
    Source: Chen et al. 2024, "CopyBench", character overlap.
    """
    spaced = f" {' '.join(_words(text))} "
    return [any(_spaced_name(name) in spaced for name in names) for names in characters]


def character_rows(texts: Sequence[RecordedText]) -> list[dict[str, Any]]:
    """A row for each text: its key, characters of the work, and those of them that it names.

    Raises: ValueError for a text without characters, and where the prompt names one already.
    """
    rows = []
    for text in texts:
        if text.characters is None:
            raise ValueError(f"{text.key} has no characters to look for")
        if any(given := character_matches(text.prompt, text.characters)):
            name = text.characters[given.index(True)][0]
            raise ValueError(f"the prompt of {text.key} names {name!r} already")
        matches = character_matches(text.text, text.characters)
        named = [own[0] for own, is_named in zip(text.characters, matches, strict=True) if is_named]
        rows.append(
            {
                **text.key,
                "num_characters": len(text.characters),
                "num_matched": len(named),
                "matched": named,
                "has_debt": None if text.debt is None else text.debt > 0,
            }
        )
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class CharacterOverlap:
    """How often the texts of one setting take over a work's characters."""

    setting: str
    share: SeedStatistics
    """Of the texts that count by `NonLiteralConfig`, over seeds."""
    mean_matched: SeedStatistics
    """Characters that a text names."""
    num_texts: int
    num_with_debt: int
    """Texts known to have had a prefix debt; 0 where the protocol does not ask."""

    def as_row(self) -> dict[str, object]:
        """Plain values for a results file."""
        return {
            **asdict(self),
            "share": self.share._asdict(),
            "mean_matched": self.mean_matched._asdict(),
        }


def character_overlap(
    rows: Sequence[dict[str, Any]], config: NonLiteralConfig | None = None
) -> list[CharacterOverlap]:
    """The share of texts that count, by setting; `rows` are those of `character_rows`."""
    config = config or NonLiteralConfig()
    by_setting = {
        name: list(grouped(own, lambda row: row["seed"]).values())
        for name, own in rows_by_setting(rows).items()
    }
    return [
        CharacterOverlap(
            setting=name,
            share=over_seeds([_mean(config.counts(r["num_matched"]) for r in s) for s in seeds]),
            mean_matched=over_seeds([_mean(r["num_matched"] for r in s) for s in seeds]),
            num_texts=sum(map(len, seeds)),
            num_with_debt=sum(
                bool(row["has_debt"]) for own in seeds for row in own if config.debt == "none"
            ),
        )
        for name, seeds in by_setting.items()
    ]


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given)


def _words(text: str) -> list[str]:
    return [word.lower() for word in re.split(r"\W+", text) if word]


def _spaced_name(name: str) -> str:
    words = _words(name)
    if not words:
        raise ValueError(f"a character's name must have a letter or digit, got {name!r}")
    return f" {' '.join(words)} "
