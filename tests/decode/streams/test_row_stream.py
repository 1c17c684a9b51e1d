"""Rows that join, grow, roll back and leave give the logits of the plain forward."""

import pytest
from row_texts import RowTexts
from tiny_models import FAMILIES, tiny_family

from anchored.decode.streams.capabilities import row_attention


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_history_gives_the_plain_logits(family, attention):
    RowTexts(tiny_family(family, 1, attn_implementation=attention), seed=7).check_history()


def test_prompts_too_long_for_one_forward_are_read_in_groups(monkeypatch):
    monkeypatch.setattr("anchored.decode.streams.row_stream.PREFILL_TOKENS", 8)
    texts = RowTexts(tiny_family("llama", 1), seed=3)
    texts.join([2, 0, 1])
    texts.feed()


def test_llama4_is_covered_up_to_the_length_at_which_it_scales_queries():
    attention = row_attention(tiny_family("llama4_text", 1))
    assert attention.covers(39) and not attention.covers(40)
