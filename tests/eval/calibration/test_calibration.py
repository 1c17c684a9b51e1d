"""The search for k, and what a choice by seeds is worth on others, over made-up generations."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchored import Anchored, Decoder, SafeOnly, event_bound
from anchored.eval.calibration import calibration as calibrating
from anchored.eval.calibration import target as targets
from anchored.eval.calibration.calibration import (
    FIRST_CHECK_SEED,
    Calibration,
    Search,
    bracket,
    calibrate,
)
from anchored.eval.calibration.target import Target
from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments.experiment import RISKY, SAFE, Experiment, Prompt


def searched(search: Search, meets) -> dict[float, bool]:
    """Every k that the search measures."""
    is_met = {}
    while (k := search.next_k(is_met)) is not None:
        assert k not in is_met
        is_met[k] = meets(k)
    return is_met


@pytest.mark.parametrize("limit", [0.11, 0.7, 3.3, 19.0])
def test_the_search_ends_within_its_resolution_below_the_limit(limit):
    search = Search(smallest=0.1, largest=20.0, num_first=4, resolution=1.05)
    is_met = searched(search, lambda k: k <= limit)
    low, high = bracket(is_met)
    assert low <= limit < high <= 1.05 * low
    assert len(is_met) <= 4 + math.ceil(math.log2(math.log(200) / 3 / math.log(1.05)))


def test_a_k_above_one_that_misses_is_not_taken():
    search = Search(smallest=1.0, largest=16.0, num_first=5, resolution=1.1)
    is_met = searched(search, lambda k: k <= 1.5 or 3.9 < k < 4.1)
    low, high = bracket(is_met)
    assert is_met[4.0] and low <= 1.5 < high < 4.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smallest": 2.0, "largest": 1.0}, "0 < smallest < largest, got 2 and 1"),
        ({"num_first": 1}, "num_first must be >= 2, got 1"),
        ({"resolution": 1.0}, "resolution must be >= 1.01, got 1.0"),
    ],
)
def test_searches_that_find_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Search(**settings)


PROMPTS = [Prompt(id=f"{n}", title=f"{n}", prompt="a", reference="b") for n in range(24)]


class World:
    """Texts are recited from some k on, which prompts and seeds decide."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        generator = np.random.default_rng([seed, 1])
        self._limits = generator.normal(math.log(4.0), 0.5, size=len(PROMPTS))

    def copied(self, experiment, setting):
        """A recited text has 50 words of its reference, another one 1."""
        alone = {SAFE: -math.inf, RISKY: math.inf}
        log_k = alone[setting.name] if setting.k is None else math.log(setting.k)
        noise = [
            np.random.default_rng([self._seed, 2, seed]).normal(size=len(PROMPTS))
            for seed in experiment.seeds
        ]
        is_recited = log_k + 0.8 * np.array(noise).T > self._limits[:, None]
        return np.where(is_recited, 50.0, 1.0).mean(1)[:, None] * np.ones(len(METRICS))


@pytest.fixture
def calibrated(monkeypatch, tmp_path):
    """Calibrate in a world, in a folder of its own."""
    rows = [
        {"id": "0", "certified": True, "bound": 1.0, "spent": 0.5},
        {"id": "1", "certified": True, "bound": 3.0, "spent": None},
    ]
    generations = {
        "reference_log_probs": {"0": -5.0, "1": -1.0},
        "generate_all": None,
        "failed_generations": [],
        "read_all_prompts": None,
        "read_generations": rows,
    }
    for name, made in generations.items():
        monkeypatch.setattr(calibrating, name, lambda *_, made=made: made)
    monkeypatch.setattr(targets, "NUM_RESAMPLES", 50)

    def calibrate_in(seed: int, **target):
        monkeypatch.setattr(calibrating, "copied_in", World(seed).copied)
        return calibrate(calibration(tmp_path / str(seed), Target(**target)), None)

    return calibrate_in


