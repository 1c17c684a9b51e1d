"""Tiny models of the families of transformers, in float32: what safe models may look like."""

import pytest
import torch
import transformers
from packaging.version import Version
from tiny_models import tiny_llama, word_tokenizer
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from anchored import ModelPair

NEWEST = Version("5.24")
"""Of transformers: it has all families; older versions that are supported lack some."""

VOCAB_SIZE = 64
WINDOW = 5
"""Tokens that layers with a window see, shorter than the texts of the tests."""


def _all(value: object, names: str) -> dict[str, object]:
    return dict.fromkeys(names.split(), value)


_SIZES = {
    "vocab_size": VOCAB_SIZE,
    **_all(32, "hidden_size moe_intermediate_size shared_expert_intermediate_size d_model"),
    **_all(64, "intermediate_size max_position_embeddings ffn_dim"),
    **_all(2, "num_hidden_layers num_key_value_heads num_experts_per_tok"),
    **_all(
        4,
        "num_attention_heads num_experts num_local_experts rotary_dim "
        "num_heads mamba_n_heads linear_num_value_heads",
    ),
    **_all(
        8,
        "head_dim state_size chunk_size mamba_d_state mamba_chunk_size "
        "linear_key_head_dim linear_value_head_dim",
    ),
    "initializer_range": 0.3,
    "bos_token_id": 0,
    **_all(None, "eos_token_id pad_token_id"),
    "logits_scaling": 2.0,
    "mamba_n_groups": 1,
    "mamba_d_head": 16,
    "use_mamba_kernels": False,
}
"""Settings for every config that knows the name."""

_WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
_EXPERTS = {"n_routed_experts": 4, **_all(1, "n_group topk_group first_k_dense_replace")}
_LATENT = {
    **_all(8, "kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim"),
    **_all(4, "qk_rope_head_dim head_dim num_key_value_heads"),
    **_EXPERTS,
}
_MAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4}


def _rotary(kind: str, factor: float = 4.0, **more) -> dict:
    return {
        "rope_parameters": {"rope_type": kind, "factor": factor, "rope_theta": 10_000.0, **more}
    }


FAMILIES = {
    **_all(
        {},
        "llama qwen2 qwen3 olmo olmo2 gpt2 gpt_neox gptj codegen gpt_bigcode openai-gpt "
        "bloom falcon phi phi3 gemma cohere stablelm starcoder2 mixtral qwen2_moe "
        "qwen3_moe granite granitemoe persimmon nemotron glm glm4 helium ernie4_5 "
        "biogpt arcee olmoe phimoe diffllama seed_oss hunyuan_v1_dense ernie4_5_moe "
        "apertus doge bert mamba falcon_mamba",
    ),
    "mistral": {"sliding_window": WINDOW},
    "olmo3": _WINDOWS,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "gpt_oss": _WINDOWS,
    "opt": {"word_embed_proj_dim": 32},
    "gemma2": {"sliding_window": WINDOW},
    "gemma3_text": _WINDOWS,
    "cohere2": _WINDOWS,
    "ctrl": {"dff": 64},
    "xglm": {"num_layers": 2, "attention_heads": 4},
    "mpt": {"max_seq_len": 64},
    "exaone4": _WINDOWS,
    "smollm3": {"no_rope_layers": [1, 0]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {**_LINEAR, "linear_num_key_heads": 2},
    "qwen3_5_text": {**_LINEAR, "linear_num_key_heads": 2},
    "bamba": {"attn_layer_indices": [1], "mamba_expand": 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "llama4_text": {
        "intermediate_size_mlp": 64,
        "moe_layers": [1],
        "no_rope_layers": [1, 0],
        "attention_chunk_size": 6,
        "floor_scale": 8,
        "attn_scale": 0.4,
        "num_experts_per_tok": 1,
    },
    "llama, linear": _rotary("linear"),
    "llama, llama3": _rotary("llama3", **_LLAMA_3),
    "llama, NTK": _rotary("dynamic"),
    "qwen2, yarn": _rotary("yarn", original_max_position_embeddings=8),
    "phi3, longrope": {
        **_rotary("longrope", short_factor=[1.0] * 4, long_factor=[4.0] * 4),
        "original_max_position_embeddings": 24,
    },
    "qwen2, sliding": dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "falcon, ALiBi": {"alibi": True},
    "zamba": {**_MAMBA, "n_mamba_heads": 2, "num_hidden_layers": 7},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_expand": 2,
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_head_dim": 16},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "jetmoe": {"kv_channels": 8},
    "glm4_moe": _EXPERTS,
    "bert, causal": {"is_decoder": True},
    "bart": {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
    "xlnet": {"d_head": 8, "d_inner": 64},
    "mamba2": {"head_dim": 16, "n_groups": 1},
    "rwkv": {"attention_hidden_size": 32},
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention"],
        "attention_window_size": WINDOW,
        "lru_width": 32,
    },
    "jamba": _MAMBA,
    "minimax": {**_LINEAR, "block_size": 8},
    "zamba2": {
        **_all(4, "n_mamba_heads adapter_rank"),
        **_all(1, "mamba_ngroups num_mem_blocks"),
        **_all(16, "mamba_headdim attention_head_dim"),
        "layers_block_type": ["mamba", "hybrid"],
    },
    "xlstm": {"num_blocks": 2, "mode": "inference"},
}
"""Further settings of each; a comma and what follows only tell two apart."""


_VISION = {
    **_all(16, "hidden_size intermediate_size"),
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
_IMAGES = {"image_token_index": 60, "boi_token_index": 61, "eoi_token_index": 62}
COMPOSITE = {
    "gemma3": ("gemma3_text", {"vision_config": _VISION, "mm_tokens_per_image": 4, **_IMAGES}),
    "llama4": ("llama4_text", {}),
    "qwen3_5": ("qwen3_5_text", {}),
    "fuyu": ("persimmon", {"patch_size": 4, "num_channels": 1}),
}
"""Models of text and more: the family of their text, and further settings."""


def _text_settings(model_type: str) -> dict:
    if model_type not in CONFIG_MAPPING and Version(transformers.__version__) < NEWEST:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    default = AutoConfig.for_model(model_type)
    known = {*default.to_dict(), *default.attribute_map}
    sizes = {name: value for name, value in _SIZES.items() if name in known}
    return {**sizes, **FAMILIES.get(model_type, {})}


def zoo_model(family: str, seed: int, **changes) -> PreTrainedModel:
    """A float32 model in evaluation mode."""
    model_type = family.split(",")[0]
    if family in COMPOSITE:
        text, settings = COMPOSITE[family]
        settings = {**settings, "text_config": {**_text_settings(text), "model_type": text}}
    else:
        settings = {**_text_settings(model_type), **FAMILIES[family], **changes}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    return AutoModelForCausalLM.from_config(config).float().eval()


def zoo_pair(safe: PreTrainedModel) -> ModelPair:
    """With a risky Llama and words that end no text, so that every text has its full length."""
    tokenizer = word_tokenizer(VOCAB_SIZE)
    tokenizer.eos_token = None
    risky = tiny_llama(2, vocab_size=VOCAB_SIZE, eos_token_id=None).to(safe.dtype)
    pair = ModelPair(safe, risky, tokenizer)
    assert pair.stop_token_ids == []
    return pair
