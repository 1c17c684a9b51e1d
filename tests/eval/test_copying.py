"""The six copying metrics: cases worked out by hand, brute force, and laws."""

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.eval.copying import (
    METRICS,
    CopyingConfig,
    copying_score,
    copying_scores,
    copying_summary,
)

VECTORS = Path(__file__).parents[3] / "shared/reference/metric_vectors.json"
TEXTS = st.lists(st.sampled_from(["the", "owl", "Owl", "sat,", "sat", "by", "night"]), max_size=25)
NUMBERS = " ".join(f"w{i}" for i in range(1, 161))  # w1 .. w160, all different


def number_words(first, last):
    return " ".join(f"w{i}" for i in range(first, last + 1))


# name, hypothesis, reference, expected values; each derived by hand as the comment says.
HAND_CASES = [
    # 7 equal words; 29 letters and 6 spaces.
    (
        "identical",
        "Grey gulls wheel over the cold pier",
        "Grey gulls wheel over the cold pier",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=7, char_lcs=35, word_acs=7, jaccard=1, minhash=1),
    ),
    # No word in common; "o" and "e" are the only shared characters, never two in a row.
    (
        "disjoint",
        "zoo",
        "wept",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=0, word_acs=0, jaccard=0, minhash=0),
    ),
    # Case differs: words are lower-cased, characters are not: "ange tin" is left.
    (
        "upper_case",
        "ORange tin",
        "orange tin",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=2, char_lcs=8, word_acs=0),
    ),
    # "sat," is another word than "sat"; ROUGE drops punctuation. Words: "an owl" and "by night".
    (
        "comma",
        "an owl sat, by night",
        "an owl sat by night",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=2, char_lcs=10, word_acs=0, jaccard=0),
    ),
    # Same words in the opposite order: every unigram matches, a subsequence has one word.
    (
        "reversed",
        "red two blue",
        "blue two red",
        dict(rouge1_f1=1, rougeL_f1=1 / 3, word_lcs=1, word_acs=0, jaccard=0),
    ),
    # Stems dog(s), walk(ed), walk(s) agree; the words do not. Shared characters: " walk".
    (
        "stems",
        "dogs walked",
        "dog walks",
        dict(rouge1_f1=1, rougeL_f1=1, word_lcs=0, char_lcs=5, word_acs=0),
    ),
    # 2 of 3 words on one side, 2 of 4 on the other: F1 = 2*2/(3+4).
    (
        "partial",
        "green door shut",
        "green door swung open",
        dict(rouge1_f1=4 / 7, rougeL_f1=4 / 7, word_lcs=2, word_acs=0, jaccard=0),
    ),
    # Spans of 5 and 6 words: only the second reaches the minimum of 6. Of 12 and 12 words, 11
    # match in order; shingles shared: 3 + 4, union 10 + 10 - 7.
    (
        "five_and_six",
        number_words(1, 5) + " x " + number_words(11, 16),
        number_words(1, 5) + " y " + number_words(11, 16),
        dict(word_lcs=6, word_acs=6, jaccard=7 / 13, rouge1_f1=22 / 24, rougeL_f1=22 / 24),
    ),
    # Both spans count, whatever their order in the reference; ROUGE-L sees the longer, 7 of 13.
    (
        "swapped_spans",
        number_words(1, 6) + " " + number_words(11, 17),
        number_words(11, 17) + " " + number_words(1, 6),
        dict(word_lcs=7, word_acs=13, rouge1_f1=1, rougeL_f1=7 / 13, jaccard=9 / 13),
    ),
    # The reference's 6 words come twice: they are copied once. 11 shingles, 4 of them repeated, so
    # 7 different ones, which hold the reference's 4.
    (
        "said_twice",
        number_words(1, 6) + " x " + number_words(1, 6),
        number_words(1, 6),
        dict(word_lcs=6, word_acs=6, rouge1_f1=12 / 19, rougeL_f1=12 / 19, jaccard=4 / 7),
    ),
    # The copy starts at word 101: no word metric sees it, the character metric does.
    (
        "behind_the_limit",
        " ".join(["pad"] * 100) + " " + number_words(1, 8),
        number_words(1, 8),
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=23, word_acs=0, jaccard=0, minhash=0),
    ),
    # Of 160 equal words the first 100 are read: 98 shingles. 9*2 + 90*3 + 61*4 characters, 159
    # spaces between them.
    (
        "long",
        NUMBERS,
        NUMBERS,
        dict(word_lcs=100, word_acs=100, char_lcs=18 + 270 + 244 + 159, jaccard=1, rouge1_f1=1),
    ),
    # F1 = 2*2/(5+5) is the threshold itself.
    (
        "threshold",
        "one two six six six",
        "one two ten ten ten",
        dict(rouge1_f1=0.4, rougeL_f1=0.4, word_lcs=2),
    ),
    # Two words make no shingle of three: similarity 0, not the 1 of two empty sets.
    (
        "too_short",
        "blue door",
        "blue door",
        dict(rouge1_f1=1, word_lcs=2, char_lcs=9, word_acs=0, jaccard=0, minhash=0),
    ),
    (
        "empty_hypothesis",
        "",
        "one two three",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=0, word_acs=0, jaccard=0, minhash=0),
    ),
    (
        "only_space_in_reference",
        "one two three",
        " \n",
        dict(rouge1_f1=0, rougeL_f1=0, word_lcs=0, char_lcs=1, word_acs=0, jaccard=0, minhash=0),
    ),
]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [case[1:] for case in HAND_CASES],
    ids=[case[0] for case in HAND_CASES],
)
def test_values_worked_out_by_hand(hypothesis, reference, expected):
    score = copying_score(hypothesis, reference)
    actual = {name: getattr(score, name) for name in expected}
    assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.skipif(not VECTORS.exists(), reason="shared/reference is not here")
