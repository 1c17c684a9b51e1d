"""Splits of a vocabulary kept on disk: the same table from them; damaged ones count as none."""

import pytest
from merge_pairs import merge_table
from safetensors.numpy import save_file

from anchored.decode.tokenizer import split_cache
from anchored.decode.tokenizer.merges import MergeTable
from anchored.decode.tokenizer.split_cache import SplitCache
from anchored.decode.tokenizer.vocabulary import ByteVocabulary


def state(table: MergeTable) -> list[object]:
    spines = [[own[token] for token in table.rank] for own in (table.left_spine, table.right_spine)]
    return [table.split, table.rank, table.latest, table.irregular, spines]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> SplitCache:
    monkeypatch.setattr(split_cache, "LEAST_TOKENS", 1)
    return SplitCache(tmp_path / "vocabularies")


def test_a_table_of_known_splits_is_the_table(tokenizer, cache):
    table = merge_table(tokenizer)
    cache.save("ab", table.splits())
    merges = [(*pair, merged) for pair, (_, merged) in table.merged.items()]
    again = MergeTable(table.bytes_of, merges, cache.load("ab"))
    assert state(again) == state(table)
    assert list(again.split) == list(table.split)


def test_irregular_tokens_stay_irregular(cache):
    bytes_of = {0: b"a", 1: b"b", 2: b"c", 3: b"ab", 4: b"abc", 5: b"bc"}
    merges = [(3, 2, 4), (0, 1, 3), (1, 2, 5)]
    table = MergeTable(bytes_of, merges)
    assert table.irregular == {4}
    cache.save("ab", table.splits())
    again = MergeTable(bytes_of, merges, cache.load("ab"))
    assert state(again) == state(table)


def test_a_vocabulary_is_read_from_the_cache_once_it_is_there(tokenizer, cache, monkeypatch):
    stops = [tokenizer.token_to_id("<|end|>")]
    first = ByteVocabulary(tokenizer, stops, cache=cache)
    monkeypatch.delattr(MergeTable, "_find_splits")
    again = ByteVocabulary(tokenizer, stops, cache=cache)
    assert again.viability.merges.split == first.viability.merges.split


@pytest.mark.parametrize("family", ["cl100k"])
def test_damaged_and_foreign_files_count_as_none(tokenizer, cache, caplog):
    assert cache.load("ab") is None
    splits = merge_table(tokenizer).splits()
    cache.save("ab", splits)
    (file,) = cache.folder.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-4] + b"\0\0\0\7", b""):
        file.write_bytes(damaged)
        assert cache.load("ab") is None
    save_file({"pairs": splits.pairs}, file)  # without a word of what it is
    assert cache.load("ab") is None
    file.write_bytes(whole)
    assert cache.load("ab").num_irregular == splits.num_irregular
    file.rename(cache.folder / "cd.safetensors")
    assert cache.load("cd") is None
    SplitCache(cache.folder / "cd.safetensors").save("ab", splits)  # a file stands there
    assert "vocabulary not cached" in caplog.text
