"""Folders whose weights or config are not whole are refused in one line, before anything runs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model
from safetensors.torch import load_file, save_file
from tiny_models import tiny_llama
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from anchored import Anchored, Decoder, LoadOptions, ModelPair
from anchored.decode.models.folder import ModelFolder
from anchored.decode.models.loading import load_model


@pytest.fixture
def folder(pair_folders, tmp_path) -> Path:
    """A copy of the safe model's."""
    return Path(shutil.copytree(pair_folders[0], tmp_path / "model"))


def check_refused(folder: Path, risky: Path, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        ModelPair.from_pretrained(folder, risky)
    assert "\n" not in str(refusal.value) and str(folder) in str(refusal.value)


UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
MORE = "model.layers.2.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda tensors: tensors.pop(UP), rf"lack {UP} \(1 in all\)"),
        (lambda tensors: tensors.pop("lm_head.weight"), r"lack lm_head.weight \(1 in all\)"),
        (
            lambda tensors: tensors.update({NORM: torch.ones(3)}),
            rf"do not fit the config: {NORM} is \(3,\), not \(32,\)",
        ),
        (
            lambda tensors: tensors.update({MORE: torch.ones(3)}),
            rf"hold {MORE} \(1 in all\), which the config has no use",
        ),
        (
            lambda tensors: tensors.update({NORM: torch.ones(32).char()}),
            f"hold {NORM} as I8, but the model is not qu",
        ),
    ],
    ids=["missing", "missing head", "another shape", "without use", "integers"],
)
def test_tensors_that_do_not_fit_are_refused_by_name(folder, pair_folders, edit, reason):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check_refused(folder, pair_folders[1], reason)


def test_a_config_of_fewer_layers_than_its_checkpoint_is_refused(folder, pair_folders):
    edit_json(folder / "config.json", num_hidden_layers=1)
    check_refused(folder, pair_folders[1], r"hold model.layers.1.* \(9 in all\)")


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("config.json", {"quantization_config": {}}, "quantization_config has no quant_method"),
        ("config.json", {"quantization_config": "gptq"}, "the config in .* cannot be read"),
        ("config.json", {"quantization_config": {"load_in_8bit": True}}, "quantized .bitsandbytes"),
        (
            "config.json",
            {"dtype": "float8"},
            "cannot be read: .* no attribute 'float8'",
        ),
        ("config.json", {"torch_dtype": "float8_e4m3fn", "dtype": None}, "must be one of float32"),
        ("config.json", {"pad_token_id": 5000}, r"pad_token_id must be in \[-320, 320\), got 5000"),
        ("config.json", {"eos_token_id": "</s>"}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id must be .*, got '</s>'"),
        ("generation_config.json", {"eos_token_id": 0.5}, "eos_token_id must be .*, got 0.5"),
        ("generation_config.json", {"eos_token_id": [1, True]}, "eos_token_id must be .*True"),
    ],
    ids=str,
)
def test_values_that_no_config_has_are_refused_in_one_line(
    folder, pair_folders, name, values, reason
):
    edit_json(folder / name, **values)
    with pytest.raises(ValueError, match=reason) as refusal:
        ModelPair.from_pretrained(folder, pair_folders[1])
    assert "\n" not in str(refusal.value)


JSON_FILES = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors.index.json"])
@pytest.mark.parametrize("text", ["{ not json", "[]"])
def test_a_damaged_json_file_is_refused_by_name(folder, pair_folders, name, text):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=rf"^{folder / name} ") as refusal:
        ModelPair.from_pretrained(folder, pair_folders[1])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("dtype", ["float8", "int8", torch.int32, "banana", 16, "fp16"])
def test_a_dtype_that_no_model_decodes_in_is_refused_before_loading(pair_folders, dtype):
    with pytest.raises(ValueError, match=r"^dtype must be auto or one of float32, float64, "):
        ModelPair.from_pretrained(*pair_folders, dtype=dtype)


def test_a_dtype_of_torch_is_taken(pair_folders):
    assert ModelPair.from_pretrained(*pair_folders, dtype=torch.float64).dtype == torch.float64


def test_tied_tensors_that_are_stored_once_are_not_missing(tmp_path, caplog):
    tied = tiny_llama(1, tie_word_embeddings=True).float()
    tied.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = load_model(ModelFolder(tmp_path), "auto", "cpu")
    assert torch.equal(loaded.lm_head.weight, tied.model.embed_tokens.weight)
    assert not caplog.messages


