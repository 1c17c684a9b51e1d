"""The benchmarks of pairs: a row for every method, what is compared with what, costs by hand."""

import math
import re
from itertools import count, product
from types import SimpleNamespace

import pytest
import torch
from byte_pairs import llama3_tokenizer, tiny_byte_pair
from tiny_models import train_tokenizer

from anchored import RiskyOnly
from anchored.tools.bench import decode, flops, inputs, parts
from anchored.tools.bench.decode import bench_rules, byte_cells, speeds
from anchored.tools.bench.flops import num_matrix_weights
from anchored.tools.bench.inputs import random_pair
from anchored.tools.bench.options import METHODS, BenchDecodeConfig, method_names
from anchored.tools.bench.timing import times_baseline
from anchored.tools.quickstart import protected_works
from anchored.tools.quickstart.protected_works import Work

TINY = {"safe": "tiny", "risky": "tiny", "vocab_size": 64}


def table(capsys) -> tuple[str, list[str], list[tuple[str, list[float]]]]:
    """(header, titles, (name, figures) by row)."""
    header, titles, *lines = capsys.readouterr().out.splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    figures = [
        (name, [math.nan if cell == "-" else float(cell) for cell in cells])
        for name, *cells in rows
    ]
    return header, re.split(r"\s{2,}", titles.strip()), figures


def test_every_method_has_a_row_for_every_batch_size_beside_transformers(capsys):
    config = BenchDecodeConfig(
        **TINY, batch_sizes=(1, 2), prompt_length=4, new_length=6, drafts=(2,)
    )
    assert decode.run(config) == 0
    header, titles, rows = table(capsys)
    assert "tiny + tiny, V = 64, auto on cpu" in header
    names = ["transformers, risky alone", "safe_only", "anchored", "anchored_inf"]
    names.append("anchored, drafts 2")
    assert [(figures[0], name) for name, figures in rows] == list(product([1, 2], names))
    slowdown, forwards = titles.index("slowdown"), titles.index("risky fwd")
    a_token = {name: figures[forwards] for name, figures in rows if figures[0] == 1}
    assert a_token["safe_only"] == 0 and a_token["anchored"] == 1 > a_token["anchored, drafts 2"]
    for name, figures in rows:
        assert figures[1] > 0 and figures[-1] > 0  # first ms, peak GB
        assert all(map(math.isfinite, (figures[2], figures[slowdown])))
        if name == names[0]:
            assert figures[slowdown : slowdown + 2] == [1.0, 0.0]


@pytest.fixture
def byte_pair_folders(tmp_path, monkeypatch):
    """A pair with two tokenizers, and one work that its 256 positions hold."""
    pair = tiny_byte_pair()
    tokenizers = train_tokenizer(320), llama3_tokenizer(300)
    for name, tokenizer in zip(("safe", "risky"), tokenizers, strict=True):
        pair.models[name].save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    work = Work(id="w", title="t", text="t\n\nthe keeper of the lamp kept the harbour bell")
    monkeypatch.setattr(protected_works, "read_works", lambda: [work])
    return {"safe": str(tmp_path / "safe"), "risky": str(tmp_path / "risky")}


def test_a_pair_in_folders_reads_texts(pair_folders, capsys):
    safe, risky = map(str, pair_folders)
    lengths = {"prompt_length": 8, "new_length": 3, "batch_sizes": (2,), "runs": 1}
    config = BenchDecodeConfig(safe=safe, risky=risky, methods=("anchored",), **lengths)
    assert decode.run(config) == 0
    header, _, rows = table(capsys)
    assert f"{safe} + {risky}, auto on cpu" in header and len(rows) == 2
    bench_inputs = inputs.BenchInputs.of(config)
    prompts = bench_inputs.prompts(len(bench_inputs.texts) + 1, 8, "token")
    assert prompts[:-1] == [bench_inputs.pair.encode(text)[:8] for text in bench_inputs.texts]
    assert prompts[-1] == prompts[0]
    with pytest.raises(ValueError, match=r"prompts must be of <= \d+ symbols here, got 99999"):
        bench_inputs.prompts(1, 99_999, "token")


