"""The byte-level benchmark: its rows on a pair that was hardly trained, refused settings."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored import RiskyOnly
from anchored.tools.bench.byte import byte
from anchored.tools.bench.byte.byte import BenchByteConfig, run
from anchored.tools.bench.byte.methods import MethodAtBytes, methods_at_bytes
from anchored.tools.bench.byte.official import official_bytes
from anchored.tools.bench.byte.pair import ByteModel, BytePair, load_pair
from anchored.tools.bench.flops import num_matrix_weights

TOKENIZERS = Path(__file__).parents[5] / "shared" / "tokenizers"

SMALL = BenchByteConfig(
    vocab_sizes=(300, 320),
    train_steps=1,
    prompt_bytes=20,
    num_prompts=3,
    new_bytes=6,
    contexts=(10, 20),
    prefetch=2,
    runs=1,
)


@pytest.mark.slow  # trains two tokenizers
def test_tables_name_what_was_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(byte, "NUM_STRINGS", 20)
    config = replace(SMALL, folder=tmp_path / "pair")
    assert run(replace(config, tables=("tree",))) == 0
    first = capsys.readouterr().out
    assert run(config) == 0
    assert (tmp_path / "pair" / "risky" / "tokenizer.json").exists()
    header, *tables = capsys.readouterr().out.split("\n", 1)
    assert first.startswith(header)
    assert "V = 300 and 320" in header and "20 + 6 bytes" in header
    decoding, unseen, prompt, debts, tree, strings, context, _ = "".join(tables).split("\n\n")
    official = ["official"] if official_bytes(load_pair(config.folder)) else []
    names = ["plain", "exact", "prefetch", "tau", "tau, prefetch", "projection", *official]
    assert first_cells(decoding) == first_cells(unseen) == names
    names = ["prefill", "no debt", "exact", "bounded"]
    assert first_cells(prompt)[:4] == names
    assert first_cells(debts) == ["exact", "bounded", "all ratios", "all bounded"]
    assert first_cells(strings) == ["V = 300", "V = 320"]
    assert first_cells(tree) == first_cells(context) == ["10 tokens", "20 tokens"]


def first_cells(table: str) -> list[str]:
    """The name of every row."""
    return [line.strip().split("  ")[0] for line in table.strip().splitlines()[1:]]


@pytest.mark.slow  # reads the tokenizers of GPT-2 and Llama 3
@pytest.mark.skipif(not TOKENIZERS.exists(), reason="shared/tokenizers is not here")
def test_published_tokenizers_work_behind_long_contexts_in_linear_memory(capsys):
    config = replace(
        SMALL,
        tokenizers=TOKENIZERS,
        contexts=(100, 400),
        context_debt="bounded",
        tables=("context",),
    )
    assert run(config) == 0
    output = capsys.readouterr().out
    assert "V = 50257 and 128256, random weights" in output
    short, long = (list(map(float, line.split()[:1] + line.split()[2:])) for line in rows(output))
    for length, safe_tokens, risky_tokens, *_ in (short, long):
        assert min(safe_tokens, risky_tokens) >= length
    # Stored log-probabilities would make the peaks differ by as much as they take themselves.
    assert long[-2] - short[-2] < 0.5 * (long[-1] - short[-1])


@pytest.mark.slow  # reads the tokenizers of GPT-2 and Llama 3
@pytest.mark.skipif(not TOKENIZERS.exists(), reason="shared/tokenizers is not here")
def test_whole_decoders_run_with_published_tokenizers(capsys):
    assert run(replace(SMALL, tokenizers=TOKENIZERS, tables=("engine",), batch_sizes=(1,))) == 0
    assert len(rows(capsys.readouterr().out)) == 6


@pytest.fixture
def small_pair(monkeypatch) -> BytePair:
    """An untrained pair in place of the measured one."""
    models = {
        name: ByteModel(
            tiny_llama(seed, vocab_size=size, max_position_embeddings=512).float(),
            train_tokenizer(size).backend_tokenizer,
            "<|begin|>",
            "<|end|>",
        )
        for name, seed, size in (("safe", 1, 320), ("risky", 2, 300))
    }
    pair = BytePair(models, b"the keeper of the lamp wrote every wave into a ledger " * 3)
    monkeypatch.setattr(byte, "measured_pair", lambda config: pair)
    return pair


def test_engines_are_timed_beside_forwards_of_as_many_rows(capsys, small_pair):
    config = replace(SMALL, batch_sizes=(1, 2), tables=("engine", "debts"))
    assert run(config) == 0
    cells = [line.split() for line in rows(capsys.readouterr().out)]
    names = ["transformers", "token", "exact", "prefetch", "tau", "tau,"]
    assert [line[:2] for line in cells[:12]] == [[size, n] for size in "12" for n in names]
    assert {line[-2] for line in cells[:12] if line[1] == "exact"} == {"1.00"}
    exact, bounded = (line for line in cells if line[:1] in (["exact"], ["bounded"]))
    assert float(exact[2]) == 1.0 <= float(bounded[2])
    assert int(bounded[4]) <= int(exact[4])


def test_more_prompts_than_the_text_holds_are_refused(small_pair):
    config = replace(SMALL, num_prompts=143, tables=("debts",))
    with pytest.raises(ValueError, match="162 characters of unseen text hold no 143 prompts of 20"):
        run(config)


def test_methods_are_timed_beside_the_risky_model_alone(capsys, small_pair):
    asked = ("anchored", "rcad,token_swap", "memfree")
    config = replace(SMALL, tables=("methods",), methods=asked, passage_bytes=30)
    assert run(config) == 0
    lines = [line.split() for line in rows(capsys.readouterr().out)]
    # Words as tokens are no bytes: TokenSwap is left out.
    assert [line[0] for line in lines] == ["risky_only", "memfree", "rcad", "anchored"]
    figures = {name: list(map(float, own)) for name, *own in lines}
    assert figures["risky_only"][3] == 1.0
    gflop, positions, gflop_of_byte = figures["rcad"][-3:]
    assert gflop == pytest.approx(2 * figures["memfree"][-3], abs=2e-4)
    assert 1.5 < positions < 8 and gflop_of_byte > 0
    assert figures["memfree"][-2] < positions


def test_positions_are_those_behind_the_prompt_and_cost_a_forward_each(small_pair):
    def generate(prompts, *, max_new_bytes):
        work = {"risky": {"num_nodes": 10 + 2 * max_new_bytes}}
        ledger = SimpleNamespace(footer=SimpleNamespace(work=work))
        return [SimpleNamespace(token_ids=[0] * max_new_bytes, ledger=ledger)]

    risky = small_pair.models["risky"].model
    decoder = SimpleNamespace(
        rule=RiskyOnly(compared=False),
        generate=generate,
        pair=SimpleNamespace(models={"risky": risky}),
    )
    method = MethodAtBytes(decoder, [1, 2], "")
    assert (method.generate(1), method.generate(7)) == (1, 7)
    gflop = 2e-9 * num_matrix_weights(risky)
    assert method.cost_cells() == (f"{gflop:.4f}", "2.0000", f"{2 * gflop:.4f}")


def test_every_call_reads_its_prompt(small_pair):
    (method,) = methods_at_bytes(small_pair, b"the keeper", ("risky_only",), SMALL).values()
    method.generate(2)
    assert len(method._decoder.level.prompt_cache) == 0


def rows(output: str) -> list[str]:
    """The lines behind the header and the titles."""
    return output.splitlines()[2:-1]


def test_missing_tokenizers_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*gpt2/tokenizer.json"):
        run(replace(SMALL, tokenizers=tmp_path))