def calibration(folder: Path, target: Target) -> Calibration:
    experiment = Experiment(
        folder=folder,
        prompts=PROMPTS,
        settings=(),
        seeds=[0, 1, 2],
        max_new_tokens=8,
        repetition_penalty=1.0,
    )
    search = Search(smallest=0.5, num_first=4, resolution=1.04)
    return Calibration(
        experiment=experiment, rule=Anchored(k=1.0), target=target, search=search, num_check_seeds=9
    )


def test_a_choice_by_the_mean_is_optimistic_and_a_strict_one_is_not(calibrated):
    """Prompts are few here; fresh seeds see what the choice added."""
    by_mean = [calibrated(seed, value=0.8, is_strict=False) for seed in range(12)]
    assert min(each.chosen.figure.value for each in by_mean) >= 0.8
    num_missed = sum(not each.check.is_met for each in by_mean)
    assert num_missed >= 3  # about half of them
    strict = [calibrated(seed, value=0.8) for seed in range(4)]
    assert all(each.chosen.figure.low >= 0.8 for each in strict)
    assert all(each.check.is_met and each.check.figure.value >= 0.8 for each in strict)


def test_few_prompts_are_warned_of(calibrated, monkeypatch, caplog):
    calibrated(1)
    assert "are few" not in caplog.text
    monkeypatch.setattr(calibrating, "FEW_PROMPTS", 25)
    calibrated(2)
    assert "24 prompts are few" in caplog.text


def test_bounds_say_how_often_a_reference_may_be_recited(calibrated):
    found = calibrated(1)
    # The second text's bound is above its reference's own 1 nat.
    assert found.chosen.recited == (event_bound(1.0, -5.0) + 1.0) / 2
    assert (found.chosen.bound, found.chosen.spent) == (2.0, None)
    assert found.alone[1].recited is None and found.alone[1].bound is None


def test_a_generation_or_a_reference_that_fails_is_refused_by_setting_and_prompt(
    calibrated, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(calibrating, "reference_log_probs", lambda experiment, pair: {"0": -5.0})
        with pytest.raises(ValueError, match=r"^1: its reference has no probability under p_s"):
            calibrated(1)
    failed = [{"id": "3", "seed": 0, "error": "the risky model's logits are NaN"}]
    monkeypatch.setattr(calibrating, "failed_generations", lambda experiment, setting: failed)
    with pytest.raises(ValueError, match=r"^p_s, 3: the risky model's logits are NaN"):
        calibrated(2)


def test_a_reference_is_scored_as_far_as_a_generation_reaches(pair, tmp_path):
    long = replace(PROMPTS[0], prompt="the keeper", reference=" of the lamp wrote every wave")
    own = replace(
        calibration(tmp_path, Target()).experiment, prompts=[long], max_new_tokens=3, seeds=[0]
    )
    decoder = Decoder(pair, SafeOnly())
    token_ids = decoder.level.encode_continuation(long.reference)
    (score,) = decoder.score([long.prompt], [token_ids[:3]], temperature=0.7)
    assert len(token_ids) > 3
    found = calibrating.reference_log_probs(own, pair)
    assert found == {long.id: pytest.approx(score.log_prob)}


def test_checks_have_seeds_that_nothing_was_chosen_by(calibrated, tmp_path, monkeypatch):
    seen, world = [], World(5)
    monkeypatch.setattr(
        calibrating,
        "copied_in",
        lambda own, setting: seen.append((own.folder, own.seeds)) or world.copied(own, setting),
    )
    calibrate(calibration(tmp_path / "new", Target()), None)
    folders = dict(seen)
    assert folders[tmp_path / "new"] == [0, 1, 2]
    fresh = list(range(FIRST_CHECK_SEED, FIRST_CHECK_SEED + 9))
    assert folders[tmp_path / "new" / "check" / "9-seeds"] == fresh


def test_what_the_settings_do_not_decide_is_not_part_of_the_rule(tmp_path):
    own = calibration(tmp_path, Target())
    assert "k" not in own.rule_settings
    other = replace(own, rule=Anchored(k=3.0))
    assert other.rule_settings == own.rule_settings
    assert other.setting(0.5).rule == Anchored(k=0.5)
