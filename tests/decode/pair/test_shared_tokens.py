"""Tokenizers that make the same tokens of plain text are one, whatever their special tokens."""

import copy
import json
from collections.abc import Callable

import long_double_distributions as oracle
import numpy as np
import pytest
import torch
from tiny_models import tiny_llama, train_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.pair.shared_tokens import shared_tokens

PROMPTS = ["the keeper of the lamp", "salt"]
BANNED = [2, 320]
Edit = Callable[[dict], object]


def edited(tokenizer: PreTrainedTokenizerFast, edit: Edit) -> PreTrainedTokenizerFast:
    """A copy whose tokenizer.json was changed."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    edit(content)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token="<|begin|>",
        eos_token=tokenizer.eos_token,
    )


def add(token_id: int, text: str, *, special: bool = True) -> Edit:
    """In the vocabulary too, or the library would give an added token the next id that is free."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

    def edit(content: dict) -> None:
        content["model"]["vocab"][text] = token_id
        content["added_tokens"].append(
            {"id": token_id, "content": text, "special": special, **flags}
        )

    return edit


def rename(content: dict) -> None:
    """<|turn|>, token 2."""
    vocab = content["model"]["vocab"]
    vocab["<|user|>"] = vocab.pop("<|turn|>")
    content["added_tokens"][2]["content"] = "<|user|>"


def gap(content: dict) -> None:
    """Token 2 is unknown, those after it keep their ids."""
    del content["model"]["vocab"]["<|turn|>"], content["added_tokens"][2]