def test_every_reference_vector_is_reproduced():
    renamed = {"jaccard_3word": "jaccard", "minhash_3word": "minhash"}
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
    assert cases
    for case in cases:
        score = copying_score(case["hypothesis"], case["reference"])
        for name, expected in case["expected"].items():
            actual = getattr(score, renamed.get(name, name))
            if name == "word_acs_spans":
                assert [list(span) for span in actual] == expected, case["id"]
            else:
                assert actual == pytest.approx(expected, abs=1e-12), (case["id"], name)


def longest_common_run(first, second):
    """Length of the longest slice of `first` that `second` has, by trying all of them."""
    slices = (first[i:j] for i in range(len(first)) for j in range(i + 1, len(first) + 1))
    windows = {
        tuple(second[i:j]) for i in range(len(second)) for j in range(i + 1, len(second) + 1)
    }
    return max((len(part) for part in slices if tuple(part) in windows), default=0)


@given(TEXTS, TEXTS)
@settings(deadline=None, max_examples=60)
def test_longest_spans_equal_brute_force(first, second):
    hypothesis, reference = " ".join(first), " ".join(second)
    score = copying_score(hypothesis, reference)
    assert score.word_lcs == longest_common_run(
        hypothesis.lower().split(), reference.lower().split()
    )
    assert score.char_lcs == longest_common_run(hypothesis, reference)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_metrics_stay_in_their_ranges_and_agree_with_each_other(first, second):
    score = copying_score(" ".join(first), " ".join(second))
    for share in (score.rouge1_f1, score.rougeL_f1, score.minhash, score.jaccard):
        assert 0 <= share <= 1
    assert score.rougeL_f1 <= score.rouge1_f1 + 1e-12
    assert score.word_lcs <= min(len(first), len(second))
    assert score.word_acs <= min(len(first), len(second))
    assert (score.word_acs >= score.word_lcs) == (score.word_lcs >= 6 or score.word_lcs == 0)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_lengths_and_similarities_are_symmetric(first, second):
    forward = copying_score(" ".join(first), " ".join(second))
    backward = copying_score(" ".join(second), " ".join(first))
    for name in ("word_lcs", "char_lcs", "jaccard", "minhash", "rouge1_f1", "rougeL_f1"):
        assert getattr(forward, name) == pytest.approx(getattr(backward, name), abs=1e-12)


@given(TEXTS.filter(lambda words: len(words) >= 6))
@settings(deadline=None)
def test_an_identical_text_scores_the_maximum(words):
    text = " ".join(words)
    score = copying_score(text, text)
    assert (score.rouge1_f1, score.rougeL_f1, score.jaccard, score.minhash) == (1, 1, 1, 1)
    assert score.word_lcs == score.word_acs == len(words)
    assert score.char_lcs == len(text)


