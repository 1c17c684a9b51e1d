"""Drafts that are rejected leave nothing: their memories, ends and NaN reach no token."""

import itertools
import math

import pytest
import torch
from tiny_models import TEXT, tiny_family, tiny_llama

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.row_stream import ModelRunner, RowStream

OPTIONS = {"max_new_tokens": 12, "temperature": 1.0}


@pytest.mark.parametrize("family", ["llama", "qwen2, sliding", "llama4_text"])
def test_a_draft_changes_no_distribution_at_or_before_it_bitwise(family):
    model = tiny_family(family, 1)
    runner = ModelRunner(model, 320)
    stream = RowStream(runner, row_attention(model), num_rows=2, max_length=30)
    stream.read([[5, 9, 11], [4, 4, 8, 2, 6]], [0, 1])
    drafts = [[7, 31, 150, 8], [99, 3, 17, 60]]
    logits = stream.feed([0, 1], drafts, 4)
    for place in range(4):
        for row, length in ((0, 3), (1, 5)):
            stream.cache.roll_back(row, length)
        changed = [[*draft[:place], 200, *draft[place + 1 :]] for draft in drafts]
        again = stream.feed([0, 1], changed, 4)
        assert torch.equal(again[:, :place], logits[:, :place])
        assert not torch.equal(again[:, place], logits[:, place])


@pytest.fixture
def models() -> dict[str, torch.nn.Module]:
    return {"safe": tiny_llama(1), "risky": tiny_llama(2, layers=3)}


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_nan_after_a_rejection_is_ignored(tokenizer, models, name, monkeypatch):
    """Tokens that are drafted and never drawn break one model: their traces are wiped out."""
    texts = ["salt", "a", "rain", TEXT[1]]  # what short rows left lies among the longest one's
    decoder = Decoder(ModelPair(*models.values(), tokenizer), Anchored(k=1.0), speculate=3)
    feed, read = RowStream.feed, set()

    def noted(stream, rows, tokens, num_last=1):
        read.update(itertools.chain(*tokens))
        return feed(stream, rows, tokens, num_last)

    monkeypatch.setattr(RowStream, "feed", noted)
    plain = decoder.generate(texts, **OPTIONS)
    rejected = read.difference(*(r.token_ids for r in plain), *map(decoder.pair.encode, texts))
    rejected = {token for token in rejected if token > 70}  # the check of a pair reads others
    assert rejected
    models[name].model.embed_tokens.weight.data[[*rejected]] = math.nan
    broken = Decoder(ModelPair(*models.values(), tokenizer), Anchored(k=1.0), speculate=3)
    read.clear()
    for result, expected in zip(broken.generate(texts, **OPTIONS), plain, strict=True):
        assert not result.error and result.token_ids == expected.token_ids
    assert rejected & read


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_nan_that_is_reached_fails_the_request_alone(tokenizer, models, name):
    (plain,) = Decoder(ModelPair(*models.values(), tokenizer), Anchored(k=1.0)).generate(
        TEXT[1], **OPTIONS
    )
    models[name].model.embed_tokens.weight.data[plain.token_ids[4]] = math.nan
    pair = ModelPair(*models.values(), tokenizer)
    for speculate in ("off", 3):
        decoder = Decoder(pair, Anchored(k=1.0), speculate=speculate)
        (failed,) = decoder.generate([TEXT[1]], **OPTIONS)
        assert failed.token_ids == plain.token_ids[:5]
        assert f"the {name} model's logits at step 5 are NaN" in failed.error
