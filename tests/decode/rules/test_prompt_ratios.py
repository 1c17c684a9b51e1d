"""Ratios of prompts that are saved once give the debts of prompts that are read anew."""

import hashlib
import struct

import pytest
import torch
from tiny_models import TEXT, tiny_gpt2, tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, PromptRatios, verify
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.rules.budget import prompt_digest
from anchored.decode.streams.row_stream import RowStream
from anchored.pretrain.tokens.bpe import pre_tokenizer

PROMPTS = ["the keeper's lamp", "import 3.14", "salt"]
SHORT = {"max_new_tokens": 2, "seed": 5}


@pytest.fixture(scope="module", params=["token", "byte"])
def pair(request) -> ModelPair:
    tokenizer = train_tokenizer(320)
    if request.param == "token":
        return ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)
    other = train_tokenizer(300, TEXT[::-1], pre_tokenizer())
    risky = tiny_llama(2, vocab_size=300, layers=3)
    return ModelPair(tiny_llama(1), risky, tokenizer, risky_tokenizer=other)


@pytest.fixture(scope="module")
def saved(pair, tmp_path_factory):
    """The file of the prompts' ratios."""
    path = tmp_path_factory.mktemp("ratios") / "prompts.safetensors"
    Decoder(pair, Anchored(k=1.0), batch_size=2).prompt_ratios(PROMPTS).save(path)
    return path


@pytest.fixture
def scored(monkeypatch) -> list[int]:
    """Positions of prompts that any stream has scored, one entry a prompt."""
    counts: list[int] = []
    for kind in (ByteStream, RowStream):

        def counted(self, prompts, rows, read=kind.read):
            result = read(self, prompts, rows)
            counts.extend(map(len, result.token_log_probs))
            return result

        monkeypatch.setattr(kind, "read", counted)
    return counts


def using(ratios: PromptRatios, *made, **options) -> Decoder:
    decoder = Decoder(*made, **options)
    decoder.use_prompt_ratios(ratios)
    return decoder


def test_saved_ratios_give_the_same_texts_and_debts_without_scoring(pair, saved, scored):
    rule = Anchored(K=9.0, debt="average")
    expected = Decoder(pair, rule).generate(PROMPTS, **SHORT)
    assert 0 not in scored
    scored.clear()
    decoder = using(PromptRatios.load(saved), pair, rule)
    actual = decoder.generate(PROMPTS, **SHORT)
    scores = decoder.score(PROMPTS, [" lamp"] * 3)
    assert set(scored) == {0}
    for one, other, score in zip(actual, expected, scores, strict=True):
        assert one.token_ids == other.token_ids
        debt = pytest.approx(other.ledger.header.debt, abs=1e-9)
        assert one.ledger.header.debt == debt and score.debt == debt
    assert verify(actual[0].ledger, pair).is_ok


def test_ratios_of_another_model_level_or_prompt_are_refused(pair, saved):
    ratios = PromptRatios.load(saved)
    other = ModelPair(
        tiny_gpt2(7), pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer
    )
    with pytest.raises(ValueError, match="with another setting: safe model was"):
        using(ratios, other, Anchored(k=1.0))
    if pair.shares_tokens:
        with pytest.raises(ValueError, match='level was "token" and is now "byte"'):
            using(ratios, pair, Anchored(k=1.0), level="byte")
    with pytest.raises(ValueError, match=r"no ratios are given .* 3 other prompts"):
        using(ratios, pair, Anchored(k=1.0)).generate("the keeper", **SHORT)


def test_nan_among_saved_ratios_fails_their_prompt_alone(pair, saved):
    ratios = PromptRatios.load(saved)
    ratios.of(Decoder(pair, Anchored(k=1.0)).level.encode(PROMPTS[2]))[0] = torch.nan
    decoder = using(ratios, pair, Anchored(k=1.0))
    first, _, failed = decoder.generate(PROMPTS, **SHORT)
    assert failed.error == "request 2: the ratios that are given for the prompt hold NaN"
    assert not failed.ledger.certified and failed.ledger.header.debt == 0.0  # never NaN
    assert first.ledger.certified
    assert [bool(score.error) for score in decoder.score(PROMPTS, [" a"] * 3)] == [0, 0, 1]


def test_prompts_keep_the_name_that_files_have_for_them():
    """sha256 of little-endian int64: files of other versions and machines are read by it."""
    assert prompt_digest([5, 7]) == hashlib.sha256(struct.pack("<2q", 5, 7)).hexdigest()
