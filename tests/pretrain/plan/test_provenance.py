"""The steps said to read a document are what reading every step shows."""

from collections import Counter, defaultdict

import numpy as np
from tokenizers import Tokenizer

from anchored.pretrain.plan.data_plan import data_record, skipped_steps, tokens_read
from anchored.pretrain.plan.provenance import (
    document_spans,
    find_document,
    parts_read,
    sequence_documents,
)

BATCH_SIZE = 3


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
