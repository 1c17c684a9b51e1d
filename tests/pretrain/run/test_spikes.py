"""What counts as a loss spike, and what it does to a step."""

import math

import pytest
import torch

from anchored.pretrain.job_config import SpikeGuardConfig
from anchored.pretrain.plan.consumption import document_spans, sequence_documents
from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.run.spikes import Spike, SpikeGuard, guard_steps, spike_line


def guard(losses=(), **settings):
    one = SpikeGuard(SpikeGuardConfig(**{"window": 4, "action": "skip", **settings}))
    assert [one.check(loss) for loss in losses] == [None] * len(losses)
    return one


def test_a_loss_far_above_the_window_is_a_spike():
    # Mean 3, deviation sqrt(0.5): the limit is 3 + 6 * 0.707.
    watch = guard([2.0, 3.0, 3.0, 4.0])
    assert watch.check(7.2) is None
    spike = guard([2.0, 3.0, 3.0, 4.0]).check(7.3)
    assert spike == Spike(7.3, pytest.approx(3 + 6 * math.sqrt(0.5)), is_skipped=True)


def test_nothing_is_a_spike_before_the_window_is_full():
    assert guard([2.0, 2.0, 2.0]).check(100.0) is None


def test_a_small_rise_over_a_flat_curve_is_none():
    assert guard([2.0] * 4).check(2.2) is None
    assert guard([2.0] * 4).check(2.21) == Spike(2.21, 2.2, is_skipped=True)


def test_a_spike_does_not_hide_the_next_one():
    watch = guard([2.0] * 4)
    assert watch.check(50.0).loss == 50.0
    assert watch.check(50.0).loss == 50.0


def test_a_level_that_stays_higher_is_accepted():
    watch = guard([2.0] * 4, action="log")
    spikes = [watch.check(2.5) for _ in range(12)]
    assert spikes[0] is not None
    assert spikes[-1] is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_always_a_spike(loss):
    spike = guard().check(loss)
    assert spike.is_skipped
    assert not guard(action="log").check(loss).is_skipped


def test_nine_skips_in_a_row_end_the_run():
    watch = guard()
    for _ in range(8):
        watch.check(math.nan)
    with pytest.raises(
        RuntimeError, match="8 steps in a row were skipped and the loss is still nan"
    ):
        watch.check(math.nan)


def test_its_state_is_enough_to_go_on():
    one, other = guard([2.0, 3.0, 3.0, 4.0]), guard()
    other.load_state_dict(one.state_dict())
    assert other.check(7.3) == one.check(7.3) is not None


@pytest.mark.parametrize("settings", [{"window": 1}, {"deviations": 0}, {"min_rise_nats": -1}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ValueError, match="spike_guard needs window >= 2"):
        SpikeGuardConfig(**settings)


def test_a_step_that_is_not_permitted_leaves_weights_and_moments():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    adam = torch.optim.AdamW([weight])
    permitted = iter([False, True])
    guard_steps(adam, lambda: next(permitted))
    adam.step()
    assert torch.equal(weight, torch.ones(3)) and not adam.state
    adam.step()
    assert not torch.equal(weight, torch.ones(3)) and adam.state


@pytest.fixture
def plan(corpus):
    sources = tuple(
        DataSource(name=name, path=str(corpus.source(name)), weight=1.0)
        for name in ("harbour", "quarry")
    )
    return DataPlan.open(DataConfig(sources=sources), seq_len=32, verify=True)


def test_a_sequence_is_named_by_its_first_and_last_document(plan):
    rows = sequence_documents(plan, 3, 10)
    assert [row["sequence"] for row in rows] == list(range(20, 30))
    for row in rows:
        window = plan.locate(row["sequence"])
        shards = plan.shards[window.source]
        assert (row["source"], row["epoch"]) == (shards.manifest.source, window.epoch)
        # The window may run on at token 0, so its last token is taken modulo the source.
        ends = (window.start, (window.start + 32) % shards.num_tokens)
        for end, name in zip(ends, ("first_document", "last_document"), strict=True):
            (span,) = document_spans(shards, end, 1)
            assert row[name] == {"input_file": span.input_file, "record": span.record}


def test_the_line_of_a_spike_is_valid_json_for_any_loss(plan):
    line = spike_line(Spike(math.nan, math.inf, True), plan, step=3, batch_size=4)
    assert (line["loss"], line["limit"], line["action"]) == ("nan", "inf", "skipped")
    assert [row["sequence"] for row in line["sequences"]] == [8, 9, 10, 11]
