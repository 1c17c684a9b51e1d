"""Characters of a work in a story: names as whole words, and the comparator as stated."""

import pytest

from anchored.eval.copying.nonliteral import (
    NonLiteralConfig,
    character_matches,
    character_overlap,
    character_rows,
)
from anchored.eval.recorded_texts import RecordedText

CHARACTERS = (("Theo Decker", "Theo"), ("Boris",), ("Mrs. Barbour",), ("Hobie", "James Hobart"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THEO, and theory", [True, False, False, False]),
        ("theory and Borislav", [False, False, False, False]),
        ("mrs Barbour; James\nHobart.", [False, False, True, True]),
        ("James saw Hobart", [False, False, False, False]),
        ("Boris's", [False, True, False, False]),
        ("", [False, False, False, False]),
    ],
)
def test_a_name_matches_as_whole_words_in_a_row(text, expected):
    assert character_matches(text, CHARACTERS) == expected


def story(text, **own):
    own = {"setting": "k=1", "seed": 0, "characters": CHARACTERS, **own}
    return RecordedText(id=text, text=text, **own)


STORIES = [
    story("Theo, Boris, Mrs Barbour", debt=0.0),  # three: counts by >= alone
    story("Theo, Boris, Mrs Barbour, Hobie", debt=2.0),
    story("nobody", seed=1),
    story("Hobie", seed=1),
]


@pytest.mark.parametrize(
    ("comparator", "by_seed", "least"), [(">", (0.5, 0.0), 4), (">=", (1.0, 0.0), 3)]
)
def test_the_share_follows_the_comparator(comparator, by_seed, least):
    config = NonLiteralConfig(comparator=comparator)
    assert [config.counts(number) for number in (least - 1, least)] == [False, True]
    (found,) = character_overlap(character_rows(STORIES), config)
    assert found["share"]["mean"] == sum(by_seed) / 2
    assert found["mean_matched"]["mean"] == 2.0
    assert (found["num_texts"], found["num_with_debt"]) == (4, 1)


def test_rows_name_the_characters_and_the_debt():
    rows = character_rows(STORIES)
    assert rows[3]["matched"] == ["Hobie"] and rows[3]["num_characters"] == 4
    assert [row["has_debt"] for row in rows] == [False, True, None, None]
    (found,) = character_overlap(rows, NonLiteralConfig(debt="any"))
    assert found["num_with_debt"] == 0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="names 'Boris' already"):
        character_rows([story("x", prompt="Boris met nobody.")])
    with pytest.raises(ValueError, match='has no "characters"'):
        character_rows([RecordedText(setting="s", id="i", seed=0, text="x")])
    with pytest.raises(ValueError, match=r"must have a letter or digit, got '\.\.\.'"):
        character_matches("x", [["..."]])
    with pytest.raises(ValueError, match="--num-characters must be >= 0, got -1"):
        NonLiteralConfig(num_characters=-1)
