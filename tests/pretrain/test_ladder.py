"""Smaller models in the shape of TinyComma: their configs, and what finished runs predict."""

import json
from pathlib import Path

import numpy as np
import pytest
from forked_program import ForkedProgram
from training_runs import train

from anchored.configs.config_file import read_toml, toml_text
from anchored.eval.power_law import PowerLaw
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.ladder import load_ladder, model_size
from anchored.pretrain.model.tinycomma import flavors
from anchored.pretrain.run.preflight import check_batch, check_settings
from anchored.pretrain.tokens.bpe import save_tokenizer, train_tokenizer
from anchored.pretrain.tokens.writer import write_token_shards
from anchored.tools.commands.training import ladder as command
from anchored.tools.commands.training.training_options import LadderConfig

LADDER = Path(__file__).parents[2] / "configs" / "pretrain" / "ladder.toml"
SIZES = {"20m": 20e6, "60m": 62e6, "190m": 190e6, "600m": 595e6}
LAW = PowerLaw(1.7, 400.0, 0.34)


@pytest.mark.parametrize("name", SIZES)
def test_rungs_have_the_shape_of_the_model_above_them(name):
    args, above = flavors()[f"tinycomma-{name}"], flavors()["tinycomma-1.8b"]
    assert model_size(f"tinycomma-{name}") == pytest.approx(SIZES[name], rel=0.035)
    assert args.dim == 64 * args.n_heads and above.dim == 64 * above.n_heads
    assert args.dim / args.n_layers == pytest.approx(above.dim / above.n_layers, rel=0.025)
    assert args.hidden_dim % 256 == 0
    for field in ("vocab_size", "norm_eps", "rope_theta", "multiple_of", "n_kv_heads"):
        assert getattr(args, field) == getattr(above, field)


