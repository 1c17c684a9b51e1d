"""Files and folders, good and bad, that the command lines of `bad_inputs` name."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def make_places(root: Path, safe: Path, risky: Path, ledger: Path, ratios: Path) -> dict[str, Path]:
    """Good and bad files and folders below `root`, by name; some names have nothing there."""
    places = {"safe": safe, "risky": risky, "ledger": ledger, "other": ratios}
    names = ("missing", "texts", "folder", "somebody", "other_quickstart", "fifo", "link")
    places |= {name: root / name for name in names}
    for name in ("texts", "folder", "somebody", "other_quickstart"):
        places[name].mkdir()
    (places["texts"] / "one.jsonl").write_text('{"text": "the keeper of the lamp"}\n')
    (places["somebody"] / "models").mkdir()
    (places["other_quickstart"] / "steps.json").write_text('{"settings": "0", "steps": {}}')
    os.mkfifo(places["fifo"])
    places["link"].symlink_to(ledger)
    places["hard_link"] = root / "hard_link.jsonl"
    places["hard_link"].hardlink_to(ledger)
    places["long_name"] = root / ("n" * 255)
    places |= _written(root, _files(ledger))
    places["tokens"] = root / "tokens"
    places["tokens"].mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(safe / name, places["tokens"])
    places["under_file"] = places["existing"] / "new"
    for name, damage in _MODEL_DAMAGES.items():
        places[name] = Path(shutil.copytree(safe, root / name))
        damage(places[name])
    return places


def _written(root: Path, contents: dict[str, str | bytes]) -> dict[str, Path]:
    places = {}
    for name, content in contents.items():
        path = root / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        places[name.partition(".")[0]] = path
    return places


def _files(ledger: Path) -> dict[str, str | bytes]:
    lines = ledger.read_text().splitlines(keepends=True)
    mixture = (Path(__file__).parents[2] / "configs/pretrain/common_pile.toml").read_text()
    return {
        "existing": "kept",
        "existing_png.png": "kept",
        "empty": "",
        "garbage": bytes(range(256)),
        "empty_jsonl.jsonl": "",
        "garbage_jsonl.jsonl": bytes(range(256)),
        "list": "[]",
        "no_method": '{"quant_method": "nope"}',
        "prompts": '{"prompt": "a"}\n',
        "prompts_broken": '{"prompt": "a"}\n{"prompt": ',
        "prompts_list": '["a"]',
        "prompts_without": '{"id": 1}',
        "prompts_number": '{"prompt": 3}',
        "prompts_seed": '{"prompt": "a", "seed": "one"}',
        "prompts_k": '{"prompt": "a", "k": true}',
        "prompts_nan": '{"prompt": "a", "k": NaN}',
        "prompts_negative": '{"prompt": "a", "seed": -1}',
        "prompts_key": '{"prompt": "a", "temperature": 1}',
        "prompts_blank": "\n\n",
        "prompts_huge_seed": json.dumps({"prompt": "a", "seed": 2**63}),
        "prompts_huge_k": '{"prompt": "a"}\n{"prompt": "b", "k": 1e9}',
        "prompts_passage": '{"prompt": "a", "passage": ""}',
        "prompts_deep": "[" * 100_000,
        "prompts_bom": b"\xff\xfe{\x00",
        "prompts_twice": '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n',
        "prompts_id": '{"id": "a", "prompt": "b"}',
        "prompts_input.jsonl": '{"input": "a"}',
        "books.jsonl": '{"text": "a b", "reference": "c", "snippet": "a b", "output": "c"}\n',
        "letters.jsonl": '{"text": "a b c"}\n{"text": "d"}\n',
        "no_text.jsonl": '{"title": "a"}\n',
        "sweep_label.toml": SWEEP.replace('label = "ours"', ""),
        "sweep_rule.toml": SWEEP.replace('rule = "anchored"', 'rule = "anchor"'),
        "sweep_type.toml": SWEEP.replace("seeds = [0]", 'seeds = "0"'),
        "sweep_prompts.toml": SWEEP.replace("prompts.jsonl", "nowhere.jsonl"),
        "base_number.toml": "base = 3\n",
        "base_missing.toml": 'base = "nowhere.toml"\n',
        "toml_odd": "[nothing]\nof = 'ours'\n",
        "toml_broken": "[training\n",
        "toml_circle": 'base = "toml_circle"\n',
        "mixture_weight": mixture.replace("{ stage1 =", "{ stage9 =", 1),
        "mixture_key": mixture.replace("max_epochs =", "max_epoch =", 1),
        "cut_ledger": "".join(lines[:-1]),
        "line_missing": "".join(lines[:2] + lines[3:]),
        "list_ledger": "[]\n" * len(lines),
        "ended": _rewritten(lines, -1, lambda footer: footer | {"finish_reason": "stop_token"}),
        **{name: _rewritten(lines, 0, change) for name, change in _HEADER_CHANGES.items()},
        "step_text": _rewritten(lines, 1, lambda step: step | {"token_id": "x"}),
    }


SWEEP = """
safe = "safe"
risky = "risky"
prompts = "prompts.jsonl"
held_out = { books = ["books.jsonl"] }
seeds = [0]
[[methods]]
rule = "anchored"
label = "ours"
settings = { k = 1.0 }
"""


_HEADER_CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "field_missing": lambda header: {key: header[key] for key in header if key != "seed"},
    "field_unknown": lambda header: header | {"color": "red"},
    "field_mistyped": lambda header: header | {"horizon": "many"},
    "field_null": lambda header: header | {"K": None},
}


def _rewritten(
    lines: list[str], number: int, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> str:
    """The ledger with one line changed, and a hash that is right for it."""
    records = [json.loads(line) for line in lines]
    records[number] = change(records[number])
    del records[-1]["sha256"]
    plain = [json.dumps(record) for record in records]
    digest = hashlib.sha256("\n".join(plain).encode()).hexdigest()
    plain[-1] = json.dumps(records[-1] | {"sha256": digest})
    return "".join(line + "\n" for line in plain)


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _set(name: str, **changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _with_norm(*values: float) -> Callable[[Path], None]:
    """The model with this value in its last norm's weight, or without that weight."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        norm = tensors.pop("model.norm.weight")
        for value in values:
            tensors["model.norm.weight"] = torch.full_like(norm, value)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return change


_GARBAGE = bytes(range(256)) * 8
_MODEL_DAMAGES: dict[str, Callable[[Path], object]] = {
    "config_empty": _cut("config.json", 0),
    "config_garbage": _write("config.json", _GARBAGE),
    "config_list": _write("config.json", b"[]"),
    "config_type": _set("config.json", model_type="nonsense"),
    "config_sizes": _set("config.json", hidden_size=48),
    "tokenizer_missing": lambda folder: (folder / "tokenizer.json").unlink(),
    "tokenizer_empty": _cut("tokenizer.json", 0),
    "tokenizer_garbage": _write("tokenizer.json", _GARBAGE),
    "tokenizer_other": _write("tokenizer.json", b'{"model": {"type": "Unheard"}}'),
    "weights_missing": lambda folder: (folder / "model.safetensors").unlink(),
    "weights_empty": _cut("model.safetensors", 0),
    "weights_truncated": _cut("model.safetensors", 20_000),
    "weights_garbage": _write("model.safetensors", _GARBAGE),
    "weights_partial": _with_norm(),
    "weights_nan": _with_norm(torch.nan),
    "tokenizer_short": _set("tokenizer_config.json", model_max_length=16),
}
