"""The 31 sources of the Common Pile in the forms that their writers give licenses."""

import gzip
import json

import pytest

from anchored.pretrain.tokens.shards import TokenShards
from anchored.tools.commands.training.plan import COMMON_PILE
from anchored.tools.commands.training.tokenize import TokenizeConfig, run

BY = "Creative Commons - Attribution - https://creativecommons.org/licenses/by/4.0/"
BY_NC = "Creative Commons - Attribution Non-Commercial"
NONE_GIVEN = "(none given)"
# Kept and refused values of metadata.license, by source.
FORMS = {
    "peS2o": ([BY, "CC BY", "CCBYSA", "https://creativecommons.org/licenses/by/4.0/"], [BY_NC, ""]),
    "stackv2_edu": (["MIT,Apache-2.0", "BSD-3-Clause"], ["MIT,GPL-3.0-only", "", None]),
    "cccc": ([BY, "CC-BY-SA-3.0", "CC0-1.0"], ["CC-BY-NC-4.0", "CC-BY-ND-4.0"]),
    "github_archive": (["MIT", "Apache-2.0", "", None], ["GPL-3.0", "NOASSERTION"]),
    "data_provenance_initiative": ([[BY], [BY, "MIT License"]], [[BY, BY_NC], []]),
    "project_gutenberg": (["Public Domain"], ["Public Domain in the USA only"]),
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
    damaged = gzip.compress(b'{"text": "a"}\n{"te')
    (tmp_path / "mirror" / "foodista" / "00000.jsonl.gz").write_bytes(damaged)
    return tmp_path / "mirror"


def options(tokenizer_folder, **settings):
    common = {"tokenizer": str(tokenizer_folder), "mixture": COMMON_PILE, "heldout_fraction": 0.0}
    return TokenizeConfig(**common | settings)


def test_a_sample_of_all_sources_tells_what_would_be_refused_or_cannot_be_read(
    mirror, tokenizer_folder, capsys
):
    assert run(options(tokenizer_folder, sample=1000, input=(mirror,))) == 1
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["source", "documents", "kept", "refused"]
    shown = {row.split()[0]: row.split()[1:4] for row in rows if row}
    for name, (kept, refused) in FORMS.items():
        total = len(kept) + len(refused)
        shares = [f"{len(part) / total:.1%}" for part in (kept, refused)]
        assert shown[name] == [str(total), *shares]
    assert f"stackv2_edu: refused {NONE_GIVEN}: 2" in rows
    assert "stackv2_edu: kept MIT AND Apache-2.0: 1" in rows
    assert "github_archive: kept Blue Oak list: license of the repository, not stated: 2" in rows
    assert "foodista: not JSON: 1" in rows
    assert any(row.startswith("news: input folder") for row in rows)


def test_enough_tokens_are_taken_from_all_files_and_the_same_after_a_stop(
    tokenizer_folder, tmp_path, monkeypatch
):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, count in enumerate((40, 120)):
        rows = [json.dumps({"text": "salt and rain " * 5}) for _ in range(count)]
        (folder / f"{number}.jsonl").write_text("\n".join(rows))
    common = {"tokenizer": str(tokenizer_folder), "source": "s", "input": (folder,), "workers": 1}

    def tokenized(name, **changes):
        config = TokenizeConfig(**common, output=tmp_path / name, heldout_fraction=0.1, **changes)
        assert run(config) == 0
        return TokenShards.open(tmp_path / name).manifest

    whole = tokenized("whole")
    enough = whole.num_tokens // 3
    part = tokenized("part", max_tokens=enough)
    longest = max(shard.num_tokens // shard.num_documents for shard in whole.shards)
    assert enough <= part.num_tokens <= enough + 2 * longest
    by_file = {shard.input_file: shard.num_tokens for shard in part.shards}
    assert by_file["1.jsonl"] / by_file["0.jsonl"] == pytest.approx(3, rel=0.1)
    pieces = tokenized("pieces", max_tokens=enough, shard_tokens=100)
    assert pieces.num_tokens == part.num_tokens and len(pieces.shards) > 2
    assert tokenized("all", max_tokens=0).num_tokens == whole.num_tokens
    with pytest.raises(ValueError, match="max_tokens was 0 and is now 7"):
        tokenized("whole", max_tokens=7)
