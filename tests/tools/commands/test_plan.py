"""anchored plan: the table of a mixture, of a run with shards, and the documents of a step."""

import json
import shutil

import pytest

from anchored.pretrain.plan.data_config import DataConfig, DataSource, read_run_config
from anchored.pretrain.plan.data_plan import DataPlan
from anchored.pretrain.tokens.writer import write_token_shards
from anchored.tools.commands.training.plan import PlanConfig, run

WEIGHTS = {"bay": 0.75, "cove": 0.25}
RUN = """
[training]
steps = 20
seq_len = 16
global_batch_size = 4
[data]
seed = 7
"""
SOURCE = """
[[data.sources]]
name = "{name}"
path = "{path}"
weight = {weight}
"""


@pytest.fixture(scope="module")
def shards_folder(tmp_path_factory, tokenizer_folder):
    folder = tmp_path_factory.mktemp("shards")
    for name, count in (("bay", 120), ("cove", 60)):
        texts = [f"the keeper of {name} {number}" for number in range(count)]
        origin = {"source": name, "license": f"{name} license", "revision": "1"}
        write_token_shards(folder / name, texts, tokenizer_folder / "tokenizer.json", **origin)
    return folder


@pytest.fixture
def run_file(tmp_path, shards_folder):
    path = tmp_path / "harbour.toml"
    sources = [
        SOURCE.format(name=name, path=shards_folder / name, weight=weight)
        for name, weight in WEIGHTS.items()
    ]
    path.write_text("".join([RUN, *sources]))
    return path


def planned(capsys, tmp_path, **settings):
    assert run(PlanConfig(output=tmp_path / "plan.json", overwrite=True, **settings)) == 0
    captured = capsys.readouterr()
    return captured.out, json.loads((tmp_path / "plan.json").read_text())


def test_the_common_pile_is_planned_from_counts(capsys, tmp_path):
    out, saved = planned(capsys, tmp_path)
    assert "stage1: 37,193 steps" in out and "156.0B tokens" in out
    assert "stage2: 3,219 steps" in out and "13.5B tokens" in out
    assert out.count(" stated ") == 31 + 3
    assert "disk: 648.3 GB of token shards" in out
    assert "token shards are missing of 31 sources: arxiv_abstracts" in out
    assert "plan hash: none until the shards of all sources are there" in out
    assert len(saved["missing_shards"]) == 31
    assert saved["stages"][0]["num_tokens"] == 37_193 * 2**22


def test_a_run_is_planned_from_its_shards(capsys, tmp_path, run_file, shards_folder):
    out, saved = planned(capsys, tmp_path, config=(run_file,))
    sources = tuple(
        DataSource(name=name, path=str(shards_folder / name), weight=weight)
        for name, weight in WEIGHTS.items()
    )
    plan = DataPlan.open(DataConfig(sources=sources, seed=7), seq_len=16)
    (stage,) = saved["stages"]
    assert stage["plan_hash"] == plan.hash and plan.hash in out
    assert [source["num_sequences"] for source in stage["sources"]] == plan.mixture.counts(80)
    assert stage["sources"][1]["epochs"] == pytest.approx(20 / plan.num_windows[1])
    assert "  bay, cove: not searched for texts that must not be trained on" in out
    assert "0.0000B" not in out and " 1,280 tokens, weights" in out


def test_a_document_tells_the_steps_that_read_it(capsys, run_file):
    pieces = []
    for step in range(1, 21):
        run(PlanConfig(config=(run_file,), step=step))
        for row in map(json.loads, capsys.readouterr().out.splitlines()):
            assert row["license"] == f"{row['source']} license"
            if (row["source"], row["record"]) == ("bay", 7):
                pieces.append((step, row["sequence"], row["first_token"]))
    assert run(PlanConfig(config=(run_file,), document="bay::7")) == 0
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [(row["step"], row["sequence"], row["first_token"]) for row in rows] == pieces != []
    assert "under bay license; read " in captured.err
    assert f" times in {len({step for step, *_ in pieces})} steps, " in captured.err

    assert run(PlanConfig(config=(run_file,), document="bay::777")) == 0
    assert "never read: the token shards of bay do not hold it" in capsys.readouterr().err


def test_a_training_finds_what_it_reads_next_to_its_file_or_where_it_runs(tmp_path, monkeypatch):
    for folder in ("configs/shards", "run/tokenizer"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    mixture = tmp_path / "configs" / "mixture.toml"
    mixture.write_text(
        'shards_folder = "shards"\nseq_len = 4\ntokens_per_step = 8\nmax_epochs = 1.0\n'
        'stages = [{ name = "one", tokens = 80.0, seed = 0 }]\n'
        'sources = [{ name = "a", weights = { one = 1.0 } }]\n'
    )
    file = tmp_path / "configs" / "train.toml"
    file.write_text(
        'model = { tokenizer = "tokenizer" }\ndata = { mixture = "mixture.toml", stage = "one" }\n'
    )
    tables = read_run_config(file)
    paths = [tables["model"]["tokenizer"], tables["data"]["sources"][0]["path"]]
    expected = [tmp_path / "run" / "tokenizer", tmp_path / "configs" / "shards" / "a"]
    assert [(tmp_path / "run" / path).resolve() for path in paths] == expected


def test_shards_are_verified_and_a_damaged_source_is_named(
    run_file, shards_folder, tmp_path, capsys
):
    copied = shutil.copytree(shards_folder, tmp_path / "copied")
    run_file.write_text(run_file.read_text().replace(str(shards_folder), str(copied)))
    config = PlanConfig(config=(run_file,), verify=True)
    assert run(config) == 0
    assert capsys.readouterr().out.count("GB verified") == len(WEIGHTS)
    tokens = copied / "cove/tokens-00000.bin"
    tokens.write_bytes(tokens.read_bytes()[::-1])
    assert run(config) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{copied}/bay: unchanged since it was verified\n"
    assert captured.err.count("\n") == 1 and str(tokens) in captured.err
