"""The 31 sources of the Common Pile in the forms that their writers give licenses."""

import gzip
import json

import pytest

from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.tokens.shards import Manifest, TokenShards
from anchored.tools.commands.training.plan import COMMON_PILE
from anchored.tools.commands.training.tokenize import TokenizeConfig, run

CC = "Creative Commons - "
BY = f"{CC}Attribution - https://creativecommons.org/licenses/by/4.0/"
BY_3 = f"{CC}Attribution - https://creativecommons.org/licenses/by/3.0/"
BY_SA = f"{CC}Attribution Share-Alike - https://creativecommons.org/licenses/by-sa/4.0/"
ZERO = "Creative Commons Zero - Public Domain - https://creativecommons.org/publicdomain/zero/1.0/"
BY_NC = f"{CC}Attribution Non-Commercial"
PUBLIC = "Public Domain"
APACHE = "Apache 2 License - https://www.apache.org/licenses/LICENSE-2.0"
PARLIAMENT = (
    "Open Parliament Licence - https://www.parliament.uk/site-information/copyright-parliament/"
    "open-parliament-licence/"
)
NONE_GIVEN = "(none given)"
# Kept and refused values of metadata.license, by source.
FORMS = {
    "peS2o": ([BY, "CC BY", "CCBYSA", "https://creativecommons.org/licenses/by/4.0/"], [BY_NC, ""]),
    "stackexchange": ([BY_SA, "CC BY-SA 4.0"], ["CC BY-NC-SA 4.0"]),
    "stackv2_edu": (["MIT,Apache-2.0", "BSD-3-Clause"], ["MIT,GPL-3.0-only", "", None]),
    "cccc": ([BY, "CC-BY-SA-3.0", "CC0-1.0"], ["CC-BY-NC-4.0", "CC-BY-ND-4.0"]),
    "wikimedia": ([BY_SA, "GNU Free Documentation License"], []),
    "github_archive": (["MIT", "Apache-2.0", "", None], ["GPL-3.0", "NOASSERTION"]),
    "uspto": ([BY, PUBLIC], []),
    "pubmed": ([BY, BY_SA, ZERO], [BY_NC]),
    "arxiv_papers": ([BY, ZERO], []),
    "doab": ([BY, BY_3, BY_SA], ["None"]),
    "uk_hansard": ([PARLIAMENT], []),
    "wikiteam": ([BY_SA, "GNU Free Documentation License", PUBLIC], ["https://example.org/own"]),
    "data_provenance_initiative": ([[APACHE], [BY, "MIT License"]], [[BY, BY_NC], []]),
    "project_gutenberg": ([PUBLIC], ["Public Domain in the USA only"]),
    "youtube": ([BY_3], ["Standard YouTube License"]),
    "arxiv_abstracts": ([ZERO], []),
    "stackv2_html": (["MIT", "ISC,MIT"], ["LicenseRef-scancode-proprietary-license"]),
    "biodiversity_heritage_library": ([PUBLIC, ZERO], []),
    "foodista": ([BY_3], []),
    **dict.fromkeys(("pressbooks", "libretexts", "oercommons"), ([BY], [])),
    **dict.fromkeys(("news", "public_domain_review"), ([BY_SA], [])),
    **dict.fromkeys(("caselaw_access_project", "library_of_congress"), ([PUBLIC], [])),
    **dict.fromkeys(("python_enhancement_proposals", "pre_1929_books"), ([PUBLIC], [])),
    **dict.fromkeys(("ubuntu_irc", "regulations", "usgpo"), ([PUBLIC], [])),
}


@pytest.fixture
def mirror(tmp_path):
    """A folder with a shard of each source."""
    for name, (kept, refused) in FORMS.items():
        rows = [
            {"id": str(row), "text": f"the keeper of lamp {row}", "metadata": {"license": license}}
            for row, license in enumerate([*kept, *refused])
        ]
        (tmp_path / "mirror" / name).mkdir(parents=True)
        with gzip.open(tmp_path / "mirror" / name / "00000.jsonl.gz", "wt") as file:
            file.write("\n".join(map(json.dumps, rows)))
    return tmp_path / "mirror"


def options(tokenizer_folder, **settings):
    common = {"tokenizer": str(tokenizer_folder), "mixture": COMMON_PILE, "heldout_fraction": 0.0}
    return TokenizeConfig(**common | settings)


def test_a_sample_of_all_sources_tells_what_would_be_refused(mirror, tokenizer_folder, capsys):
    names = [source.name for source in load_mixture(COMMON_PILE).sources]
    assert set(FORMS) == set(names)
    config = options(tokenizer_folder, sample=1000, input=(mirror,))
    assert run(config) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["source", "documents", "kept", "refused"]
    for row, name in zip(rows, names, strict=False):
        kept, refused = FORMS[name]
        total = len(kept) + len(refused)
        shares = [f"{len(part) / total:.1%}" for part in (kept, refused)]
        assert row.split()[:4] == [name, str(total), *shares]
    assert f"stackv2_edu: refused {NONE_GIVEN}: 2" in rows
    assert "stackv2_edu: kept MIT AND Apache-2.0: 1" in rows
    assert "stackv2_edu: refused MIT AND GPL-3.0-only: 1" in rows
    assert "github_archive: kept Blue Oak list: license of the repository, not stated: 2" in rows
    assert not list(mirror.parent.glob("*.partial"))


def test_a_sample_goes_on_past_a_source_that_cannot_be_read(mirror, tokenizer_folder, capsys):
    (mirror / "news" / "00000.jsonl.gz").unlink()
    (mirror / "foodista" / "00000.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"te'))
    assert run(options(tokenizer_folder, sample=10, input=(mirror,))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("news: input folder") for line in lines)
    assert "foodista: not JSON: 1" in lines
    assert any(line.split()[:3] == ["public_domain_review", "1", "100.0%"] for line in lines)


def test_code_whose_licenses_are_joined_by_commas_is_tokenized(mirror, tokenizer_folder, tmp_path):
    for name in ("stackv2_edu", "github_archive"):
        folder = tmp_path / name
        inputs = {"source": name, "input": (mirror / name,), "output": folder}
        assert run(options(tokenizer_folder, workers=1, **inputs)) == 0
    manifest = Manifest.read(tmp_path / "stackv2_edu")
    assert manifest.licenses == {"BSD-3-Clause": 1, "MIT AND Apache-2.0": 1}
    assert manifest.refused_licenses == {NONE_GIVEN: 2, "MIT AND GPL-3.0-only": 1}
    manifest = Manifest.read(tmp_path / "github_archive")
    assert manifest.licenses["Blue Oak list: license of the repository, not stated"] == 2


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
