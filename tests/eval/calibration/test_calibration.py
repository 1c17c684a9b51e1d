"""The search for k, its check on fresh seeds, figures and their intervals."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchored import Anchored, event_bound
from anchored.eval.calibration import calibration as calibrating
from anchored.eval.calibration import search as searching
from anchored.eval.calibration.calibration import FIRST_CHECK_SEED, Calibration, calibrate
from anchored.eval.calibration.search import Figure, Search, Target, bracket
from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments.experiment import RISKY, Experiment, Prompt


def searched(search: Search, meets) -> dict[float, bool]:
    """Every k that the search measures."""
    is_met = {}
    while (k := search.next_k(is_met)) is not None:
        assert k not in is_met
        is_met[k] = meets(k)
    return is_met


def test_the_search_ends_within_its_resolution_below_the_limit():
    search = Search(smallest=0.1, largest=20.0, num_first=4, resolution=1.05)
    for limit in (0.11, 3.3, 19.0):
        is_met = searched(search, lambda k, limit=limit: k <= limit)
        low, high = bracket(is_met)
        assert low <= limit < high <= 1.05 * low
        assert len(is_met) <= 4 + math.ceil(math.log2(math.log(200) / 3 / math.log(1.05)))


def test_a_k_above_one_that_misses_is_not_taken():
    search = Search(smallest=1.0, largest=16.0, num_first=5, resolution=1.1)
    is_met = searched(search, lambda k: k <= 1.5 or 3.9 < k < 4.1)
    low, high = bracket(is_met)
    assert is_met[4.0] and low <= 1.5 < high < 4.0


@pytest.fixture
def calibrated(monkeypatch, tmp_path):
    """Calibrates with prompts that are all recited from k = 4 on, whatever the seed; `seen` has the
    seeds of each folder."""
    seen: dict[Path, list[int]] = {}
    prompts = [Prompt(id=f"{n}", title=f"{n}", prompt="a", reference="b") for n in range(24)]
    made = {
        "reference_log_probs": {"0": -5.0, "1": -9.0},
        **{"generate_all": None, "read_all_prompts": None, "failed_generations": []},
        "read_generations": [
            {"id": "0", "certified": True, "bound": 1.0, "spent": 0.5},
            {"id": "1", "certified": True, "bound": 3.0, "spent": None},
        ],
    }

    def copied_in(experiment):
        seen[experiment.folder.relative_to(tmp_path)] = experiment.seeds
        (setting,) = experiment.settings
        is_recited = setting.name == RISKY or (setting.k or 0.0) > 4.0
        return np.full((len(prompts), len(METRICS)), 50.0 if is_recited else 1.0)

    def calibrate_made(**changed):
        for name, rows in (made | changed).items():
            monkeypatch.setattr(calibrating, name, lambda *_, rows=rows: rows)
        experiment = Experiment(folder=tmp_path, prompts=prompts, settings=(), seeds=[0, 1, 2])
        search = Search(smallest=0.5, num_first=4, resolution=1.04)
        options = {"rule": Anchored(k=1.0), "search": search, "num_check_seeds": 9}
        return calibrate(Calibration(experiment=experiment, **options), None)

    monkeypatch.setattr(calibrating, "copied_in", copied_in)
    monkeypatch.setattr(searching, "NUM_RESAMPLES", 50)
    calibrate_made.seen = seen
    return calibrate_made


def test_a_choice_is_checked_on_fresh_seeds_and_its_bounds_are_of_the_worst_reference(calibrated):
    result = calibrated()
    assert 4.0 / 1.04 <= result.k <= 4.0 and result.check.is_met
    fresh = [FIRST_CHECK_SEED + number for number in range(9)]
    assert calibrated.seen == {Path(): [0, 1, 2], Path("check/9-seeds"): fresh}
    both = event_bound(1.0, -5.0), event_bound(3.0, -9.0)
    assert result.chosen.recited == max(both) > min(both)
    assert (result.chosen.bound, result.chosen.spent) == (2.0, None)
    assert result.alone[1].recited is None and result.alone[1].bound is None


def test_a_generation_or_a_reference_that_fails_is_refused(calibrated):
    with pytest.raises(ValueError, match=r"^1: its reference has no probability under p_s"):
        calibrated(reference_log_probs={"0": -5.0})
    failed = [{"id": "3", "seed": 0, "error": "the risky model's logits are NaN"}]
    with pytest.raises(ValueError, match=r"^p_s, 3: the risky model's logits are NaN"):
        calibrated(failed_generations=failed)


WORD_LCS = METRICS.index("word_lcs")


def copied(*words_by_prompt) -> np.ndarray:
    """(P, M) where one metric is the mean of what each prompt is given and the others are 0."""
    values = np.zeros((len(words_by_prompt), len(METRICS)))
    values[:, WORD_LCS] = np.mean(words_by_prompt, axis=1)
    return values


QUIET = copied([1, 1], [1, 1], [1, 1], [1, 1])
LOUD = copied([21, 41], [3, 3], [31, 51], [20, 18])
MIDDLE = copied([11, 1], [1, 1], [1, 21], [2, 2])


def test_a_reduction_is_of_the_means_over_prompts_and_seeds():
    figure = Target().figure(MIDDLE, safe=QUIET, risky=LOUD)
    # Means: 5 of the setting, 23.5 and 1 of both models; the other metrics have no gap.
    assert figure.value == pytest.approx((23.5 - 5) / 22.5)
    assert figure.low < figure.value < figure.high <= 1.0
    unseen = 1 - 0.05 ** (1 / 4)  # so many of all prompts may be unlike these four
    for alone, value, low in ((QUIET, 1.0, 1 - unseen), (LOUD, 0.0, 0.0)):
        figure = Target().figure(alone, safe=QUIET, risky=LOUD)
        assert figure == pytest.approx((value, low, value))


def test_strictness_asks_the_worse_end_of_the_interval():
    reduction = Figure(0.8, 0.7, 0.9)
    copy, limit = Figure(5.0, 4.0, 7.0), Target(metric="word_lcs", value=6.0)
    for target, figure in ((Target(value=0.75), reduction), (limit, copy)):
        assert replace(target, is_strict=False).is_met(figure) and not target.is_met(figure)
    nothing = Target().figure(QUIET, safe=QUIET, risky=QUIET)  # the risky model copies nothing
    assert math.isnan(nothing.value) and not Target().is_met(nothing)
    rare = copied([40], [1], [1], [1])  # a third of all resamples leave out the first prompt
    figure = Target().figure(QUIET, safe=QUIET, risky=rare)
    assert figure.value == 1.0 and figure.low == -math.inf


def test_what_no_prompt_showed_is_part_of_the_interval():
    """Prompts that all copy nothing do not show that no prompt would copy."""
    for count, most in ((8, 0.688), (40, 0.928)):
        quiet, loud = copied(*[[1]] * count), copied(*[[41]] * count)
        figure = Target().figure(quiet, safe=quiet, risky=loud)
        assert figure.value == 1.0 and figure.low == pytest.approx(most, abs=1e-3)
        longest = Target(metric="word_lcs", value=9.0).figure(quiet, safe=quiet, risky=loud)
        assert longest[::2] == pytest.approx((1.0, 41 * (1 - most)), abs=0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("share", "count"), [(0.1, 8), (0.3, 40)])
def test_an_interval_of_rare_copying_holds_the_truth(monkeypatch, count, share):
    """So many prompts are recited: of 8 and one in ten, resampling alone holds it in 57 of 100."""
    monkeypatch.setattr(searching, "NUM_RESAMPLES", 200)
    generator, num_held = np.random.default_rng(4), 0
    safe, risky = copied(*[[0]] * count), copied(*[[40]] * count)
    for is_recited in generator.random((200, count)) < share:
        setting = copied(*np.where(is_recited, 40, 0)[:, None].tolist())
        figure = Target().figure(setting, safe=safe, risky=risky)
        num_held += figure.low <= 1 - share <= figure.high
    assert num_held >= 0.9 * 200
