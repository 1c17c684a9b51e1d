"""What is said of a document is what reading every step shows."""

import shutil
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from tokenizers import Tokenizer
from training_runs import train

from anchored.pretrain.plan.consumption import consumed_documents, document_spans
from anchored.pretrain.plan.data_plan import DataPlan, data_record, skipped_steps, step_reading
from anchored.pretrain.plan.order import KeyedPermutation, Mixture
from anchored.pretrain.plan.provenance import document_of_shard, find_document, readings
from anchored.pretrain.plan.stages import run_spec
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.tokens.shards import TokenShards
from anchored.pretrain.tokens.text_index import TextIndex
from anchored.tools.commands.training.provenance import run
from anchored.tools.commands.training.training_options import ProvenanceConfig

BATCH_SIZE = 3


@pytest.mark.parametrize("weights", [[1], [1, 1], [3, 1, 2], [70, 15, 15], [1, 1000, 37, 5]])
def test_positions_of_a_mixture_are_found_back(weights):
    mixture = Mixture([Fraction(weight) for weight in weights])
    for position in range(3000):
        assert mixture.position(*mixture.locate(position)) == position


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000])
def test_a_permutation_is_inverted(size):
    order = KeyedPermutation(size, "key")
    assert [order.index(order[number]) for number in range(size)] == list(range(size))


def test_steps_behind_skipped_data_are_found_back():
    data = {"skips": [[4, 2], [9, 3]]}
    read = {step + skipped_steps(data, step - 1): step for step in range(1, 30)}
    assert {number: step_reading(data, number) for number in read} == read
    assert [number for number in range(1, 30) if step_reading(data, number) is None] == [
        *(5, 6),
        *(12, 13, 14),
    ]


@pytest.mark.parametrize("skips", [[], [[5, 3], [11, 2]]])
def test_every_document_of_a_run_is_said_to_be_read_where_it_was(corpus, skips):
    config = corpus.data_config({"harbour": 0.5, "orchard": 0.2, "quarry": 0.3}, seed=5)
    plan = DataPlan.open(config, seq_len=40, verify=False)
    data = data_record(plan, batch_size=BATCH_SIZE) | {"skips": skips}
    check_every_document(plan, data, corpus, num_steps=30)


@pytest.mark.slow
def test_every_document_of_a_trained_run_is_said_to_be_read_where_it_was(
    corpus, write_config, tmp_path
):
    config = write_config(tmp_path / "run", steps=200, lr_scheduler={"total_steps": 200})
    train(config)
    spec = run_spec(config)
    plan = DataPlan.open(spec.data, seq_len=spec.seq_len, verify=True)
    data = RunRecord.read(tmp_path / "run").data
    assert data["plan_hash"] == plan.hash
    check_every_document(plan, data, corpus, num_steps=200)


def check_every_document(plan, data, corpus, *, num_steps):
    """Against the steps, each read from its number, and the raw texts."""
    tokenizer = Tokenizer.from_file(str(corpus.tokenizer_folder / "tokenizer.json"))
    texts = corpus.texts
    batch_size = data["batch_size"]
    read = defaultdict(list)
    for step in range(1, num_steps + 1):
        data_step = step + skipped_steps(data, step - 1)
        for one in consumed_documents(plan, data_step, sequences_per_step=batch_size):
            span = one.span
            read[one.source, span.shard, span.record].append(
                (step, one.sequence, one.position, one.epoch, span.first_token, span.num_tokens)
            )
    num_documents = 0
    for source, shards in zip(plan.config.sources, plan.shards, strict=True):
        for span in document_spans(shards, 0, shards.num_tokens):
            num_documents += 1
            document = find_document(source.name, shards, span.input_file, span.record)
            assert document is not None and document.num_tokens == span.num_tokens
            assert document.licence == span.licence == "CC0-1.0"
            tokens = shards.tokens(document.start, document.num_tokens)
            raw = tokenizer.encode(texts[source.name][span.record], add_special_tokens=False).ids
            assert tokens.tolist() == [plan.bos_id, *raw, plan.eos_id]
            said = readings(plan, document, data, num_steps=num_steps)
            assert [
                (one.step, one.sequence, one.position, one.epoch, one.first_token, one.num_tokens)
                for one in said
            ] == read[source.name, span.shard, span.record]
            for one in said:  # the text itself
                sequence = plan.tokens(one.sequence)[one.position :][: one.num_tokens]
                assert np.array_equal(sequence, tokens[one.first_token :][: one.num_tokens])
    assert num_documents == 125


def test_a_document_that_shards_do_not_hold_is_not_found(corpus):
    config = corpus.data_config({"harbour": 1.0})
    (shards,) = DataPlan.open(config, seq_len=40, verify=False).shards
    assert find_document("harbour", shards, "", 10**6) is None
    assert find_document("harbour", shards, "other.jsonl", 0) is None


def test_every_text_is_found_in_its_document(corpus, tmp_path):
    folder = shutil.copytree(corpus.source("quarry"), tmp_path / "quarry")
    shards = TokenShards.open(folder)
    tokenizer_file = corpus.tokenizer_folder / "tokenizer.json"
    index = TextIndex(shards, tokenizer_file)
    num_found = 0
    for record, text in enumerate(corpus.texts["quarry"]):
        part = text[20:].upper()
        if len(part) < 200:
            continue
        num_found += 1
        shard, number, base, share = max(index.find(part), key=lambda found: found[3])
        assert share == 1.0
        document = document_of_shard("quarry", shards, shard, number, base)
        assert document == find_document("quarry", shards, "", record)
    assert num_found > 5
    assert not list(index.find("entirely other words " * 40))
    with pytest.raises(ValueError, match="the text is too short to be found"):
        next(index.find("salt"))
    made = {path: path.stat().st_mtime_ns for path in folder.glob("text-*.index")}
    assert len(made) == len(shards.manifest.shards)
    assert list(TextIndex(shards, tokenizer_file).find(part)) == list(index.find(part))
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_text_tells_the_steps_that_read_it(corpus, write_config, tmp_path, capsys):
    config = write_config(tmp_path / "run", steps=200)
    (tmp_path / "text.txt").write_text(max(corpus.texts["orchard"], key=len).title())
    record = corpus.texts["orchard"].index(max(corpus.texts["orchard"], key=len))
    tokenizer = str(corpus.tokenizer_folder)
    assert run(ProvenanceConfig(config=config, document=f"orchard::{record}")) == 0
    named = capsys.readouterr()
    assert named.out
    text = tmp_path / "text.txt"
    assert run(ProvenanceConfig(config=config, text=text, tokenizer=tokenizer)) == 0
    found = capsys.readouterr()
    assert named.out in found.out
    assert f"orchard::{record}, which holds 100% of the text: " in found.err
