"""A sweep whose settings of Anchored Decoding are drawn by vLLM."""

import json

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import anchored
from anchored.eval.experiments.generations import draw_by_vllm, generate_all, read_generations
from anchored.eval.experiments.plan import sweep_experiment
from anchored.eval.experiments.sweep import load_sweep

from .conftest import ENGINE

SWEEP = """
safe = "{safe}"
risky = "{risky}"
prompts = "{prompts}"
level = "token"
engine = "vllm"
max_new_tokens = 6
seeds = [0, 1]
[[methods]]
label = "Anchored"
rule = "anchored"
settings = {{ k = [0.5, 2.0] }}
[[methods]]
label = "Pathwise"
rule = "pathwise"
settings = {{ k = 0.5, bank = 4.0 }}
[placement.vllm]
{engine}
"""


def test_vllm_draws_the_texts_of_a_sweep(folders, pair, tmp_path):
    safe, risky = folders
    prompts = [
        {"id": f"p{n}", "prompt": text, "reference": ""}
        for n, text in enumerate(("the keeper", "salt and"))
    ]
    prompt_file = tmp_path / "prompts.jsonl"
    prompt_file.write_text("\n".join(map(json.dumps, prompts)))
    engine = "\n".join(f"{name} = {json.dumps(value)}" for name, value in ENGINE.items())
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.format(safe=safe, risky=risky, prompts=prompt_file, engine=engine))
    sweep = load_sweep(file)
    drawn, plain = (sweep_experiment(sweep, tmp_path / name, None) for name in ("vllm", "plain"))
    draw_by_vllm(sweep, drawn)
    generate_all(plain, pair)
    by_vllm = [each for each in drawn.settings if each.method in ("Anchored", "Pathwise")]
    assert len(by_vllm) == 3
    for setting in by_vllm:
        texts = [read_generations(experiment, setting) for experiment in (drawn, plain)]
        rows = [[(row["id"], row["seed"], row["text"]) for row in each] for each in texts]
        assert rows[0] == rows[1]
        for row in texts[0]:
            ledger = anchored.Ledger.load(drawn.folder / row["ledger"], row["ledger_part"])
            assert ledger.certified and anchored.verify(ledger, pair)
