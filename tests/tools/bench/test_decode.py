"""The benchmarks of pairs of random weights: rows for every engine and length, costs by hand."""

import math
import re
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from anchored.tools.bench import decode, flops
from anchored.tools.bench.flops import num_matrix_weights
from anchored.tools.bench.methods import Speed, bench_rules, speeds
from anchored.tools.bench.options import (
    METHODS,
    BenchDecodeConfig,
    BenchFlopsConfig,
    method_names,
)
from anchored.tools.bench.random_inputs import random_pair

TINY = {"safe": "tiny", "risky": "tiny", "vocab_size": 64}


def table(capsys) -> tuple[str, list[dict[str, str]]]:
    """(header, rows by title); the second error is that of the slowdown."""
    header, titles, *lines = capsys.readouterr().out.splitlines()
    names = re.split(r"\s{2,}", titles.strip())
    names[names.index("slowdown") + 1] = "error of slowdown"
    return header, [dict(zip(names, line.split(), strict=True)) for line in lines]


def test_every_engine_has_a_row_for_every_batch_size(capsys):
    config = BenchDecodeConfig(**TINY, batch_sizes=(1, 2), prompt_tokens=4, new_tokens=4)
    assert decode.run(config) == 0
    header, rows = table(capsys)
    assert "tiny + tiny, V = 64, float32 on cpu" in header
    engines = ["risky_alone", "safe_only", "anchored", "anchored_inf"]
    assert [(row["batch"], row["engine"]) for row in rows] == list(product("12", engines))
    for row in rows:
        assert float(row["TTFT ms"]) > 0 and float(row["peak GB"]) > 0
        assert math.isfinite(float(row["x bandwidth"])) and math.isfinite(float(row["slowdown"]))
        is_alone = row["engine"] == "risky_alone"
        assert not is_alone or (row["slowdown"], row["error of slowdown"]) == ("1.00", "0.00")


@pytest.mark.filterwarnings("ignore:prefix debt")
def test_every_method_is_timed_and_has_its_cost(capsys):
    once = {**TINY, "batch_sizes": (2,), "runs": 1, "clock": "cpu"}
    lengths = {"prompt_tokens": 4, "new_tokens": 3, "passage_tokens": 7}
    config = BenchDecodeConfig(**once, **lengths, methods=("all",))
    assert decode.run(config) == 0
    _, (alone, *rows) = table(capsys)
    assert [row["engine"] for row in rows] == list(METHODS)
    flops_of = {row["engine"]: float(row["all GFLOP"]) for row in rows}
    for behind in ("system", "rcad"):
        assert flops_of[behind] > 2 * float(alone["all GFLOP"])
    assert flops_of["memfree"] == flops_of["risky_only"] == float(alone["all GFLOP"])


def test_methods_are_named_by_spaces_or_commas_in_one_order():
    assert method_names(("rcad,safe_only", "system")) == ("safe_only", "system", "rcad")
    assert method_names(("rcad", "all")) == METHODS
    with pytest.raises(ValueError, match=r"all or of safe_only, .*, got 'rcda'"):
        BenchDecodeConfig(methods=("rcda",))
    rules = bench_rules(k=1.0, horizon=5, passages=["a"], words=["a"])
    assert tuple(rules) == METHODS and rules["global_switch"].K == 5.0


def test_a_slowdown_is_of_speeds_in_the_same_run():
    fast, slow = Speed([0.1, 0.3], [8.0, 2.0]), Speed([0.2, 0.2], [4.0, 0.5])
    assert slow.slowdown(fast) == (3.0, pytest.approx(math.sqrt(2)))
    assert fast.slowdown(fast) == (1.0, 0.0) and fast.first_ms == pytest.approx(200.0)


def test_methods_take_turns_and_one_that_ends_at_once_has_no_speed():
    calls = []
    generate = lambda name: lambda length: calls.append((name, length)) or 2 * length  # noqa: E731
    speeds({"a": generate("a"), "b": generate("b")}, 4, runs=2)
    run = [("a", 1), ("a", 4), ("b", 1), ("b", 4)]
    assert calls == [("a", 4), ("b", 4), *run, *run]
    with pytest.raises(ValueError, match="a ends its texts at once"):
        speeds({"a": lambda length: 2}, 4, runs=1)


def test_every_pair_of_lengths_has_a_cost(capsys):
    assert flops.run(BenchFlopsConfig(**TINY, prompt_tokens=(3, 5), new_tokens=(2, 4))) == 0
    _, titles, *rows = capsys.readouterr().out.splitlines()
    assert "GFLOP/s" in titles and [row.split()[0] for row in rows] == ["3", "3", "5", "5"]


def test_a_token_reads_and_multiplies_all_weights_but_the_embedding_table():
    pair = random_pair("tiny", "small", vocab_size=64, context_length=8, dtype=torch.bfloat16)
    layers = 2 * (4 * 128 * 128 + 3 * 128 * 352 + 2 * 128)
    weights = layers + 128 + 64 * 128  # final norm, output layer
    assert num_matrix_weights(pair.safe) == weights
    assert decode.step_bytes(pair.safe) == 2 * weights


RULES = bench_rules(k=1.0, horizon=8, passages=["a"], words=["a"])
V, SAFE_N, RISKY_N = 64, 1000, 3000
# By hand: (2 N of every stream, their prompts of 6 with what stands before, passes over a row).
COSTS = {
    "safe_only": (2 * SAFE_N, {"safe": 6}, 2 * 3),
    "risky_only": (2 * RISKY_N, {"risky": 6}, 1 + 1),
    "system": (2 * RISKY_N, {"risky": 16}, 1 + 1),
    "memfree": (2 * RISKY_N, {"risky": 6}, 1 + 1),
    "rcad": (4 * RISKY_N, {"risky": 6, "passage": 26}, 2 + 1),
    "cp_fuse": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 + 18 * 18 + 1),
    "token_swap": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 + 1),
    "anchored": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 * 3),
    "anchored_debt": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 * 3),
    "anchored_inf": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 * 3),
    "no_opt": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 * 2 * 3),
    "cold_start": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 + 1),
    "global_switch": (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, 2 + 1),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_costs_a_forward_of_every_stream_and_its_share_of_the_prompt(name, monkeypatch):
    weights = {"safe": SAFE_N, "risky": RISKY_N}
    monkeypatch.setattr(flops, "num_matrix_weights", weights.__getitem__)
    pair = SimpleNamespace(models={"safe": "safe", "risky": "risky"}, vocab_size=V)
    steps, lengths, passes = COSTS[name]
    rule = RULES[name]
    assert set(rule.streams) == set(lengths)
    cost = flops.token_cost(pair, rule, prompt_tokens=lengths, new_tokens=4)
    models = {own: "safe" if own == "safe" else "risky" for own in lengths}
    prompt = sum(2 * weights[models[own]] * length for own, length in lengths.items()) / 4
    debt = 2 * V * 10 * 6 / 4 if name in ("anchored_debt",) else 0.0
    assert cost == {"steps": steps, "prompt": prompt, "debt": debt, "projection": passes * V * 10}
