"""Folders whose weights or config are not whole are refused in one line, before anything runs."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model
from model_zoo import zoo_model
from safetensors.torch import load_file, save_file
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, LoadOptions, ModelPair
from anchored.decode.pair.folder import ModelFolder
from anchored.decode.pair.loading import load_model

UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
MORE = "model.layers.2.mlp.up_proj.weight"
WEIGHTS, GENERATION = "model.safetensors", "generation_config.json"
Damage = Callable[[Path], object]


@pytest.fixture
def folder(pair_folders, tmp_path) -> Path:
    """A copy of the safe model's."""
    return Path(shutil.copytree(pair_folders[0], tmp_path / "model"))


def tensors(changes: dict[str, torch.Tensor | None]) -> Damage:
    """None for one that is left out."""

    def damage(folder: Path) -> None:
        changed = load_file(folder / WEIGHTS) | changes
        kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
        save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def values(name: str, **changes: object) -> Damage:
    """In a JSON file."""
    return lambda folder: (folder / name).write_text(
        json.dumps(json.loads((folder / name).read_text()) | changes)
    )


def config(**changes: object) -> Damage:
    return values("config.json", **changes)


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


UNREADABLE = "the config in .*/model cannot be read: .*"
UNLOADABLE = "the model in .*/model cannot be loaded: .*"
DAMAGES = [
    (tensors({UP: None}), rf"the weights in .*/model lack {UP} \(1 in all\)"),
    (tensors({NORM: torch.ones(3)}), rf"do not fit the config: {NORM} is \(3,\), not \(32,\)"),
    (tensors({MORE: torch.ones(3)}), rf"hold {MORE} \(1 in all\), which the config has no use"),
    (tensors({NORM: torch.ones(32).char()}), f"hold {NORM} as I8, but the model is not quantized"),
    (lambda folder: os.truncate(folder / WEIGHTS, 5_000), f"{UNLOADABLE}header"),
    (config(rope_parameters={"rope_type": "su"}), f"{UNLOADABLE}KeyError: 'su'"),
    (text("tokenizer.json", '{"model": {"type": "None"}}'), "the tokenizer in .* cannot be read: "),
    (text("config.json", '{"model_type": '), f"{UNREADABLE}not a valid JSON file"),
    (config(quantization_config={}), "the quantization_config has no quant_method"),
    (config(quantization_config={"load_in_8bit": True}), "quantized .bitsandbytes"),
    (config(torch_dtype="float8_e4m3fn", dtype=None), "the dtype in .* must be one of float32"),
    (values(GENERATION, eos_token_id=-1), "eos_token_id must be .*, got -1"),
    (text(GENERATION, "{ not json"), f"^.*/model/{GENERATION} is not JSON"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(
    folder, pair_folders, damage, reason, caplog, monkeypatch
):
    damage(folder)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with pytest.raises(ValueError, match=reason) as refusal:
        ModelPair.from_pretrained(folder, pair_folders[1])
    assert "\n" not in str(refusal.value) + "".join(caplog.messages)


def test_more_embeddings_than_tokens_are_never_predicted_and_fewer_are_refused(tokenizer):
    assert ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=384), tokenizer).vocab_size == 320
    with pytest.raises(ValueError, match=r"the risky model predicts 256 tokens, .* has 320"):
        ModelPair(tiny_llama(1), tiny_llama(2, vocab_size=256), tokenizer)


@pytest.mark.parametrize(
    ("family", "name", "shape"),
    [
        ("gpt2", "h.0.attn.bias", (1, 1, 64, 64)),
        ("gpt_neo", "transformer.h.1.attn.attention.masked_bias", ()),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", (4,)),
        ("xglm", "model.embed_positions.weights", (66, 32)),
    ],
)
def test_masks_and_angles_of_old_checkpoints_are_no_weights(family, name, shape, tmp_path):
    model, token_ids = zoo_model(family, 1), torch.arange(9)[None]
    model.save_pretrained(tmp_path)
    tensors({name: torch.ones(shape)})(tmp_path)
    loaded = load_model(ModelFolder(tmp_path), "auto", "cpu")
    with torch.inference_mode():
        assert torch.equal(loaded.eval()(token_ids).logits, model(token_ids).logits)


SPREAD = dict.fromkeys(
    ["model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"], "cpu"
)


def test_a_device_map_in_place_of_the_risky_models_device(pair_folders):
    options = LoadOptions(device_map=SPREAD)
    pair = ModelPair.from_pretrained(*pair_folders, device={"safe": "cpu"}, risky_options=options)
    plain = ModelPair.from_pretrained(*pair_folders, device="cpu")
    assert torch.equal(pair.risky.lm_head.weight, plain.risky.lm_head.weight)
    nowhere = LoadOptions(device_map={"": "meta"})  # the other device of any machine
    model = load_model(ModelFolder(pair_folders[0]), "auto", None, options=nowhere)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


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


def test_each_model_takes_the_attention_that_is_asked_for(pair_folders):
    eager = LoadOptions(attn_implementation="eager")
    pair = ModelPair.from_pretrained(*pair_folders, device="cpu", safe_options=eager)
    kinds = [model.config._attn_implementation for model in pair.models.values()]
    assert kinds == ["eager", "sdpa"]
