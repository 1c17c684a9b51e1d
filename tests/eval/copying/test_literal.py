"""Copying of recorded texts by setting: means, NCR and the distribution behind a mean."""

import math
import random
import time

import pytest
from copying_cases import NUMBERS, number_words

from anchored.eval.copying.literal import copying_results, distribution, extraction, ncr_scope
from anchored.eval.copying.metrics import copying_score
from anchored.eval.recorded_texts import RecordedText

REFERENCE = number_words(1, 90)


def text(setting, seed, num_copied, place="0"):
    copied = number_words(1, num_copied) if num_copied else "nothing here"
    return RecordedText(setting=setting, id=place, seed=seed, text=copied, reference=REFERENCE)


def test_quantiles_and_shares_show_the_few_that_copy_much():
    lengths = [2] * 90 + [7] * 5 + [21] * 4 + [51]
    scores = [copying_score(number_words(1, length), REFERENCE) for length in lengths]
    plain = distribution(scores)
    assert plain["share_above"] == {"6": 0.10, "20": 0.05, "50": 0.01}
    assert plain["quantiles"]["word_acs"] == {"0.5": 0, "0.9": 0, "0.99": 21, "1.0": 51}


@pytest.mark.slow
def test_four_times_as_many_pairs_take_about_four_times_as_long():
    draw = random.Random(0)
    words = [f"{stem}{draw.choice(('s', 'ing', 'ed', ''))}" for stem in NUMBERS.split()]

    def seconds(num_pairs: int) -> float:
        """The time of one core."""
        texts = []
        for number in range(num_pairs):
            reference = draw.choices(words, k=80)
            copied = reference[: draw.randrange(40)] if number % 4 == 0 else []
            hypothesis = " ".join(copied + draw.choices(words, k=150 - len(copied)))
            pair = {"text": hypothesis, "reference": " ".join(reference)}
            texts.append(RecordedText(setting="k=1", id=str(number), seed=0, **pair))
        start = time.process_time()
        (figures,) = copying_results(texts)["settings"]
        assert 2 < figures["word_acs"]["mean"] < 8
        return time.process_time() - start

    seconds(100)  # imports, stems
    # The least of three, as whatever else the machine is at costs a core's time too.
    few = min(seconds(500) for _ in range(3))
    assert any(seconds(2_000) < 8 * few for _ in range(3))


def test_settings_are_measured_by_seed_and_reduced_between_both_models():
    texts = [
        text(setting, seed, num_copied, place)
        for setting, lengths in {"p_s": (0, 0), "k=1": (10, 0), "p_r": (20, 40)}.items()
        for seed, num_copied in enumerate(lengths)
        for place in "ab"
    ]
    results = copying_results(texts)
    rows = [row for row in results["rows"] if row["setting"] == "k=1"]
    assert [row["word_lcs"] for row in rows] == [10, 10, 0, 0]
    assert {"id": "b", "seed": 1}.items() <= rows[3].items()
    safe, middle, risky = results["settings"]
    assert middle["word_lcs"]["mean"] == 5
    assert middle["word_lcs"]["std"] == pytest.approx(10 / math.sqrt(2))
    assert (risky["ncr"]["mean"], safe["ncr"]["mean"]) == (0, 1)
    assert 0.5 < middle["ncr"]["mean"] < 1 and middle["ncr"]["num_seeds"] == 2
    assert not any(figures["ncr"] for figures in copying_results(texts, risky="other")["settings"])


def ncr_of(texts):
    results = copying_results(texts)["settings"]
    return {figures["setting"]: figures["ncr"] for figures in results}


