"""Token shards: what is written is read back, and a changed file is refused."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from anchored.pretrain.plan.provenance import document_spans
from anchored.pretrain.tokens import shards as shards_module
from anchored.pretrain.tokens.shards import (
    STAMP_NAME,
    Manifest,
    TokenShards,
    check_shards,
    file_sha256,
    is_verified,
    verify_shards,
)
from anchored.pretrain.tokens.workers import worker_counts
from anchored.pretrain.tokens.writer import write_token_shards


@pytest.fixture(scope="session")
def tokenizer_file(corpus):
    return corpus.tokenizer_folder / "tokenizer.json"


def write(folder, documents, tokenizer_file, **changes):
    origin = {"source": "letters", "license": "CC0-1.0", "revision": "abc"}
    return write_token_shards(folder, documents, tokenizer_file, **origin | changes)


@pytest.fixture
def folder(corpus, tmp_path):
    """A copy of a source that was verified."""
    copy = shutil.copytree(corpus.source("harbour"), tmp_path / "s")
    verify_shards(copy)
    return copy


def swap_halves(path, *, nanoseconds):
    """Another order of the same bytes in place, modified so much later than they were."""
    stat, data = path.stat(), path.read_bytes()
    half = len(data) // 16 * 8
    path.write_bytes(data[half:] + data[:half])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + nanoseconds))


def test_documents_are_between_begin_and_end(tmp_path, tokenizer_file):
    documents = ["h\u00e9", "", "a wave"]
    manifest = write(tmp_path / "s", documents, tokenizer_file).manifest
    tokenizer, expected, ends = Tokenizer.from_file(str(tokenizer_file)), [], [0]
    for text in filter(None, documents):
        expected += [*tokenizer.encode(text).ids, manifest.eos_id]
        ends.append(len(expected))
    # Files are little-endian, and counted in the manifest.
    offsets = np.fromfile(tmp_path / "s" / "documents-00000.bin", dtype="<i8")
    assert np.fromfile(tmp_path / "s" / "tokens-00000.bin", dtype="<u4").tolist() == expected
    assert offsets.tolist() == ends
    assert (manifest.num_documents, manifest.num_empty_documents) == (2, 1)
    assert manifest.num_bytes == sum(len(text.encode()) for text in documents)
    assert manifest.licenses == {"CC0-1.0": 2}
    assert manifest.tokenizer_sha256 == file_sha256(tokenizer_file)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    limit=st.integers(1, 30),
    data=st.data(),
)
@settings(max_examples=10)
def test_any_slice_reads_across_shards(tmp_path_factory, tokenizer_file, lengths, limit, data):
    documents, folder = ["z" * length for length in lengths], tmp_path_factory.mktemp("slices")
    split = write(folder / "split", documents, tokenizer_file, max_tokens_per_shard=limit)
    whole = write(folder / "whole", documents, tokenizer_file)
    start = data.draw(st.integers(0, whole.num_tokens))
    count = data.draw(st.integers(0, whole.num_tokens - start))
    assert split.tokens(start, count).tolist() == whole.tokens(start, count).tolist()
    records = [
        [(span.record, span.first_token, span.num_tokens) for span in spans]
        for spans in (document_spans(one, start, count) for one in (split, whole))
    ]
    assert records[0] == records[1]
    longest = max(limit, max(lengths) + 2)
    assert all(shard.num_tokens <= longest for shard in split.manifest.shards)


def test_a_file_that_is_flipped_cut_or_lost_is_refused_by_name(folder):
    name = "provenance-00000.bin"
    before, data = file_sha256(folder / name), bytearray((folder / name).read_bytes())
    data[9] ^= 1
    (folder / name).write_bytes(data)
    after = file_sha256(folder / name)
    with pytest.raises(ValueError, match=rf"{name} has sha256 {after}, expected {before}"):
        verify_shards(folder)
    (folder / name).write_bytes(data[:-4])  # seen without reading it
    with pytest.raises(ValueError, match=rf"{name} has \d+ bytes, expected"):
        TokenShards.open(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is missing"):
        TokenShards.open(folder)


def test_a_damaged_or_missing_manifest_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no token shards in"):
        TokenShards.open(tmp_path)
    for text, reason in (
        ("{", "Expecting property name"),
        ('{"schema": "other/1"}', "its schema is not anchored-tokens/2"),
        ('{"schema": "anchored-tokens/2", "bos_id": "0"}', "bos_id must be a whole number"),
    ):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match=f"is not a token shard manifest: .*{reason}"):
            TokenShards.open(tmp_path)


def test_a_folder_appears_only_when_complete(corpus, tmp_path, tokenizer_file):
    def documents():
        yield from ["salt"] * 300
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        write(tmp_path / "s", documents(), tokenizer_file)
    assert not (tmp_path / "s").exists()
    with pytest.raises(ValueError, match="source letters has no text"):
        write(tmp_path / "s", ["", ""], tokenizer_file)
    assert write(tmp_path / "s", ["salt"], tokenizer_file).manifest.num_documents == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    with pytest.raises(ValueError, match="harbour exists"):
        write(corpus.source("harbour"), ["salt"], tokenizer_file)


def test_shards_of_other_tokens_around_documents_are_not_mixed(corpus, tmp_path):
    copy = shutil.copytree(corpus.source("quarry"), tmp_path / "quarry")
    for change, difference in (
        ({"eos_id": 7}, "end token 299 and 7"),
        ({"bos_id": None}, "begin token 298 and None"),
    ):
        manifest = replace(Manifest.read(corpus.source("quarry")), **change)
        (copy / "manifest.json").write_text(manifest.to_json())
        assert Manifest.read(copy) == manifest  # None is kept
        with pytest.raises(ValueError, match=f"{copy} were tokenized differently: {difference}"):
            corpus.plan({"harbour": 1.0, str(copy): 1.0})


def test_a_stamp_holds_until_a_file_changes(folder, monkeypatch):
    (folder / STAMP_NAME).unlink()
    assert not is_verified(folder)
    check_shards([folder])
    assert is_verified(folder)
    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "NUM_SPOT_CHECKS", 0)
        patch.setattr(shards_module, "files_sha256", None)
        check_shards([folder])  # nothing is read
    swap_halves(folder / "tokens-00001.bin", nanoseconds=1)
    assert not is_verified(folder)
    with pytest.raises(ValueError, match=r"tokens-00001.bin has sha256"):
        check_shards([folder])
    monkeypatch.setattr(shards_module, "MOST_HASHED_BYTES", 100)
    with pytest.raises(ValueError, match="run `anchored plan --config FILE --verify`"):
        check_shards([folder])


def test_what_is_damaged_and_keeps_its_time_is_noticed_when_it_is_read(folder):
    for kind in ("tokens", "documents"):
        for path in folder.glob(f"{kind}-*.bin"):
            swap_halves(path, nanoseconds=0)
    assert is_verified(folder)
    with pytest.raises(ValueError, match=r"corrupt token shard: .*tokens-0000..bin has sha256"):
        check_shards([folder])  # a run reads a few when it starts
    with pytest.raises(ValueError, match=r"corrupt token shard: .*documents-0000..bin has sha256"):
        list(document_spans(TokenShards.open(folder), 0, 100))


def test_cores_are_used_for_files_first(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(16))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes of this machine share its cores
    files_and_workers = [(100, 0), (3, 0), (100, 16)]
    counts = [worker_counts(*one) for one in files_and_workers]
    assert counts == [(8, 1), (3, 2), (16, 1)]  # spare cores become threads of the tokenizer
