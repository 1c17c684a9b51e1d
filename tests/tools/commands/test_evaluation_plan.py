"""anchored dry-run of the evaluations in configs/eval: every file, id, size and rule of each."""

import json
import math
from pathlib import Path

import huggingface_hub
import pytest
from command_line import refused, run
from huggingface_hub.errors import RepositoryNotFoundError

import anchored
from anchored.configs.config_file import read_config_file
from anchored.tools.commands.evaluation import model_sizes
from anchored.tools.commands.evaluation.evaluation_plan import Load, memory_line, time_line
from anchored.tools.commands.evaluation.model_sizes import ModelSize, model_size
from anchored.tools.commands.training.training_options import DryRunConfig

FOLDER = Path(anchored.__file__).parent / "configs" / "eval"
CONFIGS = sorted(FOLDER.glob("*.toml"))
SWEEPS = [file for file in CONFIGS if "methods" in read_config_file(file)]
COMPARISONS = [file for file in CONFIGS if file not in SWEEPS]
PAPER = [file for file in SWEEPS if "quickstart" not in file.name]
BOOKS = FOLDER / "llama3.1-70b+tinycomma-1.8b.toml"
KS = [0.1, 0.5, 1, 1.5, 2, 3, 4, 5, 10, 15, 20]


@pytest.fixture
def offline(monkeypatch):
    """A Hub that does not answer."""

    def refuse(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)


@pytest.fixture
def inputs(tmp_path, pair_folders):
    """Files by all names that the configs have, and the quickstart's models."""
    prompt = json.dumps({"id": "a", "prompt": "Once upon a time", "reference": "x y z"})
    for file in SWEEPS:
        tables = read_config_file(file)
        names = [tables["prompts"], tables["passages"]]
        names += [name for own in tables["held_out"].values() for name in own]
        for name in filter(None, names):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{prompt}\n{prompt.replace('a', 'b', 1)}\n")
            if name == tables["prompts"]:
                path.write_text("".join(f"{prompt}\n".replace('"a"', f'"{i}"') for i in range(2)))
    (tmp_path / "models").mkdir()
    for name, folder in zip(("safe", "risky"), pair_folders, strict=True):
        (tmp_path / "models" / name).symlink_to(folder)
    return tmp_path


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_every_sweep_has_a_plan(file, inputs, offline, capsys):
    words = ("dry-run", "--config", str(file), "--inputs", str(inputs))
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert out.startswith(f"{file.stem}: ") and "memory, estimated" in out and "hours" in out
    is_local = file not in PAPER
    assert ("the Hub does not answer" in out) is not is_local


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: file.stem)
def test_every_comparison_has_a_plan(file, offline, capsys):
    status, out, err = run(capsys, "dry-run", "--config", str(file))
    assert status == 0, err
    assert "3 models x" in out and "memory, estimated" in out


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_every_sweep_can_begin(file, inputs, capsys):
    words = ("sweep", str(file), "--inputs", str(inputs), "--dry-run")
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert " x 2 prompts x " in out


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: file.stem)
def test_every_comparison_can_begin(file, capsys):
    status, out, err = run(capsys, "compare", str(file), "--dry-run")
    assert status == 0 and "3 models x" in out, err


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_the_settings_are_the_papers(file):
    tables = read_config_file(file)
    (own,) = (m for m in tables["methods"] if m["label"] == "Anchored")
    assert own["settings"]["k"] == KS and tables["seeds"] == [0, 1, 2]
    assert tables["temperature"] == 0.7
    assert tables["repetition_penalty"] == (1.05 if file.stem.endswith("-bios") else 1.1)
    assert tables["max_new_tokens"] == (1024 if file.stem == "nonliteral" else 200)
    is_token = tables["safe"].startswith("jacquelinehe") and "Llama-3.1" in tables["risky"]
    assert tables["level"] == ("token" if is_token else "byte")
    assert ("token_swap" in [m["rule"] for m in tables["methods"]]) <= is_token