def test_copied_characters_are_the_copied_words_as_the_hypothesis_spells_them():
    hypothesis = "So:  The grey\nkettle HUMMED on the stove. Then rain."
    score = copying_score(hypothesis, "the grey kettle hummed on the stove. nobody")
    assert score.word_acs_spans == ((1, 0, 7),)
    (copied,) = (hypothesis[start:end] for start, end in score.copied_characters)
    assert copied == "The grey\nkettle HUMMED on the stove."


def test_the_character_span_points_at_the_same_text_in_both():
    hypothesis, reference = "xx the lamp", "a the lamb"
    hypothesis_start, reference_start, length = copying_score(hypothesis, reference).char_lcs_span
    assert hypothesis[hypothesis_start : hypothesis_start + length] == " the lam"
    assert reference[reference_start : reference_start + length] == " the lam"


def test_minhash_estimates_jaccard_within_four_standard_errors():
    first, second = number_words(1, 90), number_words(31, 120)
    score = copying_score(first, second, CopyingConfig(num_permutations=1024))
    assert score.jaccard == 58 / 118
    assert abs(score.minhash - score.jaccard) < 4 * (0.25 / 1024) ** 0.5


def test_options_change_what_is_compared_and_the_name_of_the_metric_set():
    config = CopyingConfig(tokenizer="strip_punctuation", lowercase_characters=True)
    score = copying_score("WAIT, she said", "wait she said", config)
    assert (score.word_lcs, score.char_lcs) == (3, 9)
    assert CopyingConfig().metric_set == "paper_spec_v1"
    assert (
        config.metric_set == "paper_spec_v1+tokenizer=strip_punctuation+lowercase_characters=True"
    )


def test_summary_takes_shares_for_rouge_and_means_for_the_rest():
    pairs = [
        ("one two six six six", "one two ten ten ten"),  # both ROUGE are 0.4: counted
        ("one two six six six six", "one two ten ten ten"),  # 4/11: not counted
        (number_words(1, 8), number_words(1, 8)),
    ]
    summary = copying_summary(copying_scores(pairs))
    assert set(summary) == {*METRICS, "jaccard"}
    assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 2 / 3
    assert summary["word_lcs"] == (2 + 2 + 8) / 3
    assert summary["word_acs"] == 8 / 3
    assert summary["minhash"] == summary["jaccard"] == 1 / 3


@pytest.mark.parametrize(
    ("num_words", "num_reference_words", "num_shared"), [(1, 4, 1), (4, 11, 3), (5, 5, 2)]
)
def test_an_f1_of_exactly_the_threshold_counts_however_it_rounds(
    num_words, num_reference_words, num_shared
):
    # F1 = 2 * shared / (words + words) = 0.4; in floats equal to, below and above 0.4.
    hypothesis = " ".join(["sun"] * num_shared + ["owl"] * (num_words - num_shared))
    reference = " ".join(["sun"] * num_shared + ["elm"] * (num_reference_words - num_shared))
    summary = copying_summary([copying_score(hypothesis, reference)])
    assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 1


def test_letters_outside_ascii_are_scored_with_one_warning():
    pairs = [("caf\u00e9 noir", "caf\u00e9 noir")] * 3 + [("plain", "plain")]
    with pytest.warns(UserWarning, match="3 of 4 pairs have letters outside ASCII") as caught:
        scores = copying_scores(pairs)
    assert len(caught) == 1
    assert [score.word_lcs for score in scores] == [2, 2, 2, 1]


def test_ascii_and_typographic_text_is_scored_without_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copying_scores([("\u201cno\u201d \u2014 yes", "no yes")])


def test_lone_surrogates_are_scored():
    assert copying_score("a b \ud800 c", "a b \ud800 c").char_lcs == 7


def test_rows_survive_json():
    row = copying_score(number_words(1, 7), number_words(1, 7)).as_row()
    assert json.loads(json.dumps(row))["word_acs_spans"] == [[0, 0, 7]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": "bpe"}, "tokenizer must be 'split' or 'strip_punctuation', got 'bpe'"),
        ({"rouge_threshold": 1.5}, r"rouge_threshold must be in \[0, 1\], got 1.5"),
        ({"rouge_threshold": float("nan")}, r"rouge_threshold must be in \[0, 1\], got nan"),
        ({"max_words": 0}, "max_words must be at least 1, got 0"),
        ({"min_span_words": 0}, "min_span_words must be at least 1, got 0"),
        ({"minhash_seed": -1}, "minhash_seed must be at least 0, got -1"),
    ],
)
def test_bad_options_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CopyingConfig(**settings)


def test_summary_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one score, got none"):
        copying_summary([])
