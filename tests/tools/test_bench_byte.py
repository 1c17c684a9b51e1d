"""The byte-level benchmark: its rows on a pair that was hardly trained, refused settings."""

from dataclasses import replace

import pytest

from anchored.tools.bench_byte import BenchByteConfig, run

SMALL = BenchByteConfig(
    vocab_sizes=(300, 320),
    train_steps=1,
    prompt_bytes=20,
    new_bytes=6,
    contexts=(10, 20),
    prefetch=2,
    runs=1,
)


@pytest.mark.slow  # trains two tokenizers
def test_tables_name_what_was_measured(capsys, tmp_path):
    config = replace(SMALL, folder=tmp_path / "pair")
    assert run(config) == 0
    first = capsys.readouterr().out
    assert run(config) == 0
    assert (tmp_path / "pair" / "risky" / "tokenizer.json").exists()
    header, *tables = capsys.readouterr().out.split("\n", 1)
    assert first.startswith(header)
    assert "V = 300 and 320" in header and "20 + 6 bytes" in header
    decoding, unseen, prompt, context, _ = "".join(tables).split("\n\n")
    names = [line.split("  ")[0] for line in map(str.strip, decoding.splitlines()[1:])]
    assert names == ["plain", "exact", "prefetch", "tau", "tau, prefetch", "projection"]
    assert len(unseen.splitlines()) == 7
    assert [line.split()[0] for line in prompt.splitlines()[1:]] == [
        "prefill",
        "no",
        "exact",
        "bounded",
    ]
    assert "10 tokens" in context and "20 tokens" in context


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_bytes": 0}, "prompt_bytes must be >= 1, got 0"),
        ({"tau": 0.0}, r"tau must be in \(0, 1\), got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        BenchByteConfig(**change)
