"""Non-literal copying: which characters of a work appear in a story about it."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ...inputs import check_least
from ..recorded_texts import RecordedText, figure_over_seeds, rows_by_setting

CHARACTER_METRIC: Final = "character_overlap_v1"
"""Version of the metric: raised with every change by which some text gets another figure."""


@dataclass(frozen=True, kw_only=True)
class NonLiteralConfig:
    """When a story takes over a work's characters."""

    num_characters: int = 3
    """Characters of the work that a text may name."""
    comparator: Literal[">", ">="] = ">"
    """Texts that count: > those that name more, as the paper says, >= those that name as many, as
    CopyBench's own summary does."""
    debt: Literal["none", "any"] = "none"
    """Prefix debt of the prompts: none counts the texts whose prompt had one, which the paper turns
    off here; any accepts them."""

    def __post_init__(self) -> None:
        check_least(self, 0, "num_characters")

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
            raise ValueError(
                f'{text.key} has no "characters" to look for: give a file of prompts that have them'
            )
        if any(given := character_matches(text.prompt, text.characters)):
            name = text.characters[given.index(True)][0]
            raise ValueError(f"the prompt of {text.key} names {name!r} already")
        matches = character_matches(text.text, text.characters)
        named = [
            each[0] for each, is_named in zip(text.characters, matches, strict=True) if is_named
        ]
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


def character_overlap(
    rows: Sequence[dict[str, Any]], config: NonLiteralConfig
) -> list[dict[str, Any]]:
    """How often each setting's texts take over a work's characters; `rows` are `character_rows`.

    Returns: by setting "share", statistics over seeds of the texts that count by `config`;
    "mean_matched", of the characters that a text names; "num_texts"; and "num_with_debt", texts
    known to have had a prefix debt, 0 where the protocol does not ask.
    """
    counted = [{**row, "counts": config.counts(row["num_matched"])} for row in rows]
    asks_for_debt = config.debt == "none"
    return [
        {
            "setting": name,
            "share": figure_over_seeds(own, "counts"),
            "mean_matched": figure_over_seeds(own, "num_matched"),
            "num_texts": len(own),
            "num_with_debt": sum(asks_for_debt and bool(row["has_debt"]) for row in own),
        }
        for name, own in rows_by_setting(counted).items()
    ]


def nonliteral_results(texts: Sequence[RecordedText], **options: Any) -> dict[str, Any]:
    """Everything about characters taken over, for a results file. options: `NonLiteralConfig`'s."""
    config = NonLiteralConfig(**options)
    rows = character_rows(texts)
    return {
        "schema": "anchored-measure/1",
        "measure": "nonliteral",
        "metric_set": CHARACTER_METRIC,
        "config": asdict(config),
        "settings": character_overlap(rows, config),
        "rows": rows,
    }


def _words(text: str) -> list[str]:
    return [word.lower() for word in re.split(r"\W+", text) if word]


def _spaced_name(name: str) -> str:
    words = _words(name)
    if not words:
        raise ValueError(f"a character's name must have a letter or digit, got {name!r}")
    return f" {' '.join(words)} "
