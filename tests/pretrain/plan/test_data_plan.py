"""The data plan: the order of sources and windows, its hash, and the steps that read a document."""

from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan, data_record, skipped_steps, tokens_read
from anchored.pretrain.plan.order import KeyedPermutation, Mixture
from anchored.pretrain.plan.provenance import (
    document_spans,
    find_document,
    parts_read,
    sequence_documents,
)
from anchored.pretrain.tokens.shards import Manifest

SEQ_LEN, BATCH_SIZE = 32, 3
WEIGHTS = {"harbour": 0.5, "orchard": 0.3, "quarry": 0.2}
SHARES = st.lists(
    st.fractions(Fraction(1, 1000), 50, max_denominator=1000), min_size=1, max_size=31
)


@given(weights=SHARES, start=st.integers(0, 400) | st.integers(0, 10**9))
@settings(max_examples=60)
def test_counts_are_of_the_sources_located_each_in_its_own_order_without_gaps(weights, start):
    mixture = Mixture(weights)
    assert mixture.counts(0) == [0] * len(weights)
    expected = mixture.counts(start)
    for position in range(start, start + 60):
        source, occurrence = mixture.locate(position)
        assert occurrence == expected[source]
        assert mixture.position(source, occurrence) == position
        expected[source] += 1
    assert mixture.counts(start + 60) == expected


@given(weights=SHARES, length=st.integers(0, 1000) | st.integers(0, 10**12))
@settings(max_examples=100)
def test_every_prefix_is_in_proportion(weights, length):
    for weight, count in zip(weights, Mixture(weights).counts(length), strict=True):
        assert abs(count - length * weight / sum(weights)) < Fraction(168, 100)


@given(size=st.integers(1, 1000) | st.integers(1, 2**40), key=st.text(max_size=20), data=st.data())
@settings(max_examples=100)
def test_a_permutation_hits_every_element_exactly_once(size, key, data):
    permutation = KeyedPermutation(size, key)
    first = data.draw(st.integers(0, max(0, size - 1000)))
    indices = range(first, min(size, first + 1000))  # all of a small one
    elements = [permutation[index] for index in indices]
    assert min(elements) >= 0 and max(elements) < size
    assert [permutation.index(element) for element in elements] == list(indices)


def test_a_permutation_never_changes():
    # Golden: print([KeyedPermutation(11, "0/a/0")[i] for i in range(11)]). Runs that were
    # started must read the same windows when they are resumed with a later version.
    expected = [8, 10, 9, 7, 5, 0, 1, 3, 6, 4, 2]
    assert [KeyedPermutation(11, "0/a/0")[index] for index in range(11)] == expected


def test_places_in_a_permutation_are_spread_over_the_keys():
    # Where 0 lands over 4,000 keys, in 16 cells: chi-square with 15 degrees of freedom stays
    # below 44.3 with probability 0.9999.
    counts = [0] * 16
    for key in range(4000):
        counts[KeyedPermutation(16, str(key))[0]] += 1
    assert sum((count - 250) ** 2 / 250 for count in counts) < 44.3


def test_a_sequence_is_its_window_and_one_token_more(corpus):
    plan = corpus.plan(WEIGHTS)
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
    plan = corpus.plan(WEIGHTS)
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


def test_sources_that_cannot_be_mixed_are_refused(corpus):
    with pytest.raises(ValueError, match=r"source harbour has \d+ tokens, too few"):
        corpus.plan(WEIGHTS, seq_len=100_000)
    with pytest.raises(ValueError, match=r"data\.sources is empty"):
        corpus.plan({})
    source = DataSource(name="a", path="x", weight=1.0)
    with pytest.raises(ValueError, match="must differ, got twice: a"):
        DataConfig(sources=(source, source))
    for weight in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight of source a must be positive"):
            DataSource(name="a", path="x", weight=weight)


def test_every_document_of_a_run_is_said_to_be_read_where_it_was(corpus):
    plan = corpus.plan({"harbour": 0.5, "orchard": 0.2, "quarry": 0.3}, seq_len=40, seed=5)
    data = data_record(plan, batch_size=BATCH_SIZE) | {"skips": [[5, 3], [11, 2]]}
    num_steps = 30
    # Against the steps, each read from its number, and the raw texts.
    tokenizer = Tokenizer.from_file(str(corpus.tokenizer_folder / "tokenizer.json"))
    texts = corpus.texts
    read, covered = defaultdict(list), Counter()
    sources = Counter()
    for step in range(1, num_steps + 1):
        first = BATCH_SIZE * (step + skipped_steps(data, step - 1) - 1)
        for sequence in range(first, first + BATCH_SIZE):
            for one in sequence_documents(plan, sequence):
                assert one.position == covered[sequence]
                covered[sequence] += one.num_tokens
                read[one.source, one.shard, one.record].append((step, one))
            sources[one.source] += plan.seq_len
        assert Counter(tokens_read(data, step)) == sources
    # Every sequence is covered to its end, the label of its last token.
    assert len(covered) == num_steps * BATCH_SIZE
    assert set(covered.values()) == {plan.seq_len + 1}
    num_documents = 0
    for index, (source, shards) in enumerate(zip(plan.config.sources, plan.shards, strict=True)):
        for span in document_spans(shards, 0, shards.num_tokens):
            num_documents += 1
            start, document = find_document(shards, span.input_file, span.record)
            assert document == span and span.license == "CC0-1.0"
            tokens = shards.tokens(start, document.num_tokens)
            raw = tokenizer.encode(texts[source.name][span.record], add_special_tokens=False).ids
            assert tokens.tolist() == [plan.bos_id, *raw, plan.eos_id]
            said = parts_read(plan, index, start, document, data, num_steps=num_steps)
            assert said == read[source.name, span.shard, span.record]
            for _, one in said:  # the text itself
                sequence = plan.tokens(one.sequence)[one.position :][: one.num_tokens]
                assert np.array_equal(sequence, tokens[one.first_token :][: one.num_tokens])
        assert find_document(shards, "", 10**6) is None
        assert find_document(shards, "other.jsonl", 0) is None
    assert num_documents == 125
