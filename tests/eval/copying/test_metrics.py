"""The six metrics against hand-made cases, and against values that other programs computed."""

import json
import warnings
from pathlib import Path

import pytest
from copying_cases import number_words
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from anchored.eval.copying.metrics import (
    METRICS,
    NUM_PERMUTATIONS,
    copying_score,
    copying_scores,
    copying_summary,
)

TEXTS = st.lists(st.sampled_from(["the", "owl", "Owl", "sat,", "sat", "by", "night"]), max_size=25)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_metrics_stay_in_their_ranges_agree_with_each_other_and_are_symmetric(first, second):
    score = copying_score(" ".join(first), " ".join(second))
    for share in (score.rouge1_f1, score.rougeL_f1, score.minhash, score.jaccard):
        assert 0 <= share <= 1
    assert score.rougeL_f1 <= score.rouge1_f1 + 1e-12
    assert max(score.word_lcs, score.word_acs) <= min(len(first), len(second))
    assert (score.word_acs >= score.word_lcs) == (score.word_lcs >= 6 or score.word_lcs == 0)
    backward = copying_score(" ".join(second), " ".join(first))
    for name in ("word_lcs", "char_lcs", "jaccard", "minhash", "rouge1_f1", "rougeL_f1"):
        assert getattr(score, name) == pytest.approx(getattr(backward, name), abs=1e-12)


@given(TEXTS.filter(lambda words: len(words) >= 6))
@settings(deadline=None)
def test_an_identical_text_scores_the_maximum(words):
    text = " ".join(words)
    score = copying_score(text, text)
    assert (score.rouge1_f1, score.rougeL_f1, score.jaccard, score.minhash) == (1, 1, 1, 1)
    assert score.word_lcs == score.word_acs == len(words)
    assert score.char_lcs == len(text)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_rouge_is_that_of_rouge_score_to_the_last_bit(first, second):
    texts = [" ".join(words + ["running", "Nightly's"][: len(words)]) for words in (first, second)]
    scores = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score(*reversed(texts))
    expected = scores["rouge1"].fmeasure, scores["rougeL"].fmeasure
    score = copying_score(*texts)
    assert (score.rouge1_f1, score.rougeL_f1) == expected
    assert copying_score(number_words(1, 120), number_words(101, 120)).rouge1_f1 == 0  # not read


def test_copied_characters_are_the_copied_words_as_the_hypothesis_spells_them():
    hypothesis = "So:  The grey\nkettle HUMMED on the stove. Then rain."
    score = copying_score(hypothesis, "the grey kettle hummed on the stove. nobody")
    assert score.word_acs_spans == ((1, 0, 7),)
    (copied,) = (hypothesis[start:end] for start, end in score.copied_characters)
    assert copied == "The grey\nkettle HUMMED on the stove."


def test_minhash_estimates_jaccard_within_four_standard_errors():
    first, second = number_words(1, 90), number_words(31, 120)
    score = copying_score(first, second)
    assert score.jaccard == 58 / 118
    assert abs(score.minhash - score.jaccard) < 4 * (0.25 / NUM_PERMUTATIONS) ** 0.5


def test_summary_takes_shares_for_rouge_and_means_for_the_rest():
    pairs = [
        ("one two six six six", "one two ten ten ten"),  # both ROUGE are 0.4: counted
        ("one two six six six six", "one two ten ten ten"),  # 4/11: not counted
        (number_words(1, 8), number_words(1, 8)),
    ]
    with pytest.raises(ValueError, match="at least one score, got none"):
        copying_summary([])
    summary = copying_summary([score.as_row() for score in copying_scores(pairs)])
    assert list(summary) == list(METRICS)
    assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 2 / 3
    assert summary["word_lcs"] == (2 + 2 + 8) / 3
    assert summary["word_acs"] == 8 / 3
    assert summary["minhash"] == 1 / 3


@pytest.mark.parametrize(("ours", "theirs", "both"), [(1, 4, 1), (4, 11, 3), (5, 5, 2)])
def test_an_f1_of_exactly_the_threshold_counts_however_it_rounds(ours, theirs, both):
    # F1 = 2 * both / (ours + theirs) = 0.4 words; in floats equal to, below and above 0.4.
    hypothesis = " ".join(["sun"] * both + ["owl"] * (ours - both))
    reference = " ".join(["sun"] * both + ["elm"] * (theirs - both))
    summary = copying_summary([copying_score(hypothesis, reference).as_row()])
    assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 1


def test_letters_outside_ascii_are_scored_with_one_warning():
    pairs = [("caf\u00e9 noir", "caf\u00e9 noir")] * 3 + [("plain", "plain")]
    with pytest.warns(UserWarning, match="3 of 4 pairs have letters outside ASCII") as caught:
        scores = copying_scores(pairs)
    assert len(caught) == 1
    assert [score.word_lcs for score in scores] == [2, 2, 2, 1]


def test_typographic_text_and_lone_surrogates_are_scored_without_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copying_scores([("\u201cno\u201d \u2014 yes", "no yes")])
    assert copying_score("a b \ud800 c", "a b \ud800 c").char_lcs == 7


def test_the_prefix_is_what_both_texts_begin_with():
    for text, expected in (("one Two x two", 2), ("x one two", 0), ("one two three", 3), ("", 0)):
        assert copying_score(text, "one two three").word_prefix == expected


VECTORS = Path(__file__).parents[4] / "shared/reference/metric_vectors.json"


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
