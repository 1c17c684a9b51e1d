"""One of a pair may be quantized: each model is read as its folder says."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import torch
from compressed_tensors.compressors import pack_to_int32
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import anchored
from anchored.decode.serving.journal_reader import journal_ledgers

from .conftest import opened, state_of

GROUP = 32
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
"""As compressed-tensors has it, which llm-compressor writes."""


def quantized(folder: Path, to: Path) -> Path:
    """A copy whose projections are rounded; the last layer's down_proj and the head are left."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    kept = f"model.layers.{max(int(n.split('.')[2]) for n in weights if '.layers.' in n)}.mlp"
    rounded = {}
    for name, weight in weights.items():
        is_left = not name.endswith("_proj.weight") or name.startswith(kept)
        rounded |= {name: weight} if is_left else by_group(name, weight)
    save_file(rounded, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "pack-quantized",
        "ignore": ["lm_head", *(f"{kept}.{part}_proj" for part in ("gate", "up", "down"))],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    }
    (to / "config.json").write_text(json.dumps(config))
    return to


def by_group(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    groups = weight.unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(-1) / 7.0
    rounded = (groups / scale[..., None]).round().flatten(1).to(torch.int8)
    return {
        f"{name}_packed": pack_to_int32(rounded, 4),
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor(weight.shape),
    }


def divergence(folder: Path, prompt: list[int], row: torch.Tensor) -> float:
    """KL in nats of what transformers reads in a folder from a row of logits."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        log_probs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    return (log_probs.exp() * (log_probs - row.float().log_softmax(-1))).sum().item()


@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(),
    reason="vLLM has its kernels for rounded weights on CPUs with AVX-512",
)
@pytest.mark.parametrize("name", ["risky", "safe"])
def test_a_quantized_model_with_a_plain_one(folders, tmp_path, name):
    paths = dict(zip(("safe", "risky"), folders, strict=True))
    paths[name] = quantized(paths[name], tmp_path / name)
    prompt, journal = [0, 5, 9, 40, 77, 100], tmp_path / "journal"
    changes = {"ledgers": journal, "dtype": "bfloat16", "allow_quantized_safe": name == "safe"}
    with opened((paths["safe"], paths["risky"]), **changes) as decoder:
        prompts, k = [prompt[: 3 + n % 3] for n in range(9)], [0.5 + n % 3 for n in range(9)]
        decoder.generate(prompts, k=k, seed=list(range(9)), max_new_tokens=10)
        decoder.generate([prompt], max_new_tokens=1, seed=1)
        rows = dict(zip(("safe", "risky"), state_of(decoder).model.rows, strict=True))
    divergences = {each: divergence(paths[each], prompt, rows[each][0]) for each in paths}
    assert max(divergences.values()) < 0.01, divergences
    ledgers = [ledger for _, ledger in journal_ledgers(journal)]
    assert all(ledger.certified and ledger.is_within_bound for ledger in ledgers)
    assert {*ledgers[0].header.quantization} == {name}
    before = dict(zip(("safe", "risky"), folders, strict=True))[name]
    assert divergence(before, prompt, rows[name][0]) > 3.0 * divergences[name]
    pair = anchored.ModelPair.from_pretrained(
        paths["safe"], paths["risky"], dtype="bfloat16", allow_quantized_safe=name == "safe"
    )
    failures = [anchored.verify(ledger, pair).failures for ledger in ledgers]
    assert failures == [[]] * 10
