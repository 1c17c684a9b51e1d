"""What counts as a loss spike, and what it does to a step."""

import math

import pytest
import torch

from anchored.pretrain.job_config import SpikeGuardConfig
from anchored.pretrain.plan.consumption import document_spans, sequence_documents
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.run.spikes import Spike, SpikeGuard, guard_steps, spike_line


def guard(losses=(), **settings):
    one = SpikeGuard(SpikeGuardConfig(**{"window": 4, "action": "skip", **settings}))
    assert [one.check(loss) for loss in losses] == [None] * len(losses)
    return one


@pytest.mark.parametrize(
    ("losses", "limit"),
    [
        ([2.0, 3.0, 3.0, 4.0], 3 + 6 * math.sqrt(0.5)),  # six deviations above the mean
        ([2.0] * 4, 2.2),  # over a flat curve at least 0.2
        ([2.0] * 3, math.inf),  # nothing is a spike before the window is full
    ],
)
def test_a_loss_far_above_the_window_is_a_spike(losses, limit):
    assert guard(losses).check(min(limit - 0.01, 100.0)) is None
    spike = guard(losses).check(limit + 0.01)
    assert spike == Spike(limit + 0.01, pytest.approx(limit), is_skipped=True)


def test_a_spike_does_not_hide_the_next_one_and_a_level_that_stays_is_accepted():
    watch = guard([2.0] * 4)
    assert [watch.check(50.0).loss for _ in range(2)] == [50.0, 50.0]
    watch = guard([2.0] * 4, action="log")
    spikes = [watch.check(2.5) for _ in range(12)]
    assert spikes[0] is not None and spikes[-1] is None


def test_a_loss_that_is_not_finite_is_always_a_spike_and_nine_skips_end_the_run():
    assert not guard(action="log").check(math.inf).is_skipped
    watch = guard()
    for loss in [math.nan, math.inf] * 4:
        assert watch.check(loss).is_skipped
    message = "8 steps in a row were skipped and the loss is still nan"
    with pytest.raises(RuntimeError, match=message):
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
    data = corpus.data_config({"harbour": 1.0, "quarry": 1.0})
    return DataPlan.open(data, seq_len=32, verify=True)


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
