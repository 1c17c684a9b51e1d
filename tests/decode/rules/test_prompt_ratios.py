"""Ratios of prompts that are saved once give the debts of prompts that are read anew."""

import hashlib
import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import TEXT, tiny_gpt2, tiny_llama, train_tokenizer

from anchored import (
    Anchored,
    Decoder,
    ModelPair,
    PromptRatios,
    RiskyOnly,
    SafeOnly,
    verify,
)
from anchored.decode.rules.budget import prompt_digest
from anchored.decode.streams.stream import Stream
from anchored.pretrain.tokens.bpe import pre_tokenizer

PROMPTS = ["the keeper's lamp", "import 3.14", "salt"]
ASKED = {"max_new_tokens": 3, "seed": 5}


@pytest.fixture(scope="module", params=["token", "byte"])
def pair(request) -> ModelPair:
    tokenizer = train_tokenizer(320)
    if request.param == "token":
        return ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)
    other = train_tokenizer(300, TEXT[::-1], pre_tokenizer())
    risky = tiny_llama(2, vocab_size=300, layers=3)
    return ModelPair(tiny_llama(1), risky, tokenizer, risky_tokenizer=other)


@pytest.fixture
def saved(pair, tmp_path):
    """The file of the prompts' ratios."""
    path = tmp_path / "prompts.safetensors"
    Decoder(pair, Anchored(k=1.0), batch_size=2).prompt_ratios(PROMPTS).save(path)
    return path


@pytest.fixture
def scored(monkeypatch) -> list[int]:
    """Positions of prompts that any stream has scored, one entry a prompt."""
    from anchored.decode.byte.byte_stream import ByteStream
    from anchored.decode.streams.row_stream import RowStream

    counts: list[int] = []

    def counting(read):
        def counted(self: Stream, prompts, rows):
            result = read(self, prompts, rows)
            counts.extend(len(values) for values in result.token_log_probs)
            return result

        return counted

    for kind in (ByteStream, RowStream):
        monkeypatch.setattr(kind, "read", counting(kind.read))
    return counts


def using(ratios: PromptRatios, *made, **options) -> Decoder:
    decoder = Decoder(*made, **options)
    decoder.use_prompt_ratios(ratios)
    return decoder


@pytest.mark.sampled(2)
def test_saved_ratios_give_the_same_texts_and_debts_without_scoring(pair, saved, scored):
    ratios = PromptRatios.load(saved)
    assert len(ratios) == len(PROMPTS)
    for rule in (Anchored(k=5.0), Anchored(k=5.0, debt="average"), Anchored(K=9.0, debt_window=2)):
        expected = Decoder(pair, rule).generate(PROMPTS, **ASKED)
        scored.clear()
        decoder = using(ratios, pair, rule)
        actual = decoder.generate(PROMPTS, **ASKED)
        scores = decoder.score(PROMPTS, [" lamp"] * 3)
        assert set(scored) == {0} and len(scored) >= 8
        assert rule.debt == "average" or any(one.ledger.header.debt > 0 for one in actual)
        for one, other, score in zip(actual, expected, scores, strict=True):
            assert one.token_ids == other.token_ids
            debt = pytest.approx(other.ledger.header.debt, abs=1e-9)
            assert one.ledger.header.debt == debt and score.debt == debt
            assert verify(one.ledger, pair).is_ok


@pytest.mark.parametrize("rule", [SafeOnly(), RiskyOnly(), Anchored(k=1.0, debt="none")], ids=str)
def test_rules_without_a_debt_score_no_prompt(pair, rule, scored):
    (result,) = Decoder(pair, rule).generate(PROMPTS[0], **ASKED)
    assert set(scored) == {0} and result.ledger.header.debt == 0
    assert verify(result.ledger, pair).is_ok
    Decoder(pair, rule).score(PROMPTS[0], " lamp")
    assert set(scored) == {0} and len(scored) >= 4


def test_ratios_of_another_model_dtype_level_or_prompt_are_refused(pair, saved):
    ratios = PromptRatios.load(saved)
    other = ModelPair(
        tiny_gpt2(7), pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer
    )
    coarse = ModelPair(
        tiny_llama(1).float(),
        pair.risky,
        pair.tokenizer,
        pair.fingerprints,
        risky_tokenizer=pair.risky_tokenizer,
    )
    with pytest.raises(ValueError, match="with another setting: safe model was"):
        using(ratios, other, Anchored(k=1.0))
    message = 'safe dtype was "torch.float64" and is now "torch.float32"'
    with pytest.raises(ValueError, match=message):
        using(ratios, coarse, Anchored(k=1.0))
    if pair.shares_tokens:
        with pytest.raises(ValueError, match='level was "token" and is now "byte"'):
            using(ratios, pair, Anchored(k=1.0), level="byte")
    with pytest.raises(ValueError, match=r"no ratios are given .* 3 other prompts"):
        using(ratios, pair, Anchored(k=1.0)).generate("the keeper", **ASKED)


def test_nan_among_saved_ratios_fails_their_prompt_alone(pair, saved):
    ratios = PromptRatios.load(saved)
    salt = Decoder(pair, Anchored(k=1.0)).level.encode(PROMPTS[2])
    ratios.of(salt)[0] = torch.nan
    ratios.save(saved)
    decoder = using(PromptRatios.load(saved), pair, Anchored(k=1.0))
    first, second, failed = decoder.generate(PROMPTS, **ASKED)
    assert failed.error == "request 2: the ratios that are given for the prompt hold NaN"
    assert failed.token_ids == [] and not failed.ledger.certified
    assert failed.ledger.header.debt == 0.0  # never NaN
    assert not first.error and not second.error and first.ledger.certified
    scores = decoder.score(PROMPTS, [" lamp"] * 3)
    assert [score.error for score in scores] == ["", "", failed.error.removeprefix("request 2: ")]


def test_other_files_are_refused(tmp_path):
    text, tensors = tmp_path / "text.safetensors", tmp_path / "tensors.safetensors"
    text.write_text("no tensors")
    save_file({"weight": torch.zeros(2)}, tensors, {"source": json.dumps({})})
    for path, error, message in (
        (text, ValueError, "is no safetensors file"),
        (tensors, ValueError, "its schema is None"),
        (tmp_path / "missing.safetensors", FileNotFoundError, "missing"),
    ):
        with pytest.raises(error, match=message):
            PromptRatios.load(path)


def test_ratios_that_are_of_more_or_of_less_are_refused():
    ratios = PromptRatios({"level": "token", "dtype": "float32"})
    for other in ({"level": "token"}, {**ratios.source, "unit": 4}):
        with pytest.raises(ValueError, match=r"another setting: (dtype|unit)"):
            ratios.check(other)


def test_prompts_keep_the_name_that_files_have_for_them():
    """sha256 of little-endian int64: files of other versions and machines are read by it."""
    assert prompt_digest([5, 7]) == hashlib.sha256(struct.pack("<2q", 5, 7)).hexdigest()
