"""How many kernels a whole step on the device launches: both forwards, the walk, what is kept."""

from collections import Counter

import pytest
import torch
from launches import LLAMA_8B, TINYCOMMA, counted_launches
from tiny_models import tiny_llama

from anchored.decode.engine.device_step import DeviceState, DeviceStep
from anchored.decode.models.attention import row_attention
from anchored.decode.models.backbone import LeanBackbone
from anchored.decode.models.linear import OutputLayer
from anchored.decode.models.row_stream import RowStream

META = torch.device("meta")
VOCAB_SIZE, NUM_ROWS = 320, 4


def meta_stream(**sizes) -> RowStream:
    """Of a bfloat16 model without values, as a reserved cache that has stored something."""
    with META:
        model = tiny_llama(1, **sizes).bfloat16()
        stream = RowStream(
            model,
            row_attention(model),
            num_rows=NUM_ROWS,
            max_length=64,
            output=OutputLayer(model, VOCAB_SIZE),
        )
        stream.backbone = LeanBackbone(model)
    stream.reserve()
    stream._cache.place([*range(NUM_ROWS)], 1, META)
    tokens = torch.zeros(NUM_ROWS, 1, dtype=torch.int64, device=META)
    stream.backbone(tokens, tokens, None, stream._cache)
    return stream


@pytest.mark.parametrize(("num_drafts", "walks", "total"), [(0, 1, 628), (2, 3, 1192)])
def test_a_whole_step_of_8b_and_1_8b(num_drafts, walks, total, monkeypatch):
    counted = counted_launches(monkeypatch)
    monkeypatch.setattr(RowStream, "feed_at", RowStream.feed_at.__wrapped__)
    streams = {
        "safe": meta_stream(layers=24, **TINYCOMMA),
        "risky": meta_stream(layers=32, **LLAMA_8B),
    }
    with META:
        logits = {name: torch.zeros(NUM_ROWS, VOCAB_SIZE).bfloat16() for name in streams}
        seen = torch.zeros(NUM_ROWS, VOCAB_SIZE, dtype=torch.bool)
        step = DeviceStep(
            DeviceState.empty(logits, seen, num_drafts=num_drafts),
            streams,
            stop_token_ids=[1, 2, 3],
            divergence="kl",
            num_drafts=num_drafts,
        )
    counted.names.clear()
    with counted, torch.no_grad():  # inference mode would not take operations apart
        DeviceStep.__call__.__wrapped__(step)
    # Ten a layer and one around all, of which four are products, as is the output layer.
    num_layers, num_forwards = 32 + 24 * (num_drafts + 1), num_drafts + 2
    found = Counter(counted.names)
    assert found["mm"] == 4 * num_layers + num_forwards
    assert found["triton"] == 6 * num_layers + num_forwards + walks
    assert len(counted.names) == total
