"""The six metrics and spans against hand-made cases, brute force and other programs' values."""

import itertools
import json
import unicodedata
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from copying_cases import number_words
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from anchored.eval.copying.metrics import (
    METRICS,
    NUM_PERMUTATIONS,
    Span,
    copying_score,
    copying_summary,
    disjoint_common_spans,
    longest_common_span,
)
from anchored.eval.statistics import json_value

TEXTS = st.lists(st.sampled_from(["the", "owl", "Owl", "sat,", "sat", "by", "night"]), max_size=25)


@given(TEXTS, TEXTS)
def test_metrics_stay_in_their_ranges_agree_with_each_other_and_are_symmetric(first, second):
    score = copying_score(" ".join(first), " ".join(second))
    for name in ("rouge1_f1", "rougeL_f1", "minhash", "jaccard"):
        assert 0 <= score[name] <= 1
    assert score["rougeL_f1"] <= score["rouge1_f1"] + 1e-12
    assert max(score["word_lcs"], score["word_acs"]) <= min(len(first), len(second))
    words = score["word_lcs"]
    assert (score["word_acs"] >= words) == (words >= 6 or words == 0)
    backward = copying_score(" ".join(second), " ".join(first))
    for name in ("word_lcs", "char_lcs", "jaccard", "minhash", "rouge1_f1", "rougeL_f1"):
        assert score[name] == pytest.approx(backward[name], abs=1e-12)


def test_copied_characters_are_the_copying_cases_as_the_hypothesis_spells_them():
    hypothesis = "So:  The grey\nkettle HUMMED on the stove. Then rain."
    score = copying_score(hypothesis, "the grey kettle hummed on the stove. nobody")
    assert score["word_acs_spans"] == [[1, 0, 7]]
    (copied,) = (hypothesis[start:end] for start, end in score["copied_characters"])
    assert copied == "The grey\nkettle HUMMED on the stove."


def test_minhash_estimates_jaccard_within_four_standard_errors():
    first, second = number_words(1, 90), number_words(31, 120)
    score = copying_score(first, second)
    assert score["jaccard"] == 58 / 118
    assert abs(score["minhash"] - score["jaccard"]) < 4 * (0.25 / NUM_PERMUTATIONS) ** 0.5


def test_summary_takes_shares_for_rouge_and_means_for_the_rest():
    pairs = [
        ("one two six six six", "one two ten ten ten"),  # both ROUGE are 0.4: counted
        ("one two six six six six", "one two ten ten ten"),  # 4/11: not counted
        (number_words(1, 8), number_words(1, 8)),
    ]
    with pytest.raises(ValueError, match="at least one score, got none"):
        copying_summary([])
    summary = copying_summary([copying_score(*pair) for pair in pairs])
    assert list(summary) == list(METRICS)
    assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 2 / 3
    assert summary["word_lcs"] == (2 + 2 + 8) / 3
    assert summary["word_acs"] == 8 / 3
    assert summary["minhash"] == 1 / 3


def test_an_f1_of_exactly_the_threshold_counts_however_it_rounds():
    # F1 = 2 * both / (ours + theirs) = 0.4 words; in floats equal to, below and above 0.4.
    for ours, theirs, both in ((1, 4, 1), (4, 11, 3), (5, 5, 2)):
        shared = "sun " * both
        row = copying_score(shared + "owl " * (ours - both), shared + "elm " * (theirs - both))
        assert json.loads(json.dumps(row)) == row == json_value(row)  # one form, whoever writes it
        summary = copying_summary([row])
        assert summary["rouge1_ge_tau"] == summary["rougeL_ge_tau"] == 1


WORKS = {
    "Chinese": "我们的灯塔在海边\uff0c每晚都有人点灯看着船",
    "Japanese": "灯台の番人は毎晩ランプをともしていたという",
    "Thai": "คนเฝ้าประภาคารจุดตะเกียงทุกคืน",
    "Russian": "старый смотритель маяка зажигал свою лампу каждый долгий вечер",
}


