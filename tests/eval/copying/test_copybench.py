"""CopyBench's characters, as whole words with the comparator as stated, and its answers."""

from dataclasses import replace

import pytest

from anchored.eval.copying.copybench import (
    NonLiteralConfig,
    answer_f1,
    character_matches,
    character_overlap,
    character_rows,
)
from anchored.eval.recorded_texts import RecordedText

CHARACTERS = (("Theo Decker", "Theo"), ("Boris",), ("Mrs. Barbour",), ("Hobie", "James Hobart"))


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("THEO, and theory", "Theo"),
        ("mrs Barbour; James\nHobart.", "Mrs. Barbour, James Hobart"),
        ("James saw Hobart", ""),
        ("小明去了北京。", "小明"),
        ("रीम", ""),  # marks are a part of a name
        ("Rene\u0301 came", "Ren\u00e9"),
    ],
)
def test_a_name_matches_as_whole_words_in_a_row(text, matched):
    names = [name for names in CHARACTERS for name in names] + ["小明", "राम", "Ren\u00e9"]
    matches = character_matches(text, [[name] for name in names])
    assert ", ".join(n for n, is_in in zip(names, matches, strict=True) if is_in) == matched


def story(text, **fields):
    fields = {"setting": "k=1", "seed": 0, "characters": CHARACTERS, **fields}
    return RecordedText(id=text, text=text, **fields)


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
    rows = character_rows(STORIES)
    assert rows[3]["matched"] == ["Hobie"] and rows[3]["num_characters"] == 4
    assert [row["has_debt"] for row in rows] == [False, True, None, None]
    (overlap,) = character_overlap(rows, config)
    assert overlap["share"]["mean"] == sum(by_seed) / 2
    assert overlap["mean_matched"]["mean"] == 2.0
    assert (overlap["num_texts"], overlap["num_with_debt"]) == (4, 1)
    (overlap,) = character_overlap(rows, replace(config, debt="any"))
    assert overlap["num_with_debt"] == 0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match='has no "characters"'):
        character_rows([RecordedText(setting="s", id="i", seed=0, text="x")])
    with pytest.raises(ValueError, match="names 'Boris' already"):
        character_rows([story("x", prompt="Boris met nobody.")])


@pytest.mark.parametrize(
    ("text", "answer", "f1"),
    [
        (" The keeper.\n\nQuestion: Who", "the keeper", 1.0),
        (" a Keeper of lamps", "the keeper", 0.5),  # 1 of 3, and 1 of 1
        ("bell bell", "bell", 2 / 3),  # a word counts once
        ("A.", "a", 1.0),  # an article alone is an answer
        ("南京。", "北京", 0.5),
    ],
)
def test_words_of_the_first_line_are_compared(text, answer, f1):
    assert answer_f1(text, answer) == pytest.approx(f1)
