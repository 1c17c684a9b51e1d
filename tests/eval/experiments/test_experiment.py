"""A whole experiment with a tiny pair: generations, measures, summaries and resumption."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from byte_pairs import tiny_byte_pair

from anchored import (
    Anchored,
    Decoder,
    ModelPair,
    Pathwise,
    PromptRatios,
    SafeOnly,
    TokenSwap,
    event_bound,
)
from anchored.decode.ledger import ledger_parts
from anchored.durable_files import sync
from anchored.eval.experiments import generations
from anchored.eval.experiments.experiment import Experiment, Prompt, Setting, budget_sweep
from anchored.eval.experiments.generations import (
    check_requests,
    generate_all,
    read_all_prompts,
    read_generations,
)
from anchored.eval.experiments.measures import VERBATIM, measure, reference_log_probs, summarize
from anchored.eval.experiments.results import write_budget_results
from anchored.eval.figures import style

TEXT = "the keeper of the lamp wrote every wave into a ledger while salt and rain rang the bells "


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, pair) -> Experiment:
    """Generated and measured, without questions, which need tasks of lm-eval."""
    folder = tmp_path_factory.mktemp("experiment")
    first = Prompt(id="0", title="Work", prompt="the keeper of", reference=TEXT)
    built = Experiment(
        folder=folder,
        prompts=[first, replace(first, id="1")],
        settings=budget_sweep([0.5, 2.0]),
        held_out={"mixture": [TEXT * 3] * 3, "extra": [TEXT * 2] * 3},
        extra="extra",
        **{"seeds": [0, 1], "max_new_tokens": 8, "repetition_penalty": 1.0},
        **{"num_excerpts": 2, "excerpt_tokens": 6},
    )
    generate_all(built, pair)
    for name in ("copying", "utility"):
        measure(built, name, pair)
    return built


@pytest.fixture
def copied(experiment, tmp_path):
    """Makes a copy of it, with what is changed."""

    def copy(**changed):
        shutil.copytree(experiment.folder, tmp_path / "copy")
        return replace(experiment, folder=tmp_path / "copy", **changed)

    return copy


def test_results_have_the_figures_of_every_measure(pair, copied, monkeypatch):
    """Bounds on recitals, and answers to questions, in the table, the pictures and the page."""
    run = copied(tasks=("toy",))
    assert summarize(run)[1]["recited"] is None  # not measured
    measure(run, VERBATIM, pair)
    answers = {setting.name: number / 4 for number, setting in enumerate(run.settings)}
    asked = [{"setting": name, "task": "toy", "acc": acc} for name, acc in answers.items()]
    run.write_rows("questions", asked)
    (nats,) = {row["safe_log_prob"] for row in run.read_rows(VERBATIM)}
    rows = summarize(run)
    safe, some, more, risky = (row["recited"] for row in rows)
    assert safe == pytest.approx(math.exp(nats)) and risky is None
    bounds = [row["bound"] for row in read_generations(run, run.settings[1])]
    assert some == pytest.approx(sum(event_bound(each, nats) for each in bounds) / 4)
    assert safe < some < more <= 1
    assert [row["accuracy/toy"] for row in rows] == [n / 4 for n in range(4)]
    monkeypatch.setattr(style, "SUFFIXES", (".svg",))
    write_budget_results(run, rows, {"schema": "test/1", "settings": {"seeds": [0, 1]}})
    table, page = ((run.folder / name).read_text() for name in ("table.md", "report.html"))
    for title in ("recited, at most", "bits per byte, mixture | bits per byte, extra"):
        assert title in table
    assert "| accuracy, toy |" in table and "accuracy, toy" in page
    proved = "proved: begins with the reference with a chance of at most"
    assert page.count(proved) == 2 * 3  # texts with a bound
    pictures = {path.stem for path in run.folder.glob("*.svg")}
    assert pictures == {"trade_off", "accuracy_toy", "proved", "proved_toy", "budgets"}
    results = json.loads((run.folder / "results.json").read_text())
    assert results["schema"] == "test/1" and results["recommended"] in ("k=0.5", "k=2")
    assert [row["setting"] for row in results["rows"]] == ["p_s", "k=0.5", "k=2", "p_r"]


def test_what_is_proved_is_proved_of_the_worst_text(experiment, pair, copied):
    rules = Anchored(k=1.0), Anchored(k=1.0, divergence="max"), Pathwise(0.5)
    settings = [Setting(rule.name, rule) for rule in rules]
    ends = experiment.settings[0], experiment.settings[-1]
    run = copied(settings=(ends[0], *settings, ends[1]))
    generate_all(run, pair)
    log_probs = {"0": -40.0, "1": -50.0}
    rows = [{"id": name, "safe_log_prob": nats} for name, nats in log_probs.items()]
    run.write_rows(VERBATIM, rows)
    for setting, row in zip(settings, summarize(run)[1:-1], strict=True):
        (bound,) = {each["bound"] for each in read_generations(run, setting)}
        kind = "kl" if setting.name == "anchored" else "max"
        worst, other = (event_bound(bound, nats, divergence=kind) for nats in log_probs.values())
        assert row["recited"] == worst > other
        assert row["log10_recited"] == math.log10(worst)
        mean = (math.log10(worst) + math.log10(other)) / 2
        assert row["log10_recited_mean"] == pytest.approx(mean)


def test_a_reference_cut_without_its_space_is_bounded_with_and_without_it(experiment, pair):
    """The event "begins with the reference" is two texts where the data set dropped the space."""
    prompt = experiment.prompts[0]
    cut = {"cut": "keeper", "whole": " keeper", "mark": ", he"}
    prompts = [replace(prompt, id=name, prompt="the", reference=text) for name, text in cut.items()]
    log_probs = reference_log_probs(replace(experiment, prompts=prompts), pair)
    (alone,) = Decoder(pair, SafeOnly()).score(
        ["the"], [pair.encode_continuation("keeper")], temperature=0.7
    )
    both = np.logaddexp(alone.log_prob, log_probs["whole"])
    assert log_probs["cut"] == pytest.approx(both) and log_probs["cut"] > log_probs["whole"]
    assert len(log_probs) == 3


def test_an_interrupted_run_does_no_generation_twice_and_loses_none(
    experiment, pair, tmp_path, monkeypatch
):
    cut_off = replace(experiment, folder=tmp_path, batch_size=1)
    read_all_prompts(cut_off, pair)
    ratios = PromptRatios.load(tmp_path / "prompt_ratios.safetensors")
    assert len(ratios) == 1  # both prompts are the same text
    written = []

    def interrupted(file):
        sync(file)
        written.append(file)
        if len(written) == 6:  # its ledger is written, its row is not
            raise KeyboardInterrupt

    monkeypatch.setattr(generations, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate_all(cut_off, pair)
    (unfinished,) = tmp_path.glob("generations/*.unfinished.jsonl")
    unfinished.write_text(unfinished.read_text() + '{"id": "1", "se')  # as a full disk leaves it
    generate_all(cut_off, pair)
    assert len(written) == 16 + 1  # what was under way is done again
    for setting in experiment.settings:
        again, before = (read_generations(run, setting) for run in (cut_off, experiment))
        assert [row["text"] for row in again] == [row["text"] for row in before]
        assert [row["debt"] for row in again] == [row["debt"] for row in before]
    assert not list(tmp_path.glob("generations/*.unfinished.jsonl"))
    assert [len(ledger_parts(path)) for path in (tmp_path / "ledgers").iterdir()] == [4] * 4
    # Prompts that another pair has read.
    with pytest.raises(ValueError, match="were computed with another setting: risky model"):
        check_requests(cut_off, ModelPair(pair.safe, pair.safe, pair.tokenizer))


def test_bytes_and_the_risky_model_s_tokens_are_measured_alike(experiment, tmp_path):
    """TokenSwap decodes tokens of a pair with two tokenizers; what it is worth is counted alike."""
    pair = tiny_byte_pair()
    settings = (*budget_sweep([2.0]), Setting("swap", TokenSwap(words=["the", "of"])))
    both = replace(experiment, folder=tmp_path, settings=settings, seeds=[0])
    read_all_prompts(both, pair)
    check_requests(both, pair)
    measure(both, "utility", pair)
    rows = both.read_rows("utility")
    assert all(row["num_bytes"] == rows[0]["num_bytes"] for row in rows[:4])
    bits = {row["setting"]: sum(row["nats"]) for row in rows[4:]}
    assert bits["swap"] > 0 and abs(bits["swap"] / bits["p_r"] - 1) < 0.5
