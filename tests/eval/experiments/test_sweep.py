"""What a sweep's file may say, and what it becomes: settings, names, sections, refusals."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import anchored
from anchored import CPFuse, MemFree
from anchored.configs.config_file import from_table
from anchored.eval.experiments.experiment import Prompt, load_prompts, save_prompts
from anchored.eval.experiments.plan import placement_plan, sweep_prompts, sweep_settings
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
SPREAD = {"risky_device_map": "auto"}


def names_of(*methods):
    return [setting.name for setting in sweep_settings(replace(SWEEP, methods=methods))]


def test_both_models_come_first_and_methods_in_the_order_of_the_paper(tmp_path):
    fuse = Method(rule="cp_fuse", label="CP-Fuse")
    block = Method(rule="memfree", label="MemFree", settings={"n": 3})
    fixed = Method(
        rule="anchored", label="Fixed", settings={"k": 2.0, "budget": "fixed"}, figures=["budget"]
    )
    names = ["p_s", "p_r", "MemFree", "CP-Fuse", "Anchored, k=0.5", "Anchored, k=2", "Fixed"]
    assert names_of(fixed, ANCHORED, fuse, block) == names
    blocked = tmp_path / "blocked.jsonl"
    blocked.write_text('{"text": "b"}\n')
    settings = sweep_settings(replace(SWEEP, methods=(fixed, ANCHORED, fuse, block)), blocked)
    assert [setting.k for setting in settings] == [None] * 4 + [0.5, 2.0] + [None]
    assert settings[2].rule == MemFree(n=3, corpus=str(blocked))
    assert settings[3].rule == CPFuse()
    assert [setting.method for setting in settings][3:5] == ["CP-Fuse", "Anchored"]


@pytest.mark.parametrize(
    ("rule", "more"),
    [("anchored", {"bank": 9.0}), ("anchored", {"divergence": "max"}), ("pathwise", {})],
)
def test_only_the_paper_s_budgets_in_kl_are_the_swept_ones(rule, more):
    other = Method(rule=rule, label="b", settings={"k": [0.5, 2.0], **more})
    settings = sweep_settings(replace(SWEEP, methods=(ANCHORED, other)))
    assert [setting.k for setting in settings[2:]] == [0.5, 2.0, None, None]
    assert other.section == ANCHORED.section == "Anchored Decoding"


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


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([ANCHORED, replace(ANCHORED, label="same")], "Anchored, k=0.5 and same, k=0.5 are the"),
        ([replace(ANCHORED, rule="anchor")], "Anchored, k=0.5: rule must be one of anchored,"),
        ([replace(ANCHORED, settings={"kk": 1})], "Anchored: settings of rule anchored: .* 'kk'"),
        ([replace(ANCHORED, settings={"k": -1})], "Anchored: k must be in"),
        ([replace(ANCHORED, settings={"k": []})], "Anchored: the list of k is empty"),
        ([replace(ANCHORED, settings={"k": [1, 1]})], "setting 'Anchored-k=1' occurs twice"),
    ],
)
def test_settings_that_cannot_be_are_named(methods, message):
    with pytest.raises(ValueError, match=message):
        sweep_settings(replace(SWEEP, methods=tuple(methods)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": (ANCHORED, ANCHORED)}, "label 'Anchored' occurs twice"),
        ({"engine": "vllm"}, 'vLLM draws level = "token", got .auto'),
        (
            {"engine": "vllm", "level": "token", "placement": Placement(options={"dtype": "auto"})},
            "vLLM reads placement.vllm, not placement.options",
        ),
        ({"prompts": []}, "a sweep needs a file of prompts, got none"),
        ({"methods": ()}, r"a sweep needs \[\[methods\]\], got none"),
        ({"held_out": {"a": ["b"], "c": []}}, "held_out must be lists of files"),
        ({"utility": "other"}, "utility must be one of extra, got 'other'"),
        ({"tasks": ["facts"]}, "tasks need a task_folder"),
        ({"seeds": []}, "seeds must be different whole numbers"),
        ({"seeds": [1, 1]}, "seeds must be different whole numbers"),
        ({"seeds": [-1]}, "seeds must be different whole numbers"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ({"temperature": -1.0}, "temperature must be finite"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be > 0"),
        ({"passages": "", "methods": (RCAD,)}, "RCAD reads passages: name a corpus"),
        ({"label": "p_s"}, "p_s and p_r are in every sweep: leave out 'p_s'"),
        ({"rule": "risky_only"}, "p_s and p_r are in every sweep: leave out 'Anchored'"),
        ({"label": " "}, "label of a method with the rule 'anchored' is empty"),
        ({"figures": ["debts"]}, "Anchored: figures must be of methods, .*, got 'debts'"),
    ],
)
def test_values_that_cannot_be_are_named(change, message):
    """Of a sweep, or of one of its methods."""
    changed = ANCHORED if change.keys() & {"label", "rule", "figures"} else SWEEP
    with pytest.raises(ValueError, match=message):
        replace(changed, **change)


@pytest.mark.parametrize(("name", "num_settings"), [("", 25), ("-bytes", 6)])
def test_the_sweeps_of_the_quickstart_s_pairs_are_well_formed(name, num_settings):
    file = Path(anchored.__file__).parent / "configs" / "eval" / f"quickstart-methods{name}.toml"
    sweep = load_sweep(file)
    settings = sweep_settings(sweep)
    assert len(settings) == num_settings and sweep.utility_set == "facts"
    assert {"RCAD", "CP-Fuse", "Anchored"} <= {setting.method for setting in settings}
    assert all("runs/" in str(place) for place in sweep.places)


def test_a_file_s_inputs_may_be_replaced_and_its_keys_are_checked(tmp_path):
    file = tmp_path / "a.toml"
    text = """
