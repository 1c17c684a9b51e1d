"""A quantized risky model is allowed and recorded; a quantized safe model needs an option."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_llama
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.pair.loading import quantization_config
from anchored.decode.verify.rounding import logit_tolerance
from anchored.decode.warpers import largest_logit


@register_quantization_config("rounded")
class RoundedConfig(QuantizationConfigMixin):
    """Weights of the output layer rounded to eighths: as real as those of transformers."""

    def __init__(self, **_) -> None:
        self.quant_method = "rounded"


@register_quantizer("rounded")
class RoundedQuantizer(HfQuantizer):
    requires_calibration = is_trainable = False

    def is_serializable(self, **_) -> bool:
        return True

    def _process_model_before_weight_loading(self, model, **_) -> None:
        pass

    def _process_model_after_weight_loading(self, model, **_) -> None:
        with torch.no_grad():
            model.lm_head.weight.copy_((model.lm_head.weight * 8).round() / 8)


def test_a_quantized_risky_model_decodes_certified_and_is_recorded(pair_folders):
    pair = ModelPair.from_pretrained(*pair_folders, risky_quantization=RoundedConfig())
    assert pair.quantization == {"risky": "rounded"}
    rounded = pair.risky.lm_head.weight * 8
    assert torch.equal(rounded, rounded.round())
    (result,) = Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_tokens=20)
    assert result.ledger.certified and result.ledger.is_within_bound
    assert result.ledger.header.quantization == {"risky": "rounded"}
    assert verify(result.ledger, pair).is_ok


def test_a_quantization_is_read_from_a_file_or_refused_in_one_line(tmp_path):
    for text in ("{}", '{"quant_method": "none of these"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"the quantization in .*config\.json cannot be read"):
            quantization_config(tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"quant_method": "rounded"}')
    assert isinstance(quantization_config(tmp_path / "config.json"), RoundedConfig)


def test_a_quantized_safe_folder_is_refused_before_it_is_loaded(pair_folders, tmp_path):
    folder = Path(shutil.copytree(pair_folders[0], tmp_path / "safe"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "rounded"}
    (folder / "config.json").write_text(json.dumps(config))
    reason = r"the safe model is quantized \(rounded\), .* pass allow_quantized_safe=True to accept"
    with pytest.raises(ValueError, match=reason):
        ModelPair.from_pretrained(folder, pair_folders[1])
    pair = ModelPair.from_pretrained(folder, pair_folders[1], allow_quantized_safe=True)
    assert pair.quantization == {"safe": "rounded"}
    with pytest.raises(ValueError, match=reason):
        ModelPair(pair.safe, pair.risky, pair.tokenizer)


def test_a_quantized_model_s_figures_may_be_twice_as_far_off(tokenizer):
    plain = {"temperature": 1.0, "repetition_penalty": 1.0, "max_new_tokens": 3}
    for is_quantized in (False, True):
        safe = tiny_llama(1)
        safe.config.quantization_config = RoundedConfig() if is_quantized else None
        pair = ModelPair(safe, tiny_llama(2), tokenizer, allow_quantized_safe=True)
        ledger = Decoder(pair, Anchored(k=1.0)).generate("salt", **plain)[0].ledger
        logits = safe(torch.tensor([ledger.header.prompt_token_ids])).logits[0, -1].double()
        off = 1.5 * logit_tolerance(largest_logit(logits).item(), safe.dtype)
        moved = replace(ledger.steps[0], safe_log_prob=ledger.steps[0].safe_log_prob - off)
        report = verify(replace(ledger, steps=[moved, *ledger.steps[1:]]), pair)
        assert report.is_ok == is_quantized, report
