"""What a byte-level stream computes ahead, leaves out or bounds changes what it should alone."""

import pytest
from byte_streams import (
    CONTINUATION,
    PROMPT,
    assert_same,
    bytes_of,
    feed,
    feed_byte_by_byte,
    model_of,
    stream_of,
)
from torch import Tensor

from anchored.decode.byte import byte_row
from anchored.decode.byte import prompt as byte_prompt
from anchored.decode.models.linear import OutputLayer

one_tokenizer = pytest.mark.parametrize("family", ["cl100k"])


@pytest.mark.parametrize("prefetch", [1, 4])
def test_prefetching_changes_nothing_but_the_number_of_forwards(
    prefetch, vocabulary, model, prompt, text
):
    counts, fed = [], []
    for number in (0, prefetch):
        stream = stream_of(model, vocabulary, prefetch=number)
        stream.read([prompt], [0])
        fed.append(feed_byte_by_byte(stream, 0, text))
        counts.append(stream.counts(0))
    assert_same(fed[1], fed[0])
    assert counts[0].num_guesses == 0 < counts[1].num_guesses


@one_tokenizer
def test_guesses_join_forwards_of_few_rows_only(vocabulary, model, prompt, text, monkeypatch):
    monkeypatch.setattr(byte_row, "WITH_GUESSES", 3)
    guesses = []
    for rows in ([0], [0, 1, 2]):
        stream = stream_of(model, vocabulary, prefetch=4)
        stream.read([prompt] * len(rows), rows)
        for byte in text:
            stream.feed_rows(rows, [[byte]] * len(rows))
        guesses.append(stream.counts(0).num_guesses)
        assert stream.counts(0).num_nodes <= stream.counts(0).num_forwards * 3 + len(prompt)
    assert guesses[0] > 0 == guesses[1]


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    return (first.exp() - second.exp()).abs().sum(-1) / 2


@pytest.mark.parametrize("tau", [1e-3, 0.05, 0.3])
def test_left_out_nodes_lose_no_more_than_the_logged_bound(tau, vocabulary, model, prompt, text):
    exact, lazy = stream_of(model, vocabulary), stream_of(model, vocabulary, tau=tau, prefetch=2)
    for stream in (exact, lazy):
        stream.read([prompt], [0])
    losses = []
    for byte in text:
        expected, actual = feed(exact, {0: [byte]})[0], feed(lazy, {0: [byte]})[0]
        losses.append(float(total_variation(actual, expected)))
        assert losses[-1] <= lazy.counts(0).total_variation + 1e-12
        assert lazy.counts(0).total_variation <= tau
    assert lazy.counts(0).max_total_variation >= max(losses) > 0


@one_tokenizer
def test_what_is_left_out_does_not_depend_on_what_was_computed_ahead(
    vocabulary, model, prompt, text
):
    fed = []
    for prefetch in (0, 3):
        stream = stream_of(model, vocabulary, tau=0.1, prefetch=prefetch)
        stream.read([prompt, prompt], [0, 1])
        fed += [feed_byte_by_byte(stream, 0, text), feed(stream, {1: text})[1]]
    for logits in fed[1:]:
        assert_same(logits, fed[0])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bounds_on_prompt_scores_hold_and_cost_a_few_nodes(name, vocabulary):
    model = model_of(vocabulary, name)
    text = bytes_of(vocabulary, 3 * (PROMPT + CONTINUATION))
    scores, nodes = {}, {}
    for which in ("lower", "exact", "upper"):
        stream = stream_of(model, vocabulary, prompt_scores=which)
        read = stream.read([text], [0])
        scores[which], nodes[which] = read.token_log_probs[0], stream.counts(0).num_nodes
    assert (scores["lower"] <= scores["exact"] + 1e-12).all()
    assert (scores["exact"] <= scores["upper"] + 1e-12).all()
    assert (scores["upper"] <= 0).all()
    assert nodes["lower"] == nodes["upper"] < 0.9 * nodes["exact"]
    # The interval tells something: most bytes are known to some percents, though the model is
    # untrained and gives much mass to tokens that the text does not use.
    assert ((scores["upper"] - scores["lower"]).median()) < 0.2


@one_tokenizer
def test_bounds_are_narrower_by_the_nodes_that_hold_most_mass(vocabulary, model, monkeypatch):
    text, widths = bytes_of(vocabulary, 3 * (PROMPT + CONTINUATION)), []
    for share in (2.0, 0.5):
        monkeypatch.setattr(byte_prompt, "LEAST_SHARE", share)
        lower, upper = (
            stream_of(model, vocabulary, prompt_scores=which).read([text], [0]).token_log_probs[0]
            for which in ("lower", "upper")
        )
        widths.append((upper - lower).mean())
    assert widths[1] < 0.5 * widths[0]


@one_tokenizer
def test_without_prompt_scores_only_the_next_byte_is_computed(vocabulary, model):
    text = bytes_of(vocabulary, PROMPT)
    exact, none = stream_of(model, vocabulary), stream_of(model, vocabulary, prompt_scores="none")
    assert_same(none.read([text], [0]).logits, exact.read([text], [0]).logits)
    assert none.read([text], [1]).token_log_probs[0].shape == (0,)


@one_tokenizer
def test_the_first_byte_asks_for_no_logits_that_the_scores_had(monkeypatch, vocabulary, model):
    stream, asked = stream_of(model, vocabulary), []
    logits = OutputLayer.logits
    monkeypatch.setattr(
        OutputLayer,
        "logits",
        lambda layer, hidden: asked.append(len(hidden)) or logits(layer, hidden),
    )
    text = bytes_of(vocabulary, PROMPT)
    stream.read([text], [0])
    assert sum(asked) == stream.counts(0).num_nodes