@pytest.mark.parametrize("language", WORKS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_work_recited_but_for_its_last_character_is_copied_in_any_script(language, form):
    work = WORKS[language]
    recited = copying_score(unicodedata.normalize(form, work[:-1] + "x"), work)
    whole = copying_score(work, work)
    for name in ("rouge1_f1", "rougeL_f1", "minhash", "jaccard"):
        assert recited[name] > 0.7 and whole[name] == 1, name
    for name in ("word_lcs", "word_acs", "word_prefix"):
        # The last letter of a script may have had marks, or be one.
        assert whole["word_lcs"] - 2 <= recited[name] <= whole["word_lcs"], name
    assert recited["char_lcs"] == len(unicodedata.normalize("NFC", work)) - 1


INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"


@pytest.mark.parametrize("language", ["Thai", "Russian"])
def test_what_is_not_shown_is_not_compared(language):
    """As books and PDF files hold it, within words and after them."""
    work = WORKS[language]
    dressed = work[:1] + "".join(
        letter + INVISIBLE[place % len(INVISIBLE)] for place, letter in enumerate(work[1:])
    )
    score, whole = copying_score(dressed, work), copying_score(work, work)
    ((start, end),) = score.pop("copied_characters")
    ((first, last),) = whole.pop("copied_characters")
    assert score == whole
    assert dressed[start:end].strip(INVISIBLE) == dressed.strip(INVISIBLE)
    assert (first, last) == (0, len(work))


MARKS = "ab A.,_'\u2019\u201c\u2014\u2026\u00e9\u00ef\u00bd\u00b2\u20ac 1\n"
ENGLISH = TEXTS.map(lambda words: " ".join([*words, "running", "Nightly's"]))
ENGLISH |= st.text(st.sampled_from(MARKS), max_size=60)


@given(ENGLISH, ENGLISH)
def test_words_of_english_are_those_of_rouge_score_and_of_split(first, second):
    """With typographic marks, and accents, at which rouge-score splits a word."""
    score, scorer = (
        copying_score(first, second),
        RougeScorer(["rouge1", "rougeL"], use_stemmer=True),
    )
    for name, expected in scorer.score(second, first).items():
        assert score[f"{name}_f1"] == expected.fmeasure
    split = [text.lower().split() for text in (first, second)]
    pairs = itertools.takewhile(lambda both: both[0] == both[1], zip(*split, strict=False))
    assert score["word_prefix"] == len(list(pairs))
    shared = SequenceMatcher(None, *split, autojunk=False).find_longest_match()
    assert score["word_lcs"] == shared.size


def test_half_a_character_is_scored_and_what_is_beyond_a_hundred_words_is_not():
    assert copying_score("a b \ud800 c", "a b \ud800 c")["char_lcs"] == 7
    assert copying_score(number_words(1, 120), number_words(101, 120))["rouge1_f1"] == 0
    score = copying_score(WORKS["Chinese"], WORKS["Japanese"])
    assert score["word_acs"] == 0 and score["minhash"] == 0 and score["rouge1_f1"] < 0.4


VECTORS = Path(__file__).parents[4] / "shared/reference/metric_vectors.json"


@pytest.mark.skipif(not VECTORS.exists(), reason="shared/reference is not here")
def test_every_reference_vector_is_reproduced():
    renamed = {"jaccard_3word": "jaccard", "minhash_3word": "minhash"}
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
    assert cases
    for case in cases:
        score = copying_score(case["hypothesis"], case["reference"])
        for name, expected in case["expected"].items():
            actual = score[renamed.get(name, name)]
            if name != "word_acs_spans":
                expected = pytest.approx(expected, abs=1e-12)
            assert actual == expected, (case["id"], name)


SHORT = st.lists(st.integers(0, 3), max_size=14)


def symbols(values):
    return "".join(map(chr, values))


def brute_force_span(first, second):
    spans = [
        Span(i, j, length)
        for i in range(len(first))
        for j in range(len(second))
        for length in range(1, min(len(first) - i, len(second) - j) + 1)
        if first[i : i + length] == second[j : j + length]
    ]
    return min(spans, key=lambda span: (-span.length, *span[:2]), default=Span(0, 0, 0))


@given(SHORT, SHORT)
def test_longest_span_and_its_place_equal_brute_force(first, second):
    longest = longest_common_span(symbols(first), symbols(second))
    assert longest == brute_force_span(first, second)
    assert longest.length == longest_common_span(symbols(second), symbols(first)).length


@given(SHORT, SHORT, st.integers(1, 4))
def test_chosen_spans_are_equal_long_enough_disjoint_and_all_there_are(first, second, min_length):
    spans = disjoint_common_spans(symbols(first), symbols(second), min_length=min_length)
    longest = longest_common_span(symbols(first), symbols(second))
    assert (longest in spans) == (longest.length >= min_length)
    left_first, left_second = list(first), list(second)
    for i, j, length in spans:
        assert length >= min_length and first[i : i + length] == second[j : j + length]
        for left, start, used in ((left_first, i, 8), (left_second, j, 9)):
            assert max(left[start : start + length]) < 8
            left[start : start + length] = [used] * length
    rest = longest_common_span(symbols(left_first), symbols(left_second))
    assert rest.length < min_length