def test_all_pairs_are_there():
    pairs = {(t["safe"], t["risky"]) for t in map(read_config_file, PAPER)}
    assert len(pairs) == 7
    books = [file.stem for file in PAPER if "+" in file.stem and "bios" not in file.stem]
    assert len(books) == 7 and all((FOLDER / f"{name}-bios.toml").is_file() for name in books)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds", "seed", "unknown config key seed (did you mean seeds?)"),
        ('rule = "system"', 'rule = "sistem"', "System: rule must be one of"),
        ("Llama-3.1-70B", "Llama/3.1/70B", "no model folder and no OWNER/NAME of the Hub"),
        ("Llama-3.1-70B", "Llama-9-1B", "the size of meta-llama/Llama-9-1B is not known"),
        ("books.prompts", "none.prompts", "there is no file"),
        ('safe = "', 'sage = "', "unknown config key sage"),
    ],
)
def test_what_a_config_gets_wrong_is_one_line(inputs, offline, capsys, old, new, message):
    whole = (FOLDER / "methods" / "token.toml").read_text()
    own = BOOKS.read_text().split("base =")[1].split("\n", 1)[1]
    tables, held_out = own.split("[held_out]")
    file = inputs / "own.toml"
    text = f"{tables}\n{whole}\n[held_out]{held_out}"
    assert old in text
    file.write_text(text.replace(old, new))
    words = ("dry-run", "--config", str(file), "--inputs", str(inputs))
    assert message in refused(capsys, *words)


def test_too_few_gpus_are_one_line(inputs, offline, capsys):
    words = ("dry-run", "--config", str(BOOKS), "--inputs", str(inputs), "--gpus", "1")
    line = refused(capsys, *words)
    assert "needs 16" in line and line.endswith("1 GPUs of 141 GB have 141\n")
    assert "gpus must be > 0, got 0" in run(capsys, *words[:-1], "0")[2]


SIZES = {
    "safe": ModelSize(
        weights=100, num_layers=2, num_kv_heads=1, head_dim=4, vocab_size=10, context_length=9
    ),
    "risky": ModelSize(
        weights=1000,
        active=50,
        num_layers=3,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=10,
        context_length=9,
    ),
}
LOAD = Load(
    num_settings=5, num_texts=6, prompt_tokens=7, new_symbols=80, batch_size=4, is_byte=True
)


def test_memory_and_time_are_those_of_hand_arithmetic():
    config = DryRunConfig(gpus=1, gpu_gigabytes=1e-5, bandwidth=1e3, peak_flops=1e5, mfu=0.5)
    cache = 4 * (7 + 20) * (2 * 2 * 2 * 4 + 2 * 2 * 3 * 2 * 4)
    needed = 1.1 * (2 * 1100 + cache + 12 * 4 * 20)
    fewest = math.ceil(needed / 1e4)
    line = memory_line(SIZES, LOAD, DryRunConfig(gpus=9, gpu_gigabytes=1e-5))
    assert f": {fewest} GPUs" in line
    with pytest.raises(ValueError, match="needs"):
        memory_line(SIZES, LOAD, DryRunConfig(gpus=1, gpu_gigabytes=needed / 1e9 - 1e-9))
    # A batch of 4 reads 100 and 4 * 50 weights, 2 bytes each, at 500 bytes/s.
    steps = 80 / 4 * (2 * 100 / 500 + 2 * 200 / 500)
    prompts = 7 * (2 * 100 + 2 * 50) / 5e4
    hours = 30 * (steps + prompts) / 3600
    assert f"{hours:.1f} hours" in time_line(SIZES, LOAD, config)


def test_the_size_of_a_folder_is_counted(pair, pair_folders):
    size, source = model_size(pair_folders[0])
    assert size.weights == sum(weight.numel() for weight in pair.safe.parameters())
    assert (size.num_layers, size.num_kv_heads, size.head_dim) == (2, 2, 8) and source == "folder"
    with pytest.raises(FileNotFoundError, match=r"no model folder with a config.json at"):
        model_size(pair_folders[0].parent)


def test_the_hub_is_asked_where_it_answers(monkeypatch):
    answers = {"known": SimpleAnswer(123), "silent": None}

    def model_info(_, name, **__):
        if name.endswith("denied"):
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)
        return answers["known"]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    size, source = model_size("Qwen/Qwen2.5-72B")
    assert (size.weights, source) == (123, "Hub")
    with pytest.raises(FileNotFoundError, match="the Hub has no model some/denied"):
        model_size("some/denied")


class SimpleAnswer:
    """What the Hub says of a model."""

    def __init__(self, total):
        self.safetensors = type("Tensors", (), {"total": total})


def test_published_sizes_are_of_the_configs():
    published = read_config_file(model_sizes.PUBLISHED)
    named = {read_config_file(file)[name] for file in PAPER for name in ("safe", "risky")}
    assert named <= published.keys()
