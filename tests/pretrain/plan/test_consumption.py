"""The ledger of what a step reads is what the loader gives, document by document."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from anchored.pretrain.plan.consumption import consumed_documents, document_spans
from anchored.pretrain.plan.data_config import DataConfig, DataSource
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.tools.commands.training.tokenize import run
from anchored.tools.commands.training.training_options import TokenizeConfig

SEQ_LEN = 24
STEP_SEQUENCES = 6
SIZES = {"bay": 400, "cove": 150, "dune": 33}
WORDS = ["salt", "rain", "wave", "bell", "lamp", "ledger", "keeper", "harbour"]


@pytest.fixture(scope="module")
def rows():
    """Documents of three sources of different sizes, each under one of three licences."""
    generator = np.random.default_rng(5)
    return {
        name: [
            {
                "text": " ".join(generator.choice(WORDS, size=generator.integers(3, 40))),
                "metadata": {"license": f"licence {number % 3}"},
            }
            for number in range(count)
        ]
        for name, count in SIZES.items()
    }


@pytest.fixture(scope="module")
def plan(rows, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    sources = []
    for name, records in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
        config = TokenizeConfig(
            source=name,
            tokenizer=str(corpus.tokenizer_folder),
            output=folder / "shards" / name,
            input=(folder / f"{name}.jsonl",),
            heldout_fraction=0.05,
            shard_tokens=900,
            workers=1,
        )
        assert run(config) == 0
        sources.append(DataSource(name=name, path=str(config.output), weight=len(records)))
    return DataPlan.open(DataConfig(sources=tuple(sources), seed=3), seq_len=SEQ_LEN, verify=True)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return Tokenizer.from_file(str(corpus.tokenizer_folder / "tokenizer.json"))


@pytest.mark.parametrize("step", [1, 2, 7, 60])
def test_the_documents_of_a_step_are_the_tokens_of_its_sequences(plan, rows, tokenizer, step):
    read: dict[int, list[int]] = {}
    for piece in consumed_documents(plan, step, sequences_per_step=STEP_SEQUENCES):
        row = rows[piece.source][piece.span.record]
        assert piece.span.licence == row["metadata"]["license"]
        assert piece.span.input_file == f"{piece.source}.jsonl"
        manifest = plan.shards[0].manifest
        text = tokenizer.encode(row["text"], add_special_tokens=False).ids
        tokens = [manifest.bos_id, *text, manifest.eos_id]
        sequence = read.setdefault(piece.sequence, [])
        assert piece.position == len(sequence)
        sequence += tokens[piece.span.first_token :][: piece.span.num_tokens]
    first = (step - 1) * STEP_SEQUENCES
    assert list(read) == list(range(first, first + STEP_SEQUENCES))
    assert all(plan.tokens(number).tolist() == tokens for number, tokens in read.items())


def test_spans_across_shards_keep_their_order(plan):
    shards = plan.shards[0]
    assert len(shards.manifest.shards) > 3
    spans = list(document_spans(shards, 0, shards.num_tokens))
    assert sum(span.num_tokens for span in spans) == shards.num_tokens
    assert len(spans) == shards.manifest.num_documents
    records = [span.record for span in spans]
    assert records == sorted(set(records))


def test_steps_count_from_one(plan):
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        next(consumed_documents(plan, 0, sequences_per_step=STEP_SEQUENCES))
