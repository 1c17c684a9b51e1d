"""The benchmarks: a row for every method, batch size or lever, what is compared with what, costs by
hand."""

import math
import re
from itertools import count, product
from types import SimpleNamespace

import pytest
import torch
from training_runs import train

from anchored.kernels import reference
from anchored.tools.bench import baselines, decode, flops, kernel, pretrain
from anchored.tools.bench.decode import bench_rules, speeds
from anchored.tools.bench.options import METHODS, BenchDecodeConfig, BenchKernelConfig
from anchored.tools.bench.pretrain import BASELINE, BenchPretrainConfig
from anchored.tools.quickstart.preset import PRESETS

TINY = {"safe": "tiny", "risky": "tiny", "vocab_size": 64}


@pytest.fixture(autouse=True)
def no_official_package(monkeypatch):
    """It need not be here, and may not be importable."""
    monkeypatch.setattr(baselines, "PACKAGE", "no_package_of_this_name")


def table(capsys) -> tuple[str, list[str], list[tuple[str, list[float]]]]:
    """(header, titles, (name, figures) by row)."""
    header, titles, *lines = capsys.readouterr().out.splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    figures = [
        (name, [math.nan if cell == "-" else float(cell) for cell in cells])
        for name, *cells in rows
    ]
    return header, re.split(r"\s{2,}", titles.strip()), figures


def test_every_method_has_a_row_for_every_batch_size_with_transformers(pair_folders, capsys):
    safe, risky = map(str, pair_folders)
    sizes = {"batch_sizes": (1, 2), "prompt_length": 4, "new_length": 6, "drafts": (2,)}
    assert decode.run(BenchDecodeConfig(safe=safe, risky=risky, **sizes)) == 0
    header, titles, rows = table(capsys)
    assert f"{safe} + {risky}, auto on cpu" in header
    names = ["transformers, risky alone", "safe_only", "anchored", "anchored_inf"]
    names.append("anchored, drafts 2")
    assert [(figures[0], name) for name, figures in rows] == list(product([1, 2], names))
    slowdown, forwards = titles.index("slowdown"), titles.index("risky fwd")
    a_token = {name: figures[forwards] for name, figures in rows if figures[0] == 1}
    assert a_token["safe_only"] == 0 and a_token["anchored"] == 1 > a_token["anchored, drafts 2"]
    for name, figures in rows:
        assert figures[1] > 0 and figures[-1] > 0  # first ms, peak GB
        if name == names[0]:
            assert figures[slowdown : slowdown + 2] == [1.0, 0.0]


def test_pairs_of_tokens_and_of_bytes_have_rows_of_every_method_that_they_take(capsys):
    lengths = {"prompt_length": 8, "new_length": 3, "batch_sizes": (1,), "runs": 1}
    every = {"methods": ("rcad", "all"), "passage_words": 7, "clock": "cpu"}
    assert decode.run(BenchDecodeConfig(**TINY, **lengths, **every)) == 0
    header, titles, (_, *rows) = table(capsys)
    assert "tiny + tiny, V = 64, auto on cpu" in header
    assert [name for name, _ in rows] == list(METHODS)
    gflops = {name: figures[titles.index("all GFLOP")] for name, figures in rows}
    assert gflops["memfree"] == gflops["risky_only"] < gflops["rcad"] / 2
    methods = {"methods": ("anchored", "token_swap")}  # words as tokens are no bytes
    sizes = TINY | {"vocab_size": 400}
    assert decode.run(BenchDecodeConfig(**sizes, level="byte", **methods, **lengths)) == 0
    _, titles, rows = table(capsys)
    assert [name for name, _ in rows] == ["risky_only", "anchored"]
    figures = dict(rows)["risky_only"]  # no prompt's positions, and a forward of each other one
    step, positions, gflop = figures[titles.index("step GFLOP") :][:3]
    assert 0 < positions < 8 and gflop == pytest.approx(step * positions, rel=0.1)


def test_methods_take_turns_and_one_that_ends_at_once_has_no_speed():
    calls = []
    generate = lambda name: lambda length: calls.append((name, length)) or 2 * length  # noqa: E731
    clock = (float(tick**2) for tick in count()).__next__  # a call lasts 4 s longer than the last
    measured = speeds({"a": generate("a"), "b": generate("b")}, 4, runs=2, clock=clock)
    assert measured["a"][0] == (17.0, (8 - 2) / (21 - 17))
    assert calls == [("a", 1), ("a", 4), ("b", 1), ("b", 4)] * 3  # the first ones warm up
    with pytest.raises(ValueError, match="a ends its texts at once"):
        speeds({"a": lambda length: 2}, 4, runs=1)