@pytest.mark.filterwarnings("ignore:prefix debt")
def test_every_method_has_its_cost(capsys):
    lengths = {"prompt_length": 4, "new_length": 3, "passage_words": 7, "methods": ("all",)}
    config = BenchDecodeConfig(**TINY, **lengths, batch_sizes=(2,), runs=1, clock="cpu")
    assert decode.run(config) == 0
    _, titles, (_, *rows) = table(capsys)
    assert [name for name, _ in rows] == list(METHODS)
    cost = titles.index("all GFLOP")
    gflops = {name: figures[cost] for name, figures in rows}
    for behind in ("system", "rcad"):
        assert gflops[behind] > 2 * gflops["risky_only"]
    assert gflops["memfree"] == gflops["risky_only"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prefix debt")
def test_methods_at_bytes_have_the_risky_model_alone_first_and_positions(byte_pair_folders, capsys):
    asked = ("anchored", "rcad,token_swap", "memfree")
    lengths = {"prompt_length": 8, "new_length": 6, "passage_words": 4, "runs": 1}
    config = BenchDecodeConfig(
        **byte_pair_folders, level="byte", methods=asked, batch_sizes=(1,), **lengths
    )
    assert decode.run(config) == 0
    _, titles, rows = table(capsys)
    # Words as tokens are no bytes: TokenSwap is left out.
    assert [name for name, _ in rows] == ["risky_only", "memfree", "rcad", "anchored"]
    figures = {name: dict(zip(titles, row, strict=True)) for name, row in rows}
    assert figures["risky_only"]["slowdown"] == 1.0
    rcad, memfree = figures["rcad"], figures["memfree"]
    assert rcad["step GFLOP"] == pytest.approx(2 * memfree["step GFLOP"], abs=2e-4)
    assert memfree["positions"] < rcad["positions"] < 16 and rcad["GFLOP"] > 0


def test_a_random_pair_at_bytes_has_two_tokenizers_and_its_steps_have_parts(capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # of the other tests too
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    lengths = {"prompt_length": 8, "new_length": 4, "runs": 2, "batch_sizes": (1, 2)}
    config = BenchDecodeConfig(**TINY | {"vocab_size": 400}, level="byte", parts=True, **lengths)
    assert decode.run(config) == 0
    header, titles, rows = table(capsys)
    assert "tiny + tiny, V = 400" in header and "host: ms of trees and distributions" in header
    for size, (name, row) in zip((1, 2), rows, strict=True):
        figures = dict(zip(titles, row, strict=True))
        assert name == "anchored" and figures["batch"] == size
        ms = {part: figures[part] for part in parts.PARTS}
        assert all(each > 0 for each in ms.values())
        assert sum(ms.values()) == pytest.approx(figures["step ms"], abs=0.04)  # of rounding
        host = (ms["trees"] + ms["distributions"]) / (2 * size)
        assert figures["host"] == pytest.approx(host, abs=0.01)
    safe, risky = inputs.BenchInputs.of(config).pair.tokenizers.values()
    assert len(safe) == len(risky) == 400 and safe.get_vocab() != risky.get_vocab()
    with pytest.raises(ValueError, match="parts are those of a step at level byte"):
        BenchDecodeConfig(**TINY, parts=True)


def test_a_part_has_the_time_of_its_own_calls_within_a_step(monkeypatch):
    class Work:
        def step(self):
            self.read()
            self.read()

        def read(self):
            self.forward()

        def forward(self):
            pass

    calls = {"forwards": ((Work, "forward"),), "trees": ((Work, "read"),)}
    monkeypatch.setattr(parts, "PARTS", calls | {parts.STEP: ((Work, "step"),)})
    timed = parts.Parts(clock=count().__next__)  # a second passes with every look at it
    with timed.watched():
        Work().read()  # of a prompt
        Work().step()
    Work().step()
    assert timed.num_steps == 1
    # Looks: step, read, forward, forward, read, read, forward, forward, read, step.
    assert timed.seconds == {"forwards": 2, "trees": 4, parts.STEP: 3}


def test_positions_are_those_behind_the_prompt_and_cost_a_forward_each():
    risky = random_pair("tiny", "tiny", vocab_size=64, context_length=8).risky
    decoder = SimpleNamespace(
        rule=RiskyOnly(compared=False), pair=SimpleNamespace(models={"risky": risky})
    )

    def result(num_bytes):
        footer = SimpleNamespace(work={"risky": {"num_nodes": 10 + 2 * num_bytes}})
        ledger = SimpleNamespace(footer=footer)
        return [SimpleNamespace(token_ids=[0] * num_bytes, ledger=ledger)]

    gflop = 2e-9 * num_matrix_weights(risky)
    cells = byte_cells(decoder, {7: result(7), 1: result(1)})
    assert cells == (f"{gflop:.4f}", "2.0000", f"{2 * gflop:.4f}")


def test_methods_are_named_by_spaces_or_commas_in_one_order():
    assert method_names(("rcad,safe_only", "system")) == ("safe_only", "system", "rcad")
    assert method_names(("rcad", "all")) == METHODS
    with pytest.raises(ValueError, match=r"all or of safe_only, .*, got 'rcda'"):
        BenchDecodeConfig(methods=("rcda",))
    rules = bench_rules(k=1.0, horizon=5, passages=["a"], words=["a"])
    assert tuple(rules) == METHODS and rules["global_switch"].K == 5.0


def test_a_slowdown_is_of_speeds_in_the_same_run():
    fast, slow = [8.0, 2.0], [4.0, 0.5]
    assert times_baseline(fast, slow) == (3.0, pytest.approx(math.sqrt(2)))
    assert times_baseline(fast, fast) == (1.0, 0.0)


def test_methods_take_turns_and_one_that_ends_at_once_has_no_speed():
    calls = []
    generate = lambda name: lambda length: calls.append((name, length)) or 2 * length  # noqa: E731
    clock = (float(tick**2) for tick in count()).__next__  # one call never lasts as long as another
    speeds({"a": generate("a"), "b": generate("b")}, 4, runs=2, clock=clock)
    assert calls == [("a", 1), ("a", 4), ("b", 1), ("b", 4)] * 3  # the first ones warm up
    with pytest.raises(ValueError, match="a ends its texts at once"):
        speeds({"a": lambda length: 2}, 4, runs=1)


def test_a_token_multiplies_all_weights_but_the_embedding_table():
    pair = random_pair("tiny", "small", vocab_size=64, context_length=8, dtype=torch.bfloat16)
    layers = 2 * (4 * 128 * 128 + 3 * 128 * 352 + 2 * 128)
    weights = layers + 128 + 64 * 128  # final norm, output layer
    assert num_matrix_weights(pair.safe) == weights
    pair.safe.lm_head.weight = pair.safe.get_input_embeddings().weight  # is multiplied with, too
    assert num_matrix_weights(pair.safe) == weights


RULES = bench_rules(k=1.0, horizon=8, passages=["a"], words=["a"])
V, SAFE_N, RISKY_N = 64, 1000, 3000
# By hand: (2 N of every stream, their prompts of 6 with what stands before, passes over a row).
COSTS = {
    "safe_only": (2 * SAFE_N, {"safe": 6}, 2 * 3),
    "risky_only": (2 * RISKY_N, {"risky": 6}, 1 + 1),
    "system": (2 * RISKY_N, {"risky": 16}, 1 + 1),
    "memfree": (2 * RISKY_N, {"risky": 6}, 1 + 1),
    "rcad": (4 * RISKY_N, {"risky": 6, "passage": 26}, 2 + 1),
}
PASSES = {
    "cp_fuse": 2 + 18 * 18 + 1,
    "no_opt": 2 * 2 * 3,
    **dict.fromkeys(("anchored", "anchored_debt", "anchored_inf", "pathwise"), 2 * 3),
    **dict.fromkeys(("token_swap", "cold_start", "global_switch"), 2 + 1),
}
"""Those of rules that read the prompt with both models."""
COSTS |= {
    name: (2 * RISKY_N + 2 * SAFE_N, {"safe": 6, "risky": 6}, passes)
    for name, passes in PASSES.items()
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
    models = {stream: "safe" if stream == "safe" else "risky" for stream in lengths}
    prompt = sum(2 * weights[models[stream]] * size for stream, size in lengths.items()) / 4
    debt = 2 * V * 10 * 6 / 4 if name in ("anchored_debt",) else 0.0
    assert cost == {"steps": steps, "prompt": prompt, "debt": debt, "projection": passes * V * 10}
