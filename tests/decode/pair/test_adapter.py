"""PEFT adapters: a merged model is the adapted one, or the adapter is refused in one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_llama
from transformers import AutoModelForCausalLM, PreTrainedModel

from anchored.decode.pair.folder import ModelFolder
from anchored.decode.pair.loading import load_model

peft = pytest.importorskip("peft")
LoraModel = peft.tuners.lora.LoraModel

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # peft asks it when it adapts
)
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"
TOKENS = torch.tensor([[7, 14, 300, *range(3, 60, 4)]])

QUERIES = {"target_modules": ["q_proj"]}
SETTINGS = {
    "queries": QUERIES,
    "both ends": {"target_modules": ["embed_tokens", "lm_head"]},
    "replicated layers": {**QUERIES, "layer_replication": [[0, 2], [1, 2]]},
    "stored embeddings": {**QUERIES, "modules_to_save": ["embed_tokens"]},
}


def tiny_base(folder: Path, **changes) -> PreTrainedModel:
    """A Llama of two layers, saved."""
    model = tiny_llama(2, **changes).float()
    model.save_pretrained(folder)
    model.config._name_or_path = str(folder)
    return model


def saved(base: PreTrainedModel, config: "peft.PeftConfig", folder: Path) -> Path:
    """A folder with an adapter of random weights."""
    adapted = peft.get_peft_model(base, config)
    torch.manual_seed(5)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data.normal_(0.0, 0.3)
    adapted.save_pretrained(folder)
    return folder


def lora(**settings) -> "peft.LoraConfig":
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, **settings)


@pytest.fixture
def queries(tmp_path) -> ModelFolder:
    """A LoRA over all queries, and its base model."""
    base = tiny_base(tmp_path / "base")
    return ModelFolder(tmp_path / "base", saved(base, lora(**QUERIES), tmp_path / "adapter"))


@torch.inference_mode()
def log_probs(model) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS, use_cache=False).logits.double().log_softmax(-1)


@pytest.mark.filterwarnings(  # while the test makes an adapter
    "ignore:Model (with|has) `tie_word_embeddings=True`:UserWarning",
    "ignore:Setting `save_embedding_layers` to `True`:UserWarning",
)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_merged_model_predicts_what_peft_does_with_the_adapter_next_to_its_base(
    settings, tmp_path
):
    """Tied weights stay tied where the adapter leaves them alone."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    saved(tiny_base(base, tie_word_embeddings=True), lora(**settings), folder)
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = log_probs(plain)
    adapted = log_probs(peft.PeftModel.from_pretrained(plain, folder))
    merged = load_model(ModelFolder(base, folder), "auto", "cpu")
    # Rounding of float32 through merged weights, of which 2.4e-5 were seen.
    torch.testing.assert_close(log_probs(merged), adapted, atol=1e-4, rtol=0)
    assert (adapted - before).abs().max() > 0.1
    if settings == QUERIES:
        assert merged.lm_head.weight is merged.model.embed_tokens.weight


def test_what_peft_merges_wrong_is_refused_with_the_distance(queries, monkeypatch):
    monkeypatch.setattr(LoraModel, "merge_and_unload", LoraModel.unload)
    with pytest.raises(ValueError, match=r"off by \d.* adapted one \(0.0001"):
        load_model(queries, "auto", "cpu")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{PREFIX}.lora_A.weight": None}, rf"it lacks {PREFIX}.lora_A.weight \(1 in all\)$"),
        (
            {f"{PREFIX.replace('0', '9')}.lora_A.weight": torch.ones(2, 32)},
            r"it holds .*layers.9.* \(1 in all\), which fits nothing in its base$",
        ),
    ],
)
def test_an_adapter_whose_tensors_are_not_those_of_its_config_is_refused(queries, changes, reason):
    tensors = load_file(queries.adapter / WEIGHTS) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, queries.adapter / WEIGHTS)
    with pytest.raises(ValueError, match=rf"adapter cannot be merged: .*{reason}") as refusal:
        load_model(queries, "auto", "cpu")
    assert "\n" not in str(refusal.value)
