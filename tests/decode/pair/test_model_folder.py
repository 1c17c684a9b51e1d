"""Locations of models: folders, Hub ids, adapters with their base models; and fingerprints."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file

from anchored import LoadOptions, ModelPair
from anchored.decode.pair import folder as model_folder
from anchored.decode.pair.folder import ModelFolder, fingerprint, folder_fingerprint, model_location

WEIGHTS = "adapter_model.safetensors"
READ = [
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
    *("tokenizer_config.json", "chat_template.jinja", "LICENSE"),
]
UNREAD = ["README.md", "consolidated.safetensors", "onnx/config.json", "pytorch_model.bin"]


@pytest.fixture
def hub(pair_folders, tmp_path, monkeypatch) -> list[dict[str, list[str]]]:
    """The patterns of downloads, each of the risky model's folder by the name of its revision."""
    downloads = []

    def download(name: str, *, revision: str | None, **patterns: list[str]) -> str:
        downloads.append(patterns)
        snapshot = tmp_path / (revision or "main")
        if not snapshot.exists():
            snapshot.symlink_to(pair_folders[1])
        return str(snapshot)

    monkeypatch.setattr(model_folder, "snapshot_download", download)
    return downloads


def test_a_hub_id_is_downloaded_without_what_is_not_read(hub):
    assert [model_location(name) for name in ("gpt2", "owner/model")] == ["gpt2", "owner/model"]
    assert ModelFolder.find("owner/model").base.name == "main"
    assert [*filter_repo_objects([*READ, *UNREAD], **hub[0])] == READ


def test_a_revision_is_asked_of_the_hub_for_its_own_model(hub, pair_folders):
    options = LoadOptions(revision="step100")
    ModelPair.from_pretrained(pair_folders[0], "owner/model", risky_options=options)
    assert ModelFolder.find("owner/model", "step100").base.name == "step100"
    with pytest.raises(ValueError, match="a revision is that of a Hub id, got 'step100' for"):
        ModelPair.from_pretrained(pair_folders[0], "owner/model", safe_options=options)


def raising(monkeypatch, error: Exception) -> None:
    def download(name: str, **_) -> str:
        raise error

    monkeypatch.setattr(model_folder, "snapshot_download", download)


def test_without_the_hub_files_that_were_downloaded_are_enough(pair_folders, monkeypatch):
    raising(monkeypatch, IncompleteSnapshotError("the Hub is out of reach", str(pair_folders[1])))
    assert ModelFolder.find("owner/model") == ModelFolder(pair_folders[1])
    raising(monkeypatch, LocalEntryNotFoundError("no such repository,\nnor a snapshot of it"))
    reason = "there is no folder owner/model here, and no model owner/model at revision v2 on the "
    reason += "Hub or in its cache: no such repository,$"
    with pytest.raises(FileNotFoundError, match=reason):
        ModelFolder.find("owner/model", "v2")


def test_a_folder_comes_before_an_id_of_its_name_and_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    assert model_location("gpt2") == Path("gpt2")
    assert ModelFolder.find("~/gpt2").base == tmp_path / "gpt2" == model_location(Path("~/gpt2"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./none", "there is no folder ./none"),
        ("models/x", "there is no folder models/x, nor is it an id of the Hub, as models is a "),
        ("a/b/c", "there is no model folder with a config.json at a/b/c, nor is it the id of a"),
        ("models", "no model folder with a config.json at models: GGUF is not read here, convert"),
    ],
)
def test_a_path_is_refused_as_it_was_typed_and_the_hub_is_not_asked(
    name, said, tmp_path, monkeypatch
):
    raising(monkeypatch, AssertionError("the Hub is asked"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(said)}"):
        ModelFolder.find(name)


@pytest.fixture
def adapter(pair_folders, tmp_path) -> Path:
    """An adapter of the risky model, with one tensor: it is never loaded."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = {"base_model_name_or_path": str(pair_folders[1])}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"lora_A.weight": torch.ones(2, 32)}, folder / WEIGHTS)
    return folder


def test_an_adapter_is_found_with_the_base_model_that_its_config_names(adapter, pair_folders):
    folder = ModelFolder.find(adapter)
    assert folder == ModelFolder(pair_folders[1], adapter)
    assert folder.tokenizer == pair_folders[1]
    shutil.copy(pair_folders[1] / "tokenizer.json", adapter)
    assert folder.tokenizer == adapter


def test_the_fingerprint_of_an_adapter_covers_it_and_its_base(adapter, pair_folders, tmp_path):
    base = Path(shutil.copytree(pair_folders[1], tmp_path / "base"))
    prints = {fingerprint(ModelFolder(base)), fingerprint(ModelFolder(base, adapter))}
    assert len(prints) == 2
    save_file({"lora_A.weight": torch.zeros(2, 32)}, adapter / WEIGHTS)
    prints.add(fingerprint(ModelFolder(base, adapter)))
    (base / "config.json").write_text("{}")
    prints.add(fingerprint(ModelFolder(base, adapter)))
    assert len(prints) == 4


def test_a_folder_with_a_whole_model_and_an_adapter_is_refused(adapter):
    shutil.copy(adapter / WEIGHTS, adapter / "model.safetensors")
    with pytest.raises(ValueError, match="holds a whole model and an adapter: keep them in two"):
        ModelFolder.find(adapter)


@pytest.fixture
def folder(pair_folders, tmp_path) -> Path:
    return Path(shutil.copytree(pair_folders[0], tmp_path / "models" / "safe"))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANCHORED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fingerprints"


def test_a_fingerprint_is_remembered_in_a_cache(folder, cache):
    files = sorted(folder.parent.rglob("*"))
    before = folder_fingerprint(folder)
    assert sorted(folder.parent.rglob("*")) == files
    (record,) = cache.iterdir()
    assert json.loads(record.read_text())["folder"] == str(folder)
    record.write_text(record.read_text().replace(before, "remembered"))
    assert folder_fingerprint(folder) == "remembered"
    record.write_text("{}")  # a damaged one is made anew
    assert folder_fingerprint(folder) == json.loads(record.read_text())["sha256"] == before


def test_a_changed_file_is_read_again_but_no_second_copy_of_the_weights(folder, cache):
    before = folder_fingerprint(folder)
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert folder_fingerprint(folder) == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert folder_fingerprint(folder) != before


def test_a_cache_that_cannot_be_written_is_one_warning(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANCHORED_CACHE", str(tmp_path / "file"))
    assert len(folder_fingerprint(folder)) == 64
    (line,) = caplog.messages
    assert line.startswith("fingerprint not cached, it is computed anew each time:")
