"""anchored tokenize: what it keeps, and that interrupting it changes nothing."""

import gzip
import json
import os
import signal
import time
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from forked_program import ForkedProgram

from anchored.durable_files import locked
from anchored.pretrain.plan.provenance import document_spans
from anchored.pretrain.tokens.input_files import local_files
from anchored.pretrain.tokens.shards import Manifest, TokenShards
from anchored.pretrain.tokens.writer import Segment
from anchored.tools.commands.training.plan import COMMON_PILE
from anchored.tools.commands.training.tokenize import TokenizeConfig, run

WORDS = ["the", "keeper", "of", "lamp", "wrote", "every", "wave", "salt", "rain", "bells", "rang"]


@pytest.fixture(scope="module")
def texts_folder(tmp_path_factory):
    """Five files of 120 documents, every tenth under another license."""
    folder = tmp_path_factory.mktemp("texts")
    generator = np.random.default_rng(0)
    for number in range(5):
        rows = [
            {
                "text": " ".join(generator.choice(WORDS, size=generator.integers(5, 60))),
                "metadata": {"license": "CC BY-NC" if place % 10 == 3 else "CC0"},
            }
            for place in range(120)
        ]
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def config(tokenizer_folder, texts_folder):
    def make(output, **changes):
        settings = {
            "source": "letters",
            "tokenizer": str(tokenizer_folder / "tokenizer.json"),
            "output": output,
            "input": (texts_folder,),
            "heldout_fraction": 0.1,
            "shard_tokens": 1500,
            "workers": 1,
        }
        return TokenizeConfig(**settings | changes)

    return make


