"""A sweep's file, and what it becomes: settings, names, sections, refusals, tables."""

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from json_lines import write_json_lines

from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments import results
from anchored.eval.experiments.experiment import Experiment, Prompt, load_prompts, save_prompts
from anchored.eval.experiments.plan import sweep_plan, sweep_prompts, sweep_settings
from anchored.eval.experiments.sweep import Method, Placement, Sweep, load_sweep

RCAD = Method(rule="rcad", label="RCAD")
ANCHORED = Method(rule="anchored", label="Anchored", settings={"k": [0.5, 2.0]})
SWEEP = Sweep(
    safe="safe",
    risky="risky",
    prompts="prompts.jsonl",
    passages="works.jsonl",
    held_out={"extra": ["extra.jsonl"]},
    methods=(ANCHORED,),
)


def names_of(*methods):
    return [setting.name for setting in sweep_settings(replace(SWEEP, methods=methods))]


def test_lists_are_all_combinations_and_names_say_what_differs():
    both = Method(
        rule="anchored",
        label="Anchored",
        settings={"k": [1.0, 10.0], "debt": ["top", "none"], "debt_window": 3},
    )
    assert names_of(both)[2:] == [
        f"Anchored, k={k}, debt={debt}" for k in (1, 10) for debt in ("top", "none")
    ]
    assert names_of(replace(both, settings={"k": 1.0}))[2:] == ["Anchored"]
    slash = replace(both, label="a / b", settings={"k": [1.0]})
    *_, setting = sweep_settings(replace(SWEEP, methods=(slash,)))
    assert setting.file_name == "a-b-k=1"


GOOD = {"id": "a-1", "prompt": "the", "reference": " keeper", "group": 3}


def test_only_the_paper_s_budgets_in_kl_are_the_swept_ones():
    others = [
        Method(rule="anchored", label="b", settings={"k": [0.5], "bank": 9.0}),
        Method(rule="anchored", label="c", settings={"k": [0.5], "divergence": "max"}),
        Method(rule="pathwise", label="d", settings={"k": [0.5]}),
    ]
    ablated = Method(rule="anchored", label="e", settings={"k": 1.0}, figures=["budget"])
    settings = sweep_settings(replace(SWEEP, methods=(ablated, ANCHORED, *others)))
    assert [setting.k for setting in settings[2:]] == [0.5, 2.0, None, None, None, None]
    assert settings[-1].name == "e"  # as in the paper's table
    assert {other.section for other in others} == {ANCHORED.section} == {"Anchored Decoding"}


