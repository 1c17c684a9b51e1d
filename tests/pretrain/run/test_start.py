"""Which settings make another run, and in which a run and its resumption may differ."""

from dataclasses import fields, is_dataclass, replace

import pytest

from anchored.pretrain.job_config import JobConfig, SpikeGuardConfig
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.run.start import MAY_DIFFER, record_of

NAMES = [name for names in MAY_DIFFER.values() for name in names]


def settings(config, prefix=""):
    """Every setting by its dotted name."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def is_in(key, name):
    return key == name or key.startswith(f"{name}.")


def another(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "another"


@pytest.fixture(scope="module")
def plan(corpus):
    return DataPlan.open(corpus.data_config({"quarry": 1.0}), seq_len=32, verify=False)


def run_config(plan):
    """Of a run in which every section is at work."""
    config = JobConfig()
    config.model.flavor = "smoke"
    config.model.converters = ["quantize.linear.float8"]
    config.training.global_batch_size = 8
    config.lr_scheduler.total_steps = 10_000
    config.fault_tolerance.enable = True
    config.spike_guard = SpikeGuardConfig(action="skip")
    config.data = replace(plan.config, max_epochs=4.0)
    return config


@pytest.fixture(scope="module")
def record(plan):
    """Builds the record of a run with some settings, by dotted names, changed."""

    def build(changes=None):
        config = run_config(plan)
        for key, value in (changes or {}).items():
            *sections, name = key.split(".")
            owner = config
            for section in sections:
                owner = getattr(owner, section)
            object.__setattr__(owner, name, value)  # some sections are frozen
        return record_of(config, plan, num_processes=1)

    return build


def test_every_setting_is_compared_or_listed_with_a_reason(record, plan):
    changes = {"model.flavor": "trial"}  # the sources are not to be changed: the model reads them
    changes |= {
        key: another(value) for key, value in settings(run_config(plan)) if key not in changes
    }
    del changes["data.sources"]
    is_same = {key: record().difference(record({key: changes[key]})) is None for key in changes}
    assert len(is_same) > 140
    assert is_same == {key: any(is_in(key, name) for name in NAMES) for key in changes}


def test_no_listed_name_is_of_a_setting_that_is_not_there():
    known = [key for key, _ in settings(JobConfig())]
    assert [name for name in NAMES if not any(is_in(key, name) for key in known)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.mixed_precision_reduce", "bfloat16"),
        ("quantize.linear.float8.recipe_name", "rowwise"),
        ("checkpoint.initial_load_model_only", False),
        ("checkpoint.exclude_from_loading", ["optimizer"]),
        ("experimental.custom_import", "a.module"),
        ("training.global_batch_size", 16),
        ("spike_guard.window", 9),
    ],
)
def test_a_setting_that_decides_weights_is_named_where_it_differs(record, key, value):
    assert record().difference(record({key: value})).startswith(f"{key} was ")


def test_a_section_that_nothing_reads_may_differ(record):
    idle = {
        "model.converters": [],
        "fault_tolerance.enable": False,
        "spike_guard": SpikeGuardConfig(action="log"),
    }
    other = {
        "quantize.linear.float8.recipe_name": "rowwise",
        "fault_tolerance.group_size": 4,
        "spike_guard": SpikeGuardConfig(action="off", window=9),
    }
    assert record(idle).difference(record(idle | other)) is None


@pytest.mark.parametrize(
    ("harmless", "harmful", "difference"),
    [
        # A run may be made longer, but not its schedule; its batch cut otherwise, but not another.
        ("training.steps", "lr_scheduler.total_steps", "10000 and is now 5000"),
        ("training.local_batch_size", "training.global_batch_size", "8 and is now 4"),
    ],
)
def test_a_setting_is_compared_as_what_it_stands_for(record, harmless, harmful, difference):
    value = int(difference.split()[-1])
    assert record().difference(record({harmless: value})) is None
    stands_for = {harmless: value, harmful: None if "steps" in harmful else -1}
    assert record().difference(record(stands_for)) == f"{harmful} was {difference}"