safe = "S"
risky = "org/name"
prompts = "p"
inputs = "there"
held_out = { a = ["b"] }
"""
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
    file.write_text(text + "seed = [1]\n" + methods)
    with pytest.raises(ValueError, match=r"unknown config key seed \(did you mean seeds\?\)"):
        load_sweep(file)


def test_what_decides_results_identifies_a_sweep_and_where_files_lie_does_not(
    tmp_path, pair_folders
):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("prompts.jsonl", "works.jsonl", "extra.jsonl"):
            (tmp_path / folder / name).write_text(name)
        shutil.copytree(pair_folders[0], tmp_path / folder / "safe")
    one, two = (replace(SWEEP, inputs=str(tmp_path / name)) for name in ("one", "two"))
    assert one.identity() == two.identity() == replace(one, batch_size=1).identity()
    assert one.identity() != replace(one, temperature=0.8).identity()
    (tmp_path / "one" / "works.jsonl").write_text("other works")
    assert one.identity() != two.identity()


GOOD = {"id": "a-1", "prompt": "the", "reference": " keeper", "group": 3}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{"], "line 2 is not JSON"),
        ([["a"]], "row 1 must be a JSON object"),
        ([{"id": "a", "prompt": "b"}], 'line 1 must have the key "reference"'),
        ([{"prompt": "b", "reference": "c"}], 'line 1 must have the key "id"'),
        ([GOOD | {"prompt": ""}], 'line 1 must be an object with a "prompt"'),
        ([GOOD | {"reference": 3}], r"line 1: reference must be text, got 3"),
        ([GOOD | {"id": "../a"}], r"an id names a file, got '\.\./a'"),
        ([GOOD, GOOD], "id 'a-1' occurs twice"),
        ([], "holds no prompts"),
    ],
)
def test_prompts_that_cannot_be_are_named(tmp_path, lines, message):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    with pytest.raises(ValueError, match=message):
        load_prompts(file)


def test_prompts_that_are_saved_are_read_again(tmp_path):
    prompts = [
        Prompt(id="a", title="A", prompt="the", reference=" keeper"),
        Prompt(id="b", title="b", prompt="x", reference="z", domain="books", passage="y"),
        Prompt(id="c", title="c", prompt="x", reference="", about={"characters": [["Ann"]]}),
    ]
    save_prompts(prompts, tmp_path / "prompts.jsonl")
    assert load_prompts(tmp_path / "prompts.jsonl") == prompts


def test_files_of_several_domains_are_prompts_of_one_sweep(tmp_path):
    for name in ("books", "bios"):
        rows = [
            {"id": f"{name}-{n}", "prompt": "a", "reference": "", "domain": name} for n in "123"
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ["books.jsonl", "bios.jsonl"]
    both = replace(SWEEP, prompts=files, max_prompts=2, inputs=str(tmp_path))
    names = [(prompt.id, prompt.domain) for prompt in sweep_prompts(both)]
    assert names == [(f"{name}-{n}", name) for name in ("books", "bios") for n in "12"]
    assert both.prompt_files == [tmp_path / name for name in files]
    with pytest.raises(ValueError, match="prompt id 'books-1' occurs twice"):
        sweep_prompts(replace(both, prompts=files[:1] * 2))


def test_prompts_are_called_by_their_ids_where_they_have_no_title(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(GOOD) + "\n\n")
    expected = Prompt(id="a-1", title="a-1", prompt="the", reference=" keeper", about={"group": 3})
    assert load_prompts(file) == [expected]


@pytest.fixture
def gpus(monkeypatch):
    """A machine with as many GPUs, and the process that torchrun gave a number."""

    def machine(count, rank=None, visible=None):
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        for name, value in (("LOCAL_RANK", rank), ("CUDA_VISIBLE_DEVICES", visible)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    return machine


@pytest.mark.parametrize(
    ("num_gpus", "count", "rank", "visible", "expected"),
    [
        (1, 4, None, None, "0"),
        (1, 4, "3", None, "3"),
        (2, 4, "1", None, "2,3"),
        (2, 4, "1", "7,5,3,1", "3,1"),
        (1, 0, "1", None, None),
        (2, 4, "2", None, "refused"),
    ],
)
def test_a_process_sees_its_own_group(gpus, num_gpus, count, rank, visible, expected):
    gpus(count, rank, visible)
    placement = Placement(gpus=num_gpus, options=SPREAD if num_gpus > 1 else {})
    placement.take_gpus("cpu")
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    if expected == "refused":
        with pytest.raises(ValueError, match="the GPUs 4 to 5 of 4: start at most 2 with 2 each"):
            placement.take_gpus("cuda")
    else:
        placement.take_gpus("")
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"gpus": 0}, "gpus must be >= 1, got 0"),
        ({"gpus": 2}, "both models would lie on the first"),
        ({"gpu_memory": -1.0}, "gpu_memory must be >= 0"),
        ({"gpu": 2}, "unknown config key gpu"),
    ],
)
def test_what_cannot_be_is_one_line(table, words):
    with pytest.raises(ValueError, match=words) as error:
        from_table(Placement, table)
    assert "\n" not in str(error.value)


def folder(path: Path, num_bytes: int) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(bytes(num_bytes))
    return path


def test_a_pair_must_fit_on_the_gpus_of_a_process(tmp_path):
    safe, risky = folder(tmp_path / "safe", 10_000), folder(tmp_path / "risky", 190_000)

    def plan(**more):
        placement = Placement(gpu_memory=1.2e-4, **more)
        return placement_plan(
            replace(SWEEP, safe=str(safe), risky=str(risky), placement=placement, folders=[])
        )

    shown = plan(gpus=2, options=SPREAD)
    assert shown.startswith("each process: 2 GPU(s), device = CUDA where there is one, risky_")
    with pytest.raises(ValueError, match=r"raise placement.gpus, or quantize the risky model"):
        plan()
    with pytest.raises(ValueError, match=r"unknown config key placement.options.risky_devic "):
        plan(options={"risky_devic": "cpu"})
    risky = Path("owner/risky")  # of a model on the Hub the size is not known
    assert "weights" not in plan()