@pytest.mark.parametrize("size", [0, 5_000])
def test_weights_that_end_early_are_refused(folder, pair_folders, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    check_refused(folder, pair_folders[1], "the weights in .* cannot be read: .*header")


def test_a_folder_without_weights_is_refused(folder, pair_folders):
    (folder / "model.safetensors").unlink()
    check_refused(folder, pair_folders[1], "the weights in .* cannot be read: .*no file named")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"model_type": ', "not a valid JSON file"),
        ("{}", "Should have a `model_type` key"),
        ('{"model_type": "nothing"}', "model type `nothing`"),
        (json.dumps({"model_type": "llama", "hidden_size": "x"}), "expected int, got str"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(folder, pair_folders, config, reason):
    (folder / "config.json").write_text(config)
    check_refused(folder, pair_folders[1], f"the config in .* cannot be read: .*{reason}")


SPREAD = dict.fromkeys(
    ["model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"], "cpu"
)


def test_a_device_map_stands_in_place_of_the_risky_models_device(pair_folders):
    options = LoadOptions(device_map=SPREAD)
    pair = ModelPair.from_pretrained(*pair_folders, device={"safe": "cpu"}, risky_options=options)
    plain = ModelPair.from_pretrained(*pair_folders, device="cpu")
    assert torch.equal(pair.risky.lm_head.weight, plain.risky.lm_head.weight)
    decoders = [Decoder(each, Anchored(k=1.0)) for each in (pair, plain)]
    texts = [decoder.generate("salt", max_new_tokens=5)[0].text for decoder in decoders]
    assert texts[0] == texts[1]


def test_a_model_that_accelerate_spread_decodes_the_same_tokens_in_batches(tokenizer):
    """As over two devices: hooks on every module move what it reads."""
    spread = dispatch_model(tiny_llama(2, layers=3), SPREAD, force_hooks=True)
    pair = ModelPair(tiny_llama(1), spread, tokenizer)
    plain = ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)
    assert pair.row_attention["risky"] is None and not pair.decodes_alone["risky"]
    prompts = ["the keeper", "salt and rain", "Nine"]
    decoders = [Decoder(each, Anchored(k=1.0)) for each in (pair, plain)]
    results = [decoder.generate(prompts, max_new_tokens=8) for decoder in decoders]
    assert [r.token_ids for r in results[0]] == [r.token_ids for r in results[1]]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"safe_options": {"device_map": "auto"}}, "a device_map is for the risky model"),
        (
            {"risky_options": {"device_map": "auto"}, "device": {"safe": "cpu", "risky": "cpu"}},
            "the risky model has a device_map, so it has no device, got 'cpu'",
        ),
        (
            {"risky_options": {"device_map": "auto"}, "tp_size": 2},
            "tp_size splits the model, got device_map='auto'",
        ),
        ({"device": "cpu", "tp_size": 2}, "tp_size gives each process its own device"),
        ({"tp_size": 2}, r"tp_size 2 needs torchrun --nproc-per-node 2, .* 1"),
    ],
)
def test_devices_that_exclude_each_other_are_refused(pair_folders, settings, reason):
    options = {n: LoadOptions(**v) if n.endswith("options") else v for n, v in settings.items()}
    with pytest.raises(ValueError, match=reason):
        ModelPair.from_pretrained(*pair_folders, **options)


def test_each_model_takes_the_attention_that_is_asked_for(pair_folders):
    eager = LoadOptions(attn_implementation="eager")
    pair = ModelPair.from_pretrained(*pair_folders, device="cpu", safe_options=eager)
    kinds = [model.config._attn_implementation for model in pair.models.values()]
    assert kinds == ["eager", "sdpa"]


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_weights_are_read_straight_onto_one_device(folder, device, monkeypatch):
    given = {}

    def from_pretrained(path, **settings):
        given.update(settings)
        return tiny_llama(1), {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": []}

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(LlamaForCausalLM, "to", None)  # nothing passes through host memory
    load_model(ModelFolder(folder), "bfloat16", device)
    assert given["device_map"] == {"": torch.device(device)} and given["dtype"] == "bfloat16"


def test_a_device_map_decides_where_the_weights_are(folder):
    nowhere = LoadOptions(device_map={"": "meta"})  # the one device beside the CPU on any machine
    model = load_model(ModelFolder(folder), "auto", None, options=nowhere)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