def method(**changed):
    return {"methods": (replace(ANCHORED, **changed),)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: {"methods": (ANCHORED, replace(ANCHORED, label="same"))},
            "Anchored, k=0.5 and same, k=0.5 are the",
        ),
        (lambda: method(settings={"k": -1}), "Anchored: k must be in"),
        (lambda: method(settings={"k": []}), "Anchored: the list of k is empty"),
        (lambda: method(label="p_s"), "p_s and p_r are in every sweep: leave out 'p_s'"),
        (lambda: method(figures=["debts"]), "figures must be of methods, .*, got 'debts'"),
        (lambda: {"engine": "vllm"}, 'vLLM draws level = "token", got .auto'),
        (lambda: {"utility": "other"}, "utility must be one of extra, got 'other'"),
        (lambda: {"seeds": [1, 1]}, "seeds must be different whole numbers"),
        (lambda: {"passages": "", "methods": (RCAD,)}, "RCAD reads passages: name a corpus"),
        (lambda: {"placement": Placement(gpus=2)}, "both models would lie on the first"),
        (
            lambda: {"placement": Placement(options={"risky_devic": "cpu"})},
            "unknown config key placement.options.risky_devic ",
        ),
    ],
)
def test_what_cannot_be_is_named(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sweep_plan(replace(SWEEP, **change(), folders=[str(tmp_path)]))


def test_a_file_s_inputs_and_its_sets_may_be_replaced(tmp_path):
    file = tmp_path / "a.toml"
    text = 'safe = "S"\nrisky = "org/name"\nprompts = "p"\ninputs = "there"\nheld_out.a = ["b"]\n'
    methods = '[[methods]]\nrule = "system"\nlabel = "System"\n'
    file.write_text(text + methods)
    (tmp_path / "S").mkdir()
    sweep = load_sweep(file, inputs=tmp_path)
    assert sweep.model(sweep.safe) == tmp_path / "S" and sweep.places == [tmp_path]
    assert str(sweep.model(sweep.risky)) == "org/name"  # of the Hub
    assert sweep.files == {"prompts": ["p"], "held_out": ["b"]} and sweep.utility_set == "a"
    assert load_sweep(file).places == [tmp_path / "there", Path("there")]
    other = tmp_path / "other.toml"
    other.write_text('base = "a.toml"\nheld_out = { a = [] }\n')
    assert load_sweep(other).held_out == {} and load_sweep(other).utility_set == ""


def test_prompts_that_are_saved_are_read_again_and_those_of_files_are_joined_and_checked(tmp_path):
    prompts = [
        Prompt(id="a", title="a", prompt="the", reference=" keeper"),
        Prompt(id="b", title="B", prompt="x", reference="z", domain="books", passage="y"),
        Prompt(id="c", title="c", prompt="x", reference="", about={"characters": [["Ann"]]}),
    ]
    save_prompts(prompts, tmp_path / "prompts.jsonl")
    assert load_prompts(tmp_path / "prompts.jsonl") == prompts
    write_json_lines(tmp_path / "more.jsonl", [GOOD])  # without a title
    files = ["prompts.jsonl", "more.jsonl"]
    both = replace(SWEEP, prompts=files, max_prompts=2, inputs=str(tmp_path))
    assert [(prompt.id, prompt.title) for prompt in sweep_prompts(both)] == [
        *(("a", "a"), ("b", "B"), ("a-1", "a-1"))
    ]
    with pytest.raises(ValueError, match="prompt id 'a' occurs twice"):
        sweep_prompts(replace(both, prompts=files[:1] * 2))
    write_json_lines(tmp_path / "more.jsonl", [GOOD | {"id": "../a"}])
    with pytest.raises(ValueError, match=r"an id names a file, got '\.\./a'"):
        sweep_prompts(both)


def test_a_process_sees_the_gpus_of_its_group(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    placement = Placement(gpus=2, options={"risky_device_map": "auto"})
    for count, device, visible in ((4, "cpu", "7,5,3,1"), (0, "", "7,5,3,1"), (4, "", "3,1")):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        placement.take_gpus(device)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    placement.take_gpus("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="the GPUs 4 to 5 of 4: start at most 2 with 2 each"):
        placement.take_gpus("cuda")


def test_tables_have_all_settings_and_the_best_protected_one_of_each_method(tmp_path, monkeypatch):
    """CP-Fuse never protects; of the two budgets that do, the larger is worth more."""
    figures = {"p_s": (1.0, 3.0), "p_r": (0.0, 2.0), "CP-Fuse": (0.7, math.inf)}
    figures |= {"Anchored, k=0.5": (0.9, 2.75), "Anchored, k=2": (0.75, 2.5)}
    figures["Anchored, k=4"] = (0.74, 2.25)
    fuse = Method(rule="cp_fuse", label="CP-Fuse")
    sweep = replace(SWEEP, methods=(replace(ANCHORED, settings={"k": [0.5, 2.0, 4.0]}), fuse))
    settings = sweep_settings(sweep)
    same = dict.fromkeys(METRICS, 0.25) | {"gap_closed": 0.5, "spent": 3.0, "bound": None}
    rows = [{"setting": each.name, "method": each.method, **same} for each in settings]
    for row in rows:
        ncr, row["bits_per_byte/extra"] = figures[row["setting"]]
        row["ncr"] = {"mean": ncr, "std": 0.01, "num_seeds": 3, "num_metrics": 6}
    experiment = Experiment(
        folder=tmp_path, prompts=[], settings=settings, held_out={"extra": []}, extra="extra"
    )
    monkeypatch.setattr(results, "summarize", lambda _: rows)
    recorded = {}
    monkeypatch.setattr(results, "write_results", lambda _, rows, about: recorded.update(about))
    results.write_sweep_results(experiment, sweep)
    chosen = {"p_s": "p_s", "p_r": None, "CP-Fuse": None, "Anchored": "Anchored, k=2"}
    assert recorded["high_protection"] == chosen
    protected = (tmp_path / "high_protection.md").read_text()
    assert "| Anchored | Anchored, k=2 | 2.500 | 0.50 | 0.750 (0.010) |\n" in protected
    assert "| CP-Fuse | - | - | - | - |\n" in protected
    parts = [line.split("*")[1] for line in protected.splitlines() if "*" in line]
    assert parts == ["Reference LMs", "Two-model baselines", "Anchored Decoding"]
    assert "| inf | 0.50 |" in (tmp_path / "table.md").read_text()
    assert r"CP-Fuse & 0.250 & 0.250 &" in (tmp_path / "table.tex").read_text()