def contents(folder):
    """Every file of the result but the locks, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The folder of a run in one process that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "s"
    assert run(config(folder)) == 0
    return folder


def test_shards_hold_the_allowed_documents_and_the_manifest_counts_the_rest(config, tmp_path):
    extra = tmp_path / "extra.jsonl"
    lines = [b'{"text": ""}', b'{"text": "\xff"}', json.dumps({"text": "salt " * 999}).encode()]
    extra.write_bytes(b"\n".join(lines))
    inputs = (*config(tmp_path).input, extra)
    settings = {"licenses": ("CC0",), "max_document_bytes": 2000, "input": inputs}
    assert run(config(tmp_path / "s", **settings)) == 0
    manifest, heldout = (Manifest.read(tmp_path / "s" / split) for split in ("", "heldout"))
    assert manifest.licenses["CC0"] + heldout.licenses["CC0"] == 540
    assert manifest.refused_licenses == {"CC BY-NC": 60}
    assert (manifest.num_empty_documents, manifest.num_invalid_documents) == (1, 1)
    assert manifest.num_oversized_documents == 1
    assert (manifest.split, heldout.split) == ("train", "heldout")
    assert 20 < heldout.num_documents < 100


@pytest.mark.parametrize(
    ("options", "tokens", "line"),
    [
        ({}, (0, 1), "documents begin with <|begin|> and end with <|end|>"),
        ({"begin_token": "none"}, (None, 1), "documents end with <|end|>"),
        ({"begin_token": "<|turn|>", "end_token": "<|begin|>"}, (2, 0), "with <|turn|> and end"),
    ],
)
def test_documents_have_the_tokens_around_them_that_are_named(
    config, tmp_path, whole, capsys, options, tokens, line
):
    assert run(config(tmp_path / "s", **options)) == 0
    assert line in capsys.readouterr().out
    manifest = Manifest.read(tmp_path / "s")
    assert (manifest.bos_id, manifest.eos_id) == tokens
    begun, first = (TokenShards.open(folder) for folder in (whole, tmp_path / "s"))
    lost = begun.manifest.num_documents if tokens[0] is None else 0
    assert first.num_tokens == begun.num_tokens - lost
    assert set(document_ends(first)) == {tokens[1]}
    assert run(config(None, **options, sample=20)) == 0
    assert line in capsys.readouterr().out


def document_ends(shards):
    lengths = [span.num_tokens for span in document_spans(shards, 0, shards.num_tokens)]
    return [int(shards.tokens(end - 1, 1)[0]) for end in accumulate(lengths)]


@pytest.fixture
def damaged_folder(tmp_path):
    """Two files of good lines; one has two bad ones, the other three and is cut short."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    good = [json.dumps({"text": f"the keeper wrote {number}"}) for number in range(40)]
    lines = [*good[:20], "{bad", '{"text": null}', *good[20:]]
    (folder / "a.jsonl").write_text("\n".join(lines))
    data = gzip.compress("\n".join(['{"body": "salt"}'] * 2 + lines[:20] + good * 50).encode())
    (folder / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    return folder


@pytest.mark.parametrize(
    ("limit", "counts"),
    [
        (4, "3 no text in the text field, 1 not JSON, 1 the rest of a damaged file"),  # together
        (1, "1 not JSON, 1 no text in the text field"),  # the first file alone
    ],
)
def test_a_source_with_more_invalid_records_ends_and_goes_on_when_more_are_allowed(
    config, tmp_path, damaged_folder, limit, counts, capsys
):
    message = (
        rf"letters has more than {limit} records without text .* \({counts}; text field 'text'"
    )
    settings = {"input": (damaged_folder,), "shard_tokens": 99}
    with pytest.raises(ValueError, match=message):
        run(config(tmp_path / "s", **settings, max_invalid_documents=limit))
    assert not (tmp_path / "s" / "manifest.json").exists()
    assert run(config(tmp_path / "s", **settings, max_invalid_documents=5)) == 0
    out = capsys.readouterr().out
    of_all = {"not JSON": 1, "no text in the text field": 3, "the rest of a damaged file": 1}
    assert Manifest.read(tmp_path / "s").invalid_documents == of_all
    assert all(f"  left out, {problem}: {count}\n" in out for problem, count in of_all.items())
    run(config(tmp_path / "whole", **settings))
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_processes_share_the_files_by_locks_and_the_last_completes_the_folder(
    config, tmp_path, whole, capsys
):
    held = [tmp_path / "many" / "progress" / f"{index:05d}.lock" for index in (0, 3)]
    with locked(held[0]), locked(held[1]):  # two other processes are at work on these
        assert run(config(tmp_path / "many")) == 0
        assert "other processes are still at work" in capsys.readouterr().out
        done = {path.name[8:13] for path in held[0].parent.glob("segment-*")}
        assert done == {"00001", "00002", "00004"}
    assert not (tmp_path / "many" / "manifest.json").exists()
    # Where they were killed their files are free again.
    assert run(config(tmp_path / "many")) == 0
    assert contents(tmp_path / "many") == contents(whole)


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.mark.parametrize("killed_at", [1, 16])
def test_a_run_goes_on_after_any_segment(config, tmp_path, whole, monkeypatch, killed_at):
    write, calls = Segment.write, []

    def write_or_die(self, path):
        calls.append(path)
        if len(calls) == killed_at:  # as kill -9 does, in the midst of it
            path.with_name(f"{path.name}.partial-0123abcd").write_text("{")
            raise Killed
        write(self, path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Segment, "write", write_or_die)
        run(config(tmp_path / "cut"))
    assert not (tmp_path / "cut" / "manifest.json").exists()
    run(config(tmp_path / "cut"))
    assert contents(tmp_path / "cut") == contents(whole)


@pytest.mark.slow
def test_kill_nine_and_a_second_run_give_the_same_bytes(config, tmp_path, whole):
    first = config(tmp_path / "cut", shard_tokens=300)
    words = ["tokenize", "--source", "letters", "--tokenizer", first.tokenizer]
    words += ["--output", str(first.output), "--input", str(first.input[0])]
    words += ["--heldout-fraction", "0.1", "--shard-tokens", "300", "--workers", "2"]
    program = ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt")
    progress = tmp_path / "cut" / "progress"
    program.wait_until(lambda: any(progress.glob("segment-*.json")))
    os.kill(program.pid, signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "manifest.json").exists()
    with pytest.raises(ProcessLookupError):  # the workers, too, end by themselves
        for _ in range(2000):
            os.killpg(program.pid, 0)
            time.sleep(0.01)
    assert run(replace(first, workers=2)) == 0  # worker processes write the same bytes
    run(config(tmp_path / "again", shard_tokens=300, workers=1))
    assert contents(tmp_path / "cut") == contents(tmp_path / "again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard_tokens": 999}, "max_tokens_per_shard was 1500 and is now 999"),
        ({"source": "other"}, 'source was "letters" and is now "other"'),
    ],
)
def test_other_settings_do_not_go_on_with_a_folder(config, whole, change, message):
    with pytest.raises(ValueError, match=message):
        run(config(whole, **change))


def test_a_mixture_gives_dataset_revision_and_licenses(config, tmp_path, monkeypatch, texts_folder):
    asked = []

    def listed(dataset, *, revision):
        asked.append((dataset, revision))
        return local_files([texts_folder], revision=revision)

    monkeypatch.setattr("anchored.tools.commands.training.tokenize.hub_files", listed)
    settings = {"mixture": COMMON_PILE, "source": "wikimedia", "input": ()}
    assert run(config(tmp_path / "s", **settings)) == 0
    assert Manifest.read(tmp_path / "s").refused_licenses == {"CC BY-NC": 60}
    assert asked == [("common-pile/wikimedia_filtered", "0641bb8")]