def test_every_rung_reads_as_many_tokens_a_parameter_as_the_run_above(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ladder = load_ladder(LADDER)
    assert ladder.num_parameters == 1_758_562_304 - 2 * 128_256 * 2048
    ratio = ladder.num_tokens / ladder.num_parameters
    assert ladder.num_tokens == pytest.approx(156e9, rel=1e-4) and 126 < ratio < 127
    assert len({run.name for run in ladder.runs}) == len(ladder.runs) == 8 + 6 + 2 + 1
    for run in ladder.runs:
        assert run.num_tokens / run.num_parameters == pytest.approx(ratio, rel=1e-3)
        run.write_config()
    for run in {run.flavor: run for run in ladder.runs}.values():  # the last of each
        config = load_job_config(["--job.config_file", str(run.config_file)])
        check_settings(config)
        check_batch(config, 8)
        training, schedule = config.training, config.lr_scheduler
        num_tokens = training.steps * training.global_batch_size * training.seq_len
        assert num_tokens == run.num_tokens
        assert model_size(config.model.flavor) == run.num_parameters
        assert schedule.warmup_steps / training.steps == pytest.approx(1000 / 37193, rel=0.01)
        assert 9_000 < training.steps < 37_193
        assert config.optimizer.lr == run.learning_rate
        assert config.debug.seed == config.data.seed == run.seed
        assert len(config.data.sources) == 31 and len(config.heldout.sources) == 8
    run.write_config()  # what is there already is as it should be
    run.folder.mkdir()
    run.config_file.write_text("[training]\n")
    with pytest.raises(ValueError, match=r"was begun with another tinycomma-600m-lr0.003-seed0"):
        run.write_config()


def finish(run, loss):
    run.folder.mkdir(parents=True, exist_ok=True)
    line = {"step": run.num_steps, "losses": {"a": loss - 0.1, "b": loss + 0.1}}
    (run.folder / "heldout.jsonl").write_text(json.dumps(line) + "\n")


def ladder_command(arguments, folder):
    program = ForkedProgram("anchored.tools.cli", ["ladder", *arguments], folder / "output.txt")
    return program.wait_for_success()


def test_recorded_runs_of_a_known_law_predict_the_run_above(tmp_path, capsys):
    table = read_toml(LADDER) | {"folder": str(tmp_path / "runs")}
    table["run"] = str(LADDER.with_name(table["run"]))
    path = tmp_path / "ladder.toml"
    path.write_text(toml_text(table))

    def said():
        assert command.run(LadderConfig(ladder=path)) == 0
        return capsys.readouterr().out

    assert "a prediction needs 4 finished runs of 3 sizes" in said()
    generator = np.random.default_rng(1)
    ladder = load_ladder(path)
    for run in ladder.runs[:-1]:  # 3e-3 is best; the last one is still to do
        worse = 0.3 * abs(np.log(run.learning_rate / 3e-3))
        finish(run, LAW.loss(run.num_parameters) + worse + generator.normal(scale=1e-3))
    unfinished = ladder.runs[-1]
    finish(unfinished, 9.0)
    text = (unfinished.folder / "heldout.jsonl").read_text()
    (unfinished.folder / "heldout.jsonl").write_text(text.replace(str(unfinished.num_steps), "500"))
    output = said()
    assert "tinycomma-600m-lr0.003-seed0" in output and "step 500" in output
    # A rate between others is no edge; of the two of 190m the best one is.
    assert "tinycomma-190m: the best learning rate, 0.003, is the last one on its side" in output
    assert "tinycomma-20m: the best" not in output
    saved = json.loads((tmp_path / "runs" / "ladder.json").read_text())
    prediction = saved["predictions"]["mean"]["prediction"]
    assert prediction["low"] < LAW.loss(ladder.num_parameters) < prediction["high"]
    assert prediction["high"] - prediction["low"] < 0.1
    a, b = (saved["predictions"][name]["prediction"]["loss"] for name in ("a", "b"))
    assert (a + b) / 2 == pytest.approx(prediction["loss"], abs=1e-3)
    assert len(saved["runs"]) == 17 and saved["runs"][-1]["losses"] is None
    assert (tmp_path / "runs" / "ladder.png").stat().st_size > 10_000
    finish(unfinished, LAW.loss(unfinished.num_parameters))
    said()
    saved = json.loads((tmp_path / "runs" / "ladder.json").read_text())["predictions"]["mean"]
    check = saved["of_largest"]
    assert check["low"] < LAW.loss(unfinished.num_parameters) < check["high"]
    narrower = saved["prediction"]
    assert narrower["high"] - narrower["low"] < prediction["high"] - prediction["low"]


@pytest.mark.slow
def test_toy_models_predict_a_larger_one_that_is_then_trained(write_config, tmp_path):
    """Of the source code of Python's library, which every machine has."""
    texts = [path.read_text() for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
    save_tokenizer(train_tokenizer(texts[::4], 512), tmp_path / "tokenizer", model_max_length=512)
    unseen = texts[::8]
    seen = [text for place, text in enumerate(texts) if place % 8]
    for name, documents in (("library", seen), ("unseen", unseen)):
        write_token_shards(
            tmp_path / name,
            documents,
            tmp_path / "tokenizer" / "tokenizer.json",
            source=name,
            licence="PSF-2.0",
            revision="1",
        )
    source = {"name": "library", "path": str(tmp_path / "library"), "weight": 1.0}
    target = write_config(
        tmp_path / "target",
        steps=520,
        model={"flavor": "trial"},
        lr_scheduler={"warmup_steps": 52, "total_steps": 520},
        training={"local_batch_size": 2, "global_batch_size": 16},
        checkpoint={"interval": 1000},
        metrics={"log_freq": 100},
    )
    table = read_toml(target)
    table["data"] = {"seed": 7, "sources": [source]}
    table["heldout"] = {
        "interval": 1000,
        "sources": [{"name": "unseen", "path": str(tmp_path / "unseen")}],
    }
    del table["lr_scheduler"]["total_steps"]
    target.write_text(toml_text(table))
    rungs = [
        {
            "flavor": "smoke",
            "sequences_per_step": 2,
            "learning_rates": [3e-3, 1e-2],
            "seeds": [0, 1],
        },
        {
            "flavor": "narrow",
            "sequences_per_step": 2,
            "learning_rates": [3e-3, 1e-2],
            "seeds": [0, 1],
        },
        {"flavor": "quickstart-safe", "sequences_per_step": 8, "learning_rates": [3e-3]},
    ]
    path = tmp_path / "ladder.toml"
    path.write_text(
        toml_text({"run": "target.toml", "folder": str(tmp_path / "runs"), "rungs": rungs})
    )
    ladder_command([str(path)], tmp_path)
    runs = load_ladder(path).runs
    for run in runs:
        train(run.config_file)
    assert "predicted loss" in ladder_command([str(path)], tmp_path)
    saved = json.loads((tmp_path / "runs" / "ladder.json").read_text())
    prediction = saved["predictions"]["unseen"]["prediction"]
    train(target)
    (line,) = (tmp_path / "target" / "heldout.jsonl").read_text().splitlines()
    trained = json.loads(line)["losses"]["unseen"]
    assert trained < min(run.losses()["unseen"] for run in runs)
    assert prediction["low"] < trained < prediction["high"]
    # Of so few tokens, losses lie off any law by more than seeds differ.
    assert prediction["loss"] == pytest.approx(trained, abs=0.5)
