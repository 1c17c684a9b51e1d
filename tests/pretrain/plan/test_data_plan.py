"""The data plan: windows, epochs, shares and the hash that identifies it."""

from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.tokens.shards import Manifest

SEQ_LEN = 32
WEIGHTS = {"harbour": 0.5, "orchard": 0.3, "quarry": 0.2}


def plan_of(corpus, weights=WEIGHTS, **changes):
    return corpus.plan(weights, **changes)


def test_a_sequence_is_its_window_and_one_token_more(corpus):
    plan = plan_of(corpus)
    num_wrapped = 0
    for sequence in range(8 * sum(plan.num_windows)):
        window = plan.locate(sequence)
        shards = plan.shards[window.source]
        stream = shards.tokens(0, shards.num_tokens).tolist()
        expected = (stream + stream)[window.start : window.start + SEQ_LEN + 1]
        assert plan.tokens(sequence).tolist() == expected
        num_wrapped += window.start + SEQ_LEN >= shards.num_tokens
    assert num_wrapped > 0


def starts_by_epoch(plan, num_epochs):
    starts, epochs = defaultdict(list), Counter()
    for sequence in range((num_epochs + 1) * sum(plan.num_windows)):
        window = plan.locate(sequence)
        assert epochs[window.source] <= window.epoch  # they follow one another
        epochs[window.source] = window.epoch
        starts[window.source, window.epoch].append(window.start)
    return starts


def test_every_epoch_reads_each_token_at_most_once_and_almost_all(corpus):
    plan = plan_of(corpus)
    starts = starts_by_epoch(plan, num_epochs=2)
    for source, shards in enumerate(plan.shards):
        first, second = starts[source, 0], starts[source, 1]
        read = Counter((start + i) % shards.num_tokens for start in first for i in range(SEQ_LEN))
        assert len(first) == len(set(second)) == plan.num_windows[source]
        assert max(read.values()) == 1 and shards.num_tokens - len(read) <= SEQ_LEN
        assert len(read) == plan.num_windows[source] * SEQ_LEN
        # The next one cuts its windows elsewhere, and has another order of them.
        assert min(first) != min(second) and max(min(first), min(second)) < SEQ_LEN
        assert [one // SEQ_LEN for one in first] != [one // SEQ_LEN for one in second]


def invented_shards(corpus, name, num_tokens):
    """All that a plan asks of the shards of a source."""
    sizes = {"num_tokens": num_tokens, "num_documents": 1}
    manifest = Manifest.read(corpus.source("harbour"))
    shard = replace(manifest.shards[0], tokens_sha256=name, **sizes)
    manifest = replace(manifest, tokenizer_sha256="tokenizer", shards=(shard,), **sizes)
    return SimpleNamespace(num_tokens=num_tokens, manifest=manifest)


def test_order_and_hash_never_change(corpus):
    # Golden: printed from the two expressions below. A run that was started must read the same
    # data, and be known as the same run, after an upgrade.
    sizes = {"harbour": 2000, "orchard": 900, "quarry": 150}
    shards = [invented_shards(corpus, name, size) for name, size in sizes.items()]
    plan = DataPlan(corpus.data_config(WEIGHTS, seed=7), shards, seq_len=SEQ_LEN)
    windows = [plan.locate(sequence) for sequence in (0, 1, 2, 3, 20, 21, 22, 1_000_000)]
    assert [(window.source, window.epoch, window.start) for window in windows] == [
        *((0, 0, 868), (1, 0, 23), (0, 0, 388), (2, 0, 19)),
        *((0, 0, 1380), (1, 0, 343), (0, 0, 1764), (0, 8064, 269)),
    ]
    assert plan.hash == "ffd69355491605a08e726821aff05c855cc93af652174d26d6c71874f060ae53"


def test_document_weights_count_long_documents_more(corpus):
    shards = [invented_shards(corpus, name, size) for name, size in (("short", 90), ("long", 810))]
    config = corpus.data_config({"short": 0.5, "long": 0.5}, weight_unit="documents")
    plan = DataPlan(config, shards, seq_len=SEQ_LEN)
    assert plan.mixture.counts(1000) == [100, 900]  # each is one document


def test_the_hash_tells_plans_apart(corpus):
    changes = [
        *({}, {"seed": 1}, {"weights": WEIGHTS | {"quarry": 0.21}}, {"weight_unit": "documents"}),
        *({"weights": {"harbour": 0.5, "orchard": 0.3}}, {"seq_len": 16}),
    ]
    assert plan_of(corpus).hash == plan_of(corpus).hash
    assert len({plan_of(corpus, **change).hash for change in changes}) == len(changes)


def test_sources_that_cannot_be_mixed_are_refused(corpus):
    with pytest.raises(ValueError, match=r"source harbour has \d+ tokens, too few"):
        plan_of(corpus, seq_len=100_000)
    with pytest.raises(ValueError, match=r"data\.sources is empty"):
        plan_of(corpus, {})
    source = DataSource(name="a", path="x", weight=1.0)
    with pytest.raises(ValueError, match="must differ, got twice: a"):
        DataConfig(sources=(source, source))
    for weight in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight of source a must be positive"):
            DataSource(name="a", path="x", weight=weight)
