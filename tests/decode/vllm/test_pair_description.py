"""A pair as an engine of vLLM knows it before it starts, and as it travels to its processes."""

import json
import shutil
from dataclasses import asdict
from importlib.util import find_spec

import pytest
from command_line import run

import anchored
from anchored.decode.vllm.pair_description import KEY, DescribedPair, EngineSettings, PairFacts


def facts_of(safe, risky, *, allow_quantized_safe=False):
    return PairFacts.of(DescribedPair.of(safe, risky, allow_quantized_safe=allow_quantized_safe))


def test_facts_of_folders_are_those_of_the_loaded_pair_and_arrive_as_they_were(pair_folders):
    facts = facts_of(*pair_folders)
    pair = anchored.ModelPair.from_pretrained(*pair_folders)
    level = anchored.Decoder(pair, anchored.Anchored(k=1.0), level="token").level
    for name in ("fingerprints", "stop_token_ids", "vocab_size", "context_length"):
        assert getattr(facts, name) == getattr(pair, name)
    assert facts.special_token_ids == level.special_token_ids
    assert facts.level_settings == level.settings()
    settings = EngineSettings(facts=facts, journal="j", max_bytes=5, is_synced=True)
    sent = json.loads(json.dumps({KEY: asdict(settings)}))
    assert EngineSettings.of(sent) == settings
    with pytest.raises(ValueError, match="vLLM draws for a pair by"):
        EngineSettings.of({})


def test_a_quantized_safe_model_is_refused_unless_it_is_allowed(pair_folders, tmp_path):
    safe = shutil.copytree(pair_folders[0], tmp_path / "safe")
    config = json.loads((safe / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (safe / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"safe model is quantized \(fp8\)"):
        facts_of(safe, pair_folders[1])
    facts = facts_of(safe, pair_folders[1], allow_quantized_safe=True)
    assert facts.quantization == {"safe": "fp8"}
    with pytest.raises(ValueError, match=r"both models are quantized \(fp8, fp8\)"):
        facts_of(safe, safe, allow_quantized_safe=True)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_one_line_says_what_to_install(pair_folders, capsys):
    words = ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1]), "--port", "0"]
    _, err = run(capsys, "serve", "--engine", "vllm", *words, status=1)
    assert "pip install 'anchored[vllm]'" in err
