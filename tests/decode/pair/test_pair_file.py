"""A pair.json names two models: written, read, refused, uploaded; and --pair reads it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anchored import ModelPair
from anchored.decode.pair import folder as model_folder
from anchored.decode.pair import pair_file
from anchored.decode.pair.pair_file import PairFile
from anchored.decode.pair_options import ModelOptions, PairOptions, RuleOptions

SCHEMA = {"schema": "anchored-pair/1"}
COMMIT = "0" * 39 + "1"


def write(folder, **content):
    folder.mkdir(exist_ok=True)
    (folder / "pair.json").write_text(json.dumps(content))
    return folder


def test_a_pair_is_saved_next_to_its_models_and_loaded_by_one_name(pair_folders, tmp_path):
    folder = pair_folders[0].parent / "named"
    pair = ModelPair.from_pretrained(*pair_folders)
    pair.save_pretrained(folder, k=1.5, level="byte")
    assert json.loads((folder / "pair.json").read_text()) == {
        **SCHEMA,
        **{"safe": "../safe", "risky": "../risky", "k": 1.5, "level": "byte"},
    }
    again = ModelPair.from_pretrained(folder / "pair.json")
    assert again.fingerprints == pair.fingerprints
    # k and level are kept when it is saved again, unless they are named.
    again.save_pretrained(tmp_path / "second", k=0)
    second = PairFile.read(tmp_path / "second")
    assert (second.k, second.level) == (0.0, "byte")
    with pytest.raises(ValueError, match="level must be one of token, byte, got 'auto'"):
        pair.save_pretrained(tmp_path / "third", level="auto")
    assert not (tmp_path / "third").exists()


def test_options_take_models_k_and_level_of_a_pair_unless_they_are_named(pair_folders, tmp_path):
    safe, risky = map(str, pair_folders)
    folder = write(tmp_path / "named", **SCHEMA, safe=safe, risky=risky, k=1.5, level="byte")
    options = PairOptions(pair=folder)
    assert options.locations == {"safe": safe, "risky": risky}
    assert (options.rule.k, options.level) == (1.5, "byte")
    other = PairOptions(pair=folder, rule=RuleOptions(K=20.0), level="token")
    assert (other.rule.k, other.rule.K, other.level) == (None, 20.0, "token")
    assert PairOptions(pair=folder, rule=RuleOptions(rule="risky_only")).rule.k is None
    with pytest.raises(ValueError, match="--pair names both models: remove --safe-revision"):
        ModelOptions(pair=folder, safe_revision="main")
    with pytest.raises(ValueError, match="needs --safe and --risky, or --pair"):
        ModelOptions(safe=pair_folders[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"safe": "a/b", "risky": "a/c"}, "schema must be 'anchored-pair/1', got None"),
        ({**SCHEMA, "safe": "a/b"}, "field risky is missing"),
        ({**SCHEMA, "safe": "a/b", "risky": "a/c", "K": 2}, "unknown field K"),
        ({**SCHEMA, "safe": "a/b", "risky": "a/c", "k": -1}, r"k must be in \[0, 1048576\] nats"),
        ({**SCHEMA, "safe": "here", "risky": "a/c"}, "'here' is a folder where this runs, but"),
    ],
)
def test_a_file_that_holds_anything_else_is_refused(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match=rf"pair\.json: .*{message}"):
        PairFile.read(write(tmp_path / "named", **content))


def test_a_pair_of_the_hub_is_uploaded_at_the_commits_that_were_loaded(
    pair_folders, tmp_path, monkeypatch
):
    taken = {}

    def snapshot(name, **patterns):
        folder = tmp_path / name / COMMIT
        if not folder.exists():
            folder.parent.mkdir(parents=True)
            folder.symlink_to(pair_folders[name == "team/risky"])
        return str(folder)

    class Api:
        def create_repo(self, repo_id, exist_ok):
            pass

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            taken.update((file.name, file.read_text()) for file in Path(folder_path).iterdir())
            return f"https://hub/{repo_id}/commit/1"

    monkeypatch.setattr(model_folder, "snapshot_download", snapshot)
    monkeypatch.setattr(pair_file, "HfApi", Api)
    pair = ModelPair.from_pretrained("team/safe", "team/risky")
    assert pair.push_to_hub("team/pair", k=2.0) == "https://hub/team/pair/commit/1"
    named = json.loads(taken["pair.json"])
    revisions = {"safe_revision": COMMIT, "risky_revision": COMMIT}
    assert named == {**SCHEMA, "safe": "team/safe", "risky": "team/risky", **revisions, "k": 2.0}
    assert taken.keys() == {"README.md", "pair.json"}
    assert "anchored generate --pair team/pair" in taken["README.md"]
    downloaded = write(tmp_path / "downloaded", **named) / "pair.json"
    monkeypatch.setattr(pair_file, "hf_hub_download", lambda repo, name: str(downloaded))
    again = ModelPair.from_pretrained("team/pair")
    assert again.source == replace(pair.source, k=2.0)
    assert again.fingerprints == pair.fingerprints


def test_models_that_nobody_else_has_are_not_uploaded(pair, pair_folders):
    with pytest.raises(ValueError, match="models in memory have no names"):
        pair.push_to_hub("team/pair")
    with pytest.raises(ValueError, match="is a folder: upload that model first"):
        ModelPair.from_pretrained(*pair_folders).push_to_hub("team/pair")
