"""anchored tokenize: what it keeps, and that interrupting it changes nothing."""

import gzip
import json

import numpy as np
import pytest
from json_lines import write_json_lines

from anchored.durable_files import locked
from anchored.pretrain.tokens.shards import Manifest
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


def test_shards_hold_the_allowed_documents_and_the_manifest_counts_the_rest(
    config, tmp_path, capsys
):
    """With more invalid ones than are allowed, it ends, and goes on when more are allowed."""
    extra = tmp_path / "extra.jsonl"
    lines = ['{"text": ""}', '{"text": null}', '{"text": 3}', "{bad"]
    extra.write_text("\n".join([*lines, json.dumps({"text": "salt " * 999})]))
    inputs = (extra, *config(tmp_path).input)
    settings = {"licenses": ("CC0",), "max_document_bytes": 2000, "input": inputs}
    counts = "2 no text in the text field, 1 not JSON"
    message = rf"letters has more than 2 records without text .* \({counts}; text field 'text'"
    with pytest.raises(ValueError, match=message):
        run(config(tmp_path / "s", **settings, max_invalid_documents=2))
    assert not (tmp_path / "s" / "manifest.json").exists()
    assert run(config(tmp_path / "s", **settings, max_invalid_documents=3)) == 0
    assert "  left out, no text in the text field: 2\n" in capsys.readouterr().out
    manifest, heldout = (Manifest.read(tmp_path / "s" / split) for split in ("", "heldout"))
    assert manifest.licenses["CC0"] + heldout.licenses["CC0"] == 540
    assert manifest.refused_licenses == {"CC BY-NC": 60}
    assert manifest.invalid_documents == {"not JSON": 1, "no text in the text field": 2}
    assert (manifest.num_empty_documents, manifest.num_oversized_documents) == (1, 1)
    assert (manifest.split, heldout.split) == ("train", "heldout")
    assert 20 < heldout.num_documents < 100
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
    # Where they were killed their files are free again, and worker processes write the same bytes.
    assert run(config(tmp_path / "many", workers=2)) == 0
    assert contents(tmp_path / "many") == contents(whole)


class Killed(BaseException):
    """Stands for a process that ends here."""


def test_a_run_that_is_killed_goes_on(config, tmp_path, whole, monkeypatch):
    write, calls = Segment.write, []

    def write_or_die(self, path):
        calls.append(path)
        if len(calls) == 16:  # as kill -9 does, in the midst of it
            path.with_name(f"{path.name}.partial-0123abcd").write_text("{")
            raise Killed
        write(self, path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Segment, "write", write_or_die)
        run(config(tmp_path / "cut"))
    assert not (tmp_path / "cut" / "manifest.json").exists()
    run(config(tmp_path / "cut"))
    assert contents(tmp_path / "cut") == contents(whole)


# Kept and refused values of metadata.license, by source.
FORMS = {
    "stackv2_edu": (["MIT,Apache-2.0", "BSD-3-Clause"], ["MIT,GPL-3.0-only", "", None]),
    "github_archive": (["MIT", "", None], ["GPL-3.0"]),
}


@pytest.fixture
def mirror(tmp_path):
    """A folder with a shard of some sources, one of which is damaged."""
    for name, (kept, refused) in FORMS.items():
        rows = [
            {"id": str(row), "text": f"the keeper of lamp {row}", "metadata": {"license": license}}
            for row, license in enumerate([*kept, *refused])
        ]
        (tmp_path / "mirror" / name).mkdir(parents=True)
        with gzip.open(tmp_path / "mirror" / name / "00000.jsonl.gz", "wt") as file:
            file.write("\n".join(map(json.dumps, rows)))
    (tmp_path / "mirror" / "foodista").mkdir()
    (tmp_path / "mirror" / "foodista" / "00000.jsonl").write_text('{"text": "a"}\n{"te')
    return tmp_path / "mirror"


def test_a_sample_of_all_sources_tells_what_would_be_refused_or_cannot_be_read(
    mirror, tokenizer_folder, capsys
):
    options = {"mixture": COMMON_PILE, "heldout_fraction": 0.0, "sample": 1000, "input": (mirror,)}
    assert run(TokenizeConfig(tokenizer=str(tokenizer_folder), **options)) == 1
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["source", "documents", "kept", "refused"]
    shown = {row.split()[0]: row.split()[1:4] for row in rows if row}
    for name, (kept, refused) in FORMS.items():
        total = len(kept) + len(refused)
        shares = [f"{len(part) / total:.1%}" for part in (kept, refused)]
        assert shown[name] == [str(total), *shares]
    assert "stackv2_edu: refused (none given): 2" in rows
    assert "stackv2_edu: kept MIT AND Apache-2.0: 1" in rows
    assert "github_archive: kept Blue Oak list: license of the repository, not stated: 2" in rows
    assert "foodista: not JSON: 1" in rows
    assert any(row.startswith("news: ") for row in rows)


def test_enough_tokens_are_taken_from_all_files(config, tmp_path):
    for number, count in enumerate((40, 120)):
        rows = [{"text": "salt and rain " * 5}] * count
        write_json_lines(tmp_path / "texts" / f"{number}.jsonl", rows)

    def tokenized(name, max_tokens):
        settings = {"input": (tmp_path / "texts",), "shard_tokens": 10**6}
        assert run(config(tmp_path / name, **settings, max_tokens=max_tokens)) == 0
        return Manifest.read(tmp_path / name)

    whole = tokenized("whole", max_tokens=0)
    enough = whole.num_tokens // 3
    part = tokenized("part", max_tokens=enough)
    longest = max(shard.num_tokens // shard.num_documents for shard in whole.shards)
    assert enough <= part.num_tokens <= enough + 2 * longest
    by_file = {shard.input_file: shard.num_tokens for shard in part.shards}
    assert by_file["1.jsonl"] / by_file["0.jsonl"] == pytest.approx(3, rel=0.1)
    with pytest.raises(ValueError, match="max_tokens was 0 and is now 7"):
        tokenized("whole", max_tokens=7)