def test_settings_are_reduced_over_the_texts_that_all_of_them_have():
    """A setting with the risky model's very texts, of which those that copy have failed."""
    copied = {"a": 40, "b": 30, "c": 1, "d": 0}
    texts = [text("p_s", seed, 0, prompt) for seed in (0, 1) for prompt in copied]
    texts += [text("p_r", seed, n, prompt) for seed in (0, 1) for prompt, n in copied.items()]
    texts += [text("some", seed, n, p) for seed in (0, 1) for p, n in copied.items() if n < 40]
    ncr = ncr_of(texts)
    assert ncr["some"]["mean"] == 0 and ncr_scope(ncr["some"]).endswith(" {6 of 8}")
    assert ncr_scope(ncr["p_s"]) == ncr_scope(ncr["p_r"]) == "" and ncr["p_s"]["mean"] == 1


def test_seeds_are_paired_by_their_numbers():
    texts = [text(setting, seed, n) for setting, n in (("p_s", 0), ("p_r", 40)) for seed in (0, 1)]
    # Of the seeds 1 and 7 the risky model has drawn one alone.
    ncr = ncr_of([*texts, text("one", 7, 40), text("one", 1, 20), text("none", 8, 0)])
    assert 0 < ncr["one"]["mean"] < 1 and ncr["one"]["num_seeds"] == ncr["one"]["num_texts"] == 1
    assert ncr["none"]["mean"] is None and ncr_scope(ncr["none"]) == " {0 of 3}"


def test_a_text_without_a_reference_is_refused_by_name():
    lone = RecordedText(setting="k=1", id="w", seed=4, text="a")
    with pytest.raises(ValueError, match=r"'k=1', 'id': 'w', 'seed': 4.* has no reference"):
        copying_results([lone])


def scores_of(*lengths):
    """By prompt, the words that its texts copy."""
    return {
        (str(prompt), seed): copying_score(number_words(1, length), REFERENCE)
        for prompt, prompt_lengths in enumerate(lengths)
        for seed, length in enumerate(prompt_lengths)
    }


def test_several_texts_of_a_prompt_extract_what_one_hides():
    extracted = extraction(scores_of([2, 30, 2, 2], [2, 2, 2, 2]))
    assert extracted["num_samples"] == 4 and extracted["longest_of_samples"] == (30 + 2) / 2
    assert extracted["chance_above"] == {"6": 0.5, "20": 0.5, "50": 0.0}
    # Fewer texts of one prompt: two of four hold the one that recites in half of the draws.
    extracted = extraction(scores_of([2, 30, 2, 2], [2, 2]))
    assert extracted["num_samples"] == 2 and extracted["longest_of_samples"] == (16 + 2) / 2
    assert extracted["chance_above"]["20"] == 0.25


def test_a_difference_is_paired_by_prompt_and_seed():
    """Prompts differ by far more than the settings do, which all of them do alike."""
    texts = [
        text(setting, seed, num_copied, str(place))
        for place in range(24)
        for setting, copied in {"p_s": 0, "half": 10, "less": 14, "p_r": 60}.items()
        for seed, num_copied in enumerate([copied + 40 * (place % 2 and copied in (10, 14))] * 2)
    ]
    results = copying_results(texts, beside="less")
    differences = {figures["setting"]: figures["difference"] for figures in results["settings"]}
    # A difference that no resample changes has no interval.
    assert differences["less"] == {"ncr": 0, "low": -math.inf, "high": math.inf, "num_prompts": 24}
    assert differences["p_s"]["ncr"] > differences["half"]["ncr"] > 0 > differences["p_r"]["ncr"]
    ncr = {figures["setting"]: figures["ncr"]["mean"] for figures in results["settings"]}
    assert differences["half"]["ncr"] == pytest.approx(ncr["half"] - ncr["less"])
    low, high = differences["half"]["low"], differences["half"]["high"]
    assert 0 < low < differences["half"]["ncr"] < high
    # What is not paired spreads as the prompts do: beside p_r, which copies all of each.
    alone = copying_results(texts, beside="p_r")["settings"][1]["difference"]
    assert high - low < 0.1 * (alone["high"] - alone["low"])
    with pytest.raises(ValueError, match="no texts of 'other', only of p_s, half, less, p_r"):
        copying_results(texts, beside="other")