def swap_tokens(content: dict) -> None:
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def swap_merges(content: dict) -> None:
    merges = content["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]


def set_step(name: str, value: object) -> Edit:
    return lambda content: content["pre_tokenizer"].__setitem__(name, value)


DIFFERENCES = {
    "offsets": (set_step("trim_offsets", False), "", "their pre-tokenizers differ"),
    "renamed": (rename, "", 'token 2 "<|turn|>" and "<|user|>"'),
    "added text": (add(320, "tool", special=False), "", 'token 320 null and "tool"'),
    "steps": (set_step("add_prefix_space", True), "their pre-tokenizers differ", None),
    "model": (
        lambda content: content["model"].update(ignore_merges=True),
        "ignore_merges null and tr",
        None,
    ),
    "tokens": (swap_tokens, 'token 67 "a" and "b"', None),
    "merges": (swap_merges, "merge 3 ", None),
}


@pytest.mark.parametrize(("edit", "difference", "harmless"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_whatever_changes_plain_text_is_a_difference(tokenizer, edit, difference, harmless):
    shared = shared_tokens(tokenizer, edited(tokenizer, edit))
    assert shared.difference.startswith(difference)
    assert bool(shared.difference) == bool(difference)
    assert harmless is None or shared.harmless_difference.startswith(harmless)


def test_a_token_before_texts_that_the_risky_tokenizer_lacks_is_a_difference(tokenizer):
    def begin_with_turn(content: dict) -> None:
        template = content["post_processor"]
        template["single"][0]["SpecialToken"]["id"] = "<|turn|>"
        template["special_tokens"] = {
            "<|turn|>": {"id": "<|turn|>", "ids": [2], "tokens": ["<|turn|>"]}
        }

    shared = shared_tokens(edited(tokenizer, begin_with_turn), edited(tokenizer, gap))
    assert shared.difference == "token 2 with every text, which the risky one lacks"


def pair_of(safe: PreTrainedTokenizerFast, risky: PreTrainedTokenizerFast) -> ModelPair:
    """Models with rows for both tokenizers' tokens."""
    return ModelPair(
        tiny_llama(1, vocab_size=328),
        tiny_llama(2, vocab_size=328, layers=3),
        safe,
        risky_tokenizer=risky,
    )


def test_a_renamed_token_changes_nothing_but_one_line(tokenizer, caplog):
    pair = pair_of(tokenizer, edited(tokenizer, rename))
    assert caplog.messages == [
        'the tokenizers differ, but not in plain text: token 2 "<|turn|>" and "<|user|>"; '
        'level "auto" is tokens, by id'
    ]
    plain = pair_of(tokenizer, tokenizer)
    results = [Decoder(other, Anchored(k=1.0)).generate(PROMPTS) for other in (pair, plain)]
    assert [r.ledger for r in results[0]] == [r.ledger for r in results[1]]
    assert results[0][0].ledger.header.level_settings == {}


def test_other_tokens_are_bytes_with_one_line(tokenizer, caplog):
    pair = pair_of(tokenizer, edited(tokenizer, swap_tokens))
    assert caplog.messages == [
        'two tokenizers (token 67 "a" and "b"): such a pair decodes bytes, and k is in nats per '
        "byte"
    ]
    assert Decoder(pair, Anchored(k=1.0)).level.name == "byte"
    with pytest.raises(ValueError, match=r'different tokenizers .*: token 67 "a" and "b"; such a'):
        Decoder(pair, Anchored(k=1.0), level="token")


@pytest.fixture(scope="module")
def gap_pair(tokenizer) -> ModelPair:
    """The risky tokenizer lacks token 2, the safe one 320; 321 is one token of two names."""
    safe = edited(tokenizer, add(321, "<|call|>"))
    risky = edited(edited(tokenizer, gap), add(321, "<|tool|>"))
    eager = tiny_llama(1, vocab_size=328), tiny_llama(2, vocab_size=328, layers=3)
    with torch.no_grad():  # what both models would love to say
        for model in eager:
            model.lm_head.weight[BANNED] = 40 * model.lm_head.weight[5]
    return ModelPair(*eager, safe, risky_tokenizer=risky)


def test_tokens_that_one_tokenizer_lacks_are_never_drawn(gap_pair):
    decoder = Decoder(gap_pair, Anchored(k=1.0))
    results = decoder.generate(PROMPTS, max_new_tokens=15, num_return_sequences=4)
    assert not set(BANNED) & {token for result in results for token in result.token_ids}
    whole = ModelPair(gap_pair.safe, gap_pair.risky, gap_pair.tokenizer)
    ledger = results[0].ledger
    assert ledger.header.level_settings == {"vocab_size": 322, "banned_token_ids": BANNED}
    assert ledger.is_within_bound and verify(ledger, gap_pair).is_ok
    assert verify(ledger, whole).failures[0].startswith("level settings are {'vocab_size': 322, ")


def test_a_token_that_one_tokenizer_lacks_is_refused_in_texts(gap_pair):
    for prompt in ("<|turn|>salt", [5, 2], [320]):
        with pytest.raises(ValueError, match=r"token (2|320) is not in the tokenizers of both"):
            gap_pair.encode(prompt)
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 322\), got 322"):
        gap_pair.encode([322])
    assert 321 in gap_pair.encode("<|call|>") and 321 not in gap_pair.encode("<|tool|>")


def test_a_special_token_that_has_no_row_in_a_model_is_left_out(tokenizer):
    """As the image token of Gemma 3 1B, whose tokenizer is that of the larger models."""
    both = edited(tokenizer, add(320, "<|image|>"))
    pair = ModelPair(tiny_llama(1, vocab_size=328), tiny_llama(2), both)
    assert pair.vocab_size == 320 and not pair.has_token(320)
    for level in ("token", "byte"):
        decoder = Decoder(pair, Anchored(k=1.0), level=level)
        assert verify(decoder.generate("the keeper", max_new_tokens=3)[0].ledger, pair)
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 320\), got 320"):
        pair.encode("salt<|image|>")


@pytest.mark.parametrize(("k", "name"), [(0.0, "safe"), (50.0, "risky")])
def test_a_distribution_is_that_of_the_shared_tokens(gap_pair, k, name):
    decoder = Decoder(gap_pair, Anchored(k=k, budget="fixed", debt="none"), batch_size=64)
    prompt = gap_pair.encode("salt")
    shared = [token for token in range(gap_pair.vocab_size) if gap_pair.has_token(token)]
    scores = decoder.score([prompt] * len(shared), [[token] for token in shared], horizon=1)
    log_probs = np.array([score.log_prob for score in scores])
    with torch.no_grad():
        logits = gap_pair.models[name](torch.tensor([prompt])).logits[0, -1].numpy()
    assert log_probs == pytest.approx(oracle.log_probs(logits[shared]).astype(float), abs=1e-7)
    # Nothing is left for others and for the padding: their probability is 0.
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-7)


def test_two_tokenizers_without_bytes_are_refused_by_name(tokenizer):
    pieces = Tokenizer(models.BPE(byte_fallback=True))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    other = PreTrainedTokenizerFast(tokenizer_object=pieces)
    reason = "the risky one has no bytes: byte level needs a SentencePiece tokenizer whose"
    with pytest.raises(ValueError, match=reason):
        ModelPair(tiny_llama(1), tiny_llama(2), tokenizer, risky_tokenizer=other)


def test_a_tokenizer_that_leaves_out_merges_at_random_is_refused_by_name():
    both = [train_tokenizer(320), train_tokenizer(300)]
    both[1].backend_tokenizer.model.dropout = 0.5
    with pytest.raises(ValueError, match=r"^the risky model's tokenizer leaves out .*0\.5"):
        ModelPair(tiny_llama(1), tiny_llama(2), both[0], risky_tokenizer=both[1])


def test_an_end_of_text_after_each_prompt_is_said(tokenizer, caplog):
    ending = copy.deepcopy(tokenizer)
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", 1)]
    )
    ModelPair(tiny_llama(1), tiny_llama(2), ending)
    assert caplog.messages == ["the tokenizer puts an end of text, token 1, after each prompt"]