COSTS = {  # by hand: 2 N of every stream, their prompts, passes over a row of logits
    "rcad": (4 * 3000, {"risky": 6, "passage": 26}, 2 + 1),
    "anchored_debt": (2 * 4000, {"safe": 6, "risky": 6}, 2 * 3),
    "no_opt": (2 * 4000, {"safe": 6, "risky": 6}, 2 * 2 * 3),
}


@pytest.mark.parametrize("name", COSTS)
def test_a_method_costs_a_forward_of_every_stream_and_its_share_of_the_prompt(name, monkeypatch):
    weights = {"safe": 1000, "risky": 3000}
    monkeypatch.setattr(flops, "num_matrix_weights", weights.__getitem__)
    pair = SimpleNamespace(models={"safe": "safe", "risky": "risky"}, vocab_size=64)
    steps, lengths, passes = COSTS[name]
    rule = bench_rules(k=1.0, horizon=8, passages=["a"], words=["a"])[name]
    assert set(rule.streams) == set(lengths)
    cost = flops.token_cost(pair, rule, prompt_tokens=lengths, new_tokens=4)
    models = {stream: "safe" if stream == "safe" else "risky" for stream in lengths}
    prompt = sum(2 * weights[models[stream]] * size for stream, size in lengths.items()) / 4
    debt = 2 * 64 * 10 * 6 / 4 if name == "anchored_debt" else 0.0
    assert cost == {"steps": steps, "prompt": prompt, "debt": debt, "projection": passes * 640}


def test_the_baseline_finds_the_weight_of_the_reference():
    generator = torch.Generator().manual_seed(0)
    safe, risky = (torch.randn(8, 200, generator=generator) for _ in range(2))
    budget = torch.tensor([0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 9.0])
    weight, log_probs = kernel.paper_projection(risky, safe, budget)
    expected = reference.project_kl(risky, safe, budget).nan_to_num(0.0)
    torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-4)
    tilted = reference.tilted_log_probs(risky, safe, weight)
    torch.testing.assert_close(log_probs.double(), tilted, rtol=0, atol=1e-5)


def test_the_table_of_the_kernel_has_a_row_for_every_batch_size(capsys):
    assert kernel.run(BenchKernelConfig(batch_sizes=(1, 3), vocab_size=500)) == 0
    printed, charges = capsys.readouterr().out.split("\n\n")
    header, _, titles, *rows = printed.splitlines()
    assert f"torch {torch.__version__}, 1 thread" in header
    assert "our over" in titles
    assert [row.split()[0] for row in rows] == ["1", "3"]
    _, titles, *rows = charges.splitlines()
    assert "times mean" in titles
    expected = [[size, charge] for size in "13" for charge in ("mean", "worst", "drawn")]
    assert [row.split()[:2] for row in rows] == expected


CHANGED = f"""
base = "{PRESETS}/smoke/stage1.toml"
job = {{ needs_gpu = true }}
model = {{ tokenizer = "missing" }}
checkpoint = {{ interval_minutes = 5.0 }}
heldout = {{ sources = [{{ name = "missing", path = "missing" }}] }}
"""
"""A run's config, of which all that is not there or would take time is replaced."""


@pytest.mark.slow
def test_every_lever_has_a_row_next_to_the_configuration(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(pretrain, "launch", train)
    file = tmp_path / "changed.toml"
    file.write_text(CHANGED)
    chosen = ("twice the batch",)
    settings = {"rounds": 2, "steps": 3, "skipped_steps": 1, "vocab_size": 300}
    assert pretrain.run(BenchPretrainConfig(config=file, levers=chosen, **settings)) == 0
    _, titles, *rows = capfd.readouterr().out.splitlines()
    assert "tokens/s a GPU" in titles and "peak GiB" in titles
    assert [row[:20].strip() for row in rows] == [BASELINE, *chosen]
    for row in rows:  # the same tokens in the same steps: the same loss
        *_, mfu, peak, loss, difference = row.split()
        assert (mfu, peak) == ("-", "-") and float(loss) > 5
        assert abs(float(difference)) < 1e-4
