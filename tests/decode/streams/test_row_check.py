"""Models are checked when they are loaded: how rows of them are run agrees with a plain forward."""

import logging
import math

import pytest
import torch
from model_zoo import zoo_model
from tiny_models import FAMILIES, tiny_family, tiny_llama
from transformers import GPTNeoXForCausalLM

from anchored.decode.streams.capabilities import RowCheck, allowed_nats, row_attention, row_support
from anchored.decode.streams.kv_cache import RowAttention
from anchored.decode.streams.row_stream import ModelRunner
from anchored.decode.streams.stream import CACHE


def support_of(model, name: str) -> tuple[RowAttention | None, bool]:
    """Of a model whose last tokens are padding."""
    return row_support(ModelRunner(model, 300), name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_family_passes_its_check_in_every_dtype(family, dtype):
    model = tiny_family(family, 1).to(dtype)
    assert support_of(model, "safe")[0] == row_attention(model)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_a_mask_that_is_dropped_is_found_and_logged(family, monkeypatch, caplog):
    exact = RowAttention.tree_masks

    def everything(attention, is_ancestor, *rest):
        return exact(attention, torch.ones_like(is_ancestor), *rest)

    model = tiny_family(family, 1).float()
    monkeypatch.setattr(RowAttention, "tree_masks", everything)
    with pytest.raises(ValueError, match=r"in rows its log-probabilities are off by \d"):
        RowCheck(ModelRunner(model, 320)).compare_rows(row_attention(model))
    with caplog.at_level(logging.WARNING):
        assert support_of(model, "risky") == (None, False)
    (line,) = caplog.messages
    assert f"the risky model ({family}) decodes in whole batches: in rows its log-" in line


def test_a_rotation_by_the_longest_row_decodes_in_batches_with_one_log_line(caplog):
    """It is that of others for texts as short as those of the check."""
    model = tiny_llama(1, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    with caplog.at_level(logging.WARNING):
        assert support_of(model, "safe") == (None, False)
    assert caplog.messages == [
        "the safe model (llama) decodes in whole batches: its rotary embedding, dynamic, depends "
        "on the longest row"
    ]


@pytest.mark.parametrize(
    ("dtype", "logits", "nats"),
    [
        (torch.float32, [-6.0, 3.0], 1e-4),
        (torch.float32, [100.0, 3.0], 100 * 2.0**-16),
        (torch.float32, [-math.inf, 3.0, math.nan], 1e-4),
        (torch.bfloat16, [-8.0, -math.inf], 0.7071),
    ],
)
def test_what_is_allowed_grows_with_the_finite_logits_that_are_rounded(dtype, logits, nats):
    assert allowed_nats(dtype, torch.tensor(logits)) == pytest.approx(nats, rel=1e-3)


def test_a_model_that_keeps_its_cache_for_all_batches_alike_is_found():
    class KeepsCache(GPTNeoXForCausalLM):
        def forward(self, *args, **kwargs):
            if CACHE in kwargs:
                if kwargs[CACHE].get_seq_length() == 0:
                    self.kept = kwargs[CACHE]
                kwargs[CACHE] = self.kept
            return super().forward(*args, **kwargs)

    model = zoo_model("gpt_neox", 1).double()
    RowCheck(ModelRunner(model, 64)).compare_batches()
    model.__class__ = KeepsCache
    with pytest.raises(ValueError, match="in batches its log-probabilities are off by"):
        RowCheck(ModelRunner(model, 64)).compare_batches()
