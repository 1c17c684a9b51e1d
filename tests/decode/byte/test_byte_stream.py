"""The byte-level stream of a model against the definition, and its rows against each other."""

import pytest
import torch
from byte_streams import (
    CONTINUATION,
    PROMPT,
    ReferenceDistributions,
    assert_same,
    bytes_of,
    feed,
    feed_byte_by_byte,
    model_of,
    stream_of,
)
from tiny_models import FAMILIES

from anchored.decode.byte import byte_row, byte_stream
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from anchored.decode.warpers import Warpers

one_tokenizer = pytest.mark.parametrize("family", ["cl100k"])


def check_against_definition(model, vocabulary: ByteVocabulary) -> None:
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    stream = stream_of(model, vocabulary)
    read = stream.read([prompt, prompt], [1, 2])
    one_by_one, at_once = feed_byte_by_byte(stream, 1, text), feed(stream, {2: text})[2]
    expected = ReferenceDistributions(model, vocabulary).walk(prompt + text)
    for fed in (one_by_one, at_once):
        assert_same(torch.cat([read.logits[:1], fed]), expected[len(prompt) - 1 :])
    assert_same(read.token_log_probs[0], expected[range(len(prompt) - 1), prompt[1:]])


@pytest.mark.sampled(4)
def test_logits_and_prompt_scores_are_those_of_the_definition(vocabulary, model):
    check_against_definition(model, vocabulary)


@pytest.mark.sampled(5)
@one_tokenizer
@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_family_reads_its_token_tree(name, vocabulary):
    check_against_definition(model_of(vocabulary, name), vocabulary)


@one_tokenizer
def test_rows_depend_neither_on_each_other_nor_on_what_they_held_before(
    vocabulary, model, prompt, text
):
    stream = stream_of(model, vocabulary)
    prompts = {2: prompt, 0: [ord("a")], 1: bytes_of(vocabulary, "12 \n caf\u00e9s" * 5)}
    texts = {2: text, 0: bytes_of(vocabulary, "bc  d"), 1: bytes_of(vocabulary, " 7")}
    read = stream.read([*prompts.values()], [*prompts])
    fed = feed(stream, {**texts, 2: text[:4]})
    for i, row in enumerate(prompts):
        alone = stream_of(model, vocabulary)
        read_alone = alone.read([prompts[row]], [0])
        assert_same(read.logits[i], read_alone.logits[0])
        assert_same(read.token_log_probs[i], read_alone.token_log_probs[0])
        assert_same(fed[row], feed_byte_by_byte(alone, 0, texts[row])[: len(fed[row])])
    stream.free(1)
    stream.read([prompt + text[:3]], [1])
    fed = feed(stream, {2: text[4:], 1: text[3:]})
    assert_same(fed[2], fed[1][1:])


@one_tokenizer
def test_nothing_follows_the_end(vocabulary, model):
    stream = stream_of(model, vocabulary)
    stream.read([bytes_of(vocabulary, PROMPT)], [0])
    logits = feed(stream, {0: [ord("a"), END_SYMBOL, ord("b")]})[0]
    assert logits[0].exp().sum() == pytest.approx(1, abs=1e-12)
    assert (logits[1:] == -torch.inf).all()


@one_tokenizer
def test_a_text_that_warping_excludes_begins_again_with_its_tokenization(
    vocabulary, model, prompt, text
):
    warp = Warpers(SamplingConfig(top_k=100), vocabulary.stop_columns)
    stream = stream_of(model, vocabulary, warp=warp)
    read = stream.read([prompt], [0])
    logits = torch.cat([read.logits, feed_byte_by_byte(stream, 0, text)])
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(len(text) + 1).double())
    excluded = logits[:-1].gather(-1, torch.tensor(text)[:, None]) == -torch.inf
    assert excluded.any()


@one_tokenizer
def test_prompts_of_several_forwards_are_read_exactly(monkeypatch, vocabulary, model):
    text = bytes_of(vocabulary, PROMPT + CONTINUATION + " the keepers' things")
    whole, pieces = stream_of(model, vocabulary), stream_of(model, vocabulary)
    expected = whole.read([text], [0])
    monkeypatch.setattr(byte_row, "NODES_PER_FORWARD", 1)
    monkeypatch.setattr(byte_stream, "BYTES_AHEAD", 5)
    monkeypatch.setattr(byte_stream, "PROMPT_LOGITS", 3)
    read = pieces.read([text, text[:9]], [0, 2])
    assert_same(read.logits[0], expected.logits[0])
    assert_same(read.token_log_probs[0], expected.token_log_probs[0])
    assert pieces.counts(0).num_forwards > 5


@one_tokenizer
def test_a_prompt_whose_last_word_begins_with_too_many_tokens_is_over(vocabulary):
    """The word is one token, and fits; some beginning of it is three."""
    stream = stream_of(model_of(vocabulary, "gpt2"), vocabulary)
    prompts = [list(b"1!" * number + b" round") for number in (511, 400)]
    read = stream.read(prompts, [0, 1])
    assert read.token_log_probs[0].isnan().all() and not read.token_log_probs[1].isnan().any()
    assert [stream.outgrown(row) for row in (0, 1)] == [1024, 0]
    assert (read.logits[0] == -torch.inf).all()


@one_tokenizer
def test_prefetching_changes_nothing_but_the_number_of_forwards(
    vocabulary, model, prompt, text, monkeypatch
):
    counts, fed = [], []
    for number in (0, 4):
        monkeypatch.setattr(byte_row, "PREFETCH", number)
        stream = stream_of(model, vocabulary)
        stream.read([prompt], [0])
        fed.append(feed_byte_by_byte(stream, 0, text))
        counts.append(stream.counts(0))
    assert_same(fed[1], fed[0])
    assert counts[0].num_forwards > counts[1].num_forwards
