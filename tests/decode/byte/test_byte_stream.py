"""The byte-level stream of a model against the definition, and its rows against each other."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from anchored.decode.byte import byte_prompt, byte_row, byte_stream
from anchored.decode.byte.byte_evaluation import ByteEvaluation
from anchored.decode.byte.byte_marginals import ByteMarginals
from anchored.decode.byte.byte_scores import byte_log_probs
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.byte_vocabulary import END_SYMBOL, ByteVocabulary
from anchored.decode.output_layer import OutputLayer
from anchored.decode.row_attention import row_attention
from anchored.decode.sampling_config import SamplingConfig
from anchored.decode.warpers import Warpers

PROMPT = "the harbour's  12345 \n\n\t caf\u00e9 "
CONTINUATION = " I'll  go\n\u4e2d 12!"
one_tokenizer = pytest.mark.parametrize("family", ["cl100k"])


@cache
def vocabulary_of(tokenizer: Tokenizer) -> ByteVocabulary:
    return ByteVocabulary(tokenizer, [tokenizer.token_to_id("<|end|>")])


def model_of(vocabulary: ByteVocabulary, name: str = "llama", seed: int = 1):
    config = copy.deepcopy(FAMILIES[name])
    config.update({"vocab_size": vocabulary.vocab_size, "max_position_embeddings": 1024})
    if name == "llama4_text":
        config.floor_scale = 1025
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).double().eval()


def stream_of(model, vocabulary: ByteVocabulary, **changes) -> ByteStream:
    evaluation = ByteEvaluation(**changes)
    attention = row_attention(model)
    return ByteStream(model, attention, vocabulary, num_rows=3, evaluation=evaluation)


def token_log_probs_of(model):
    """What the definition asks of a model, one plain forward a path."""

    @torch.inference_mode()
    def token_log_probs(paths) -> np.ndarray:
        logits = [model(torch.tensor([path])).logits[0, -1] for path in paths]
        return torch.stack(logits).log_softmax(-1).numpy()

    return token_log_probs


def bytes_of(vocabulary: ByteVocabulary, text: str) -> list[int]:
    return list(vocabulary.normalize(text))


def feed(stream: ByteStream, texts: dict[int, list[int]]) -> dict[int, Tensor]:
    """Feed whole texts to some rows in one call; returns (bytes, 257) by row."""
    width = max(map(len, texts.values()))
    token_ids = torch.zeros(3, width, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    for row, text in texts.items():
        token_ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
    logits = stream.feed(token_ids, mask)
    return {row: logits[row, : len(text)] for row, text in texts.items()}


def feed_byte_by_byte(stream: ByteStream, row: int, text: list[int]) -> Tensor:
    return torch.cat([feed(stream, {row: [byte]})[row] for byte in text])


def assert_same(actual: Tensor, expected: Tensor, *, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual.exp(), expected.exp(), rtol=rtol, atol=0)


def expected_logits(model, vocabulary: ByteVocabulary, prompt: list[int], text: list[int]):
    """(bytes of text + 1, 257) after the prompt and each byte, by the definition."""
    marginals = ByteMarginals(vocabulary, token_log_probs_of(model))
    marginals.extend(prompt)
    rows = [marginals.log_probs()]
    for byte in text:
        marginals.append(byte)
        rows.append(marginals.log_probs())
    return torch.from_numpy(np.stack(rows))


def check_against_definition(model, vocabulary: ByteVocabulary) -> None:
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    stream = stream_of(model, vocabulary)
    read = stream.read([prompt], [1])
    fed = feed_byte_by_byte(stream, 1, text)
    expected = expected_logits(model, vocabulary, prompt, text)
    assert_same(torch.cat([read.logits, fed]), expected)
    scores = byte_log_probs(vocabulary, bytes(prompt), token_log_probs_of(model))
    assert_same(read.token_log_probs[0], torch.from_numpy(scores[1:-1]))


def test_logits_and_prompt_scores_are_those_of_the_definition(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    check_against_definition(model_of(vocabulary), vocabulary)


@one_tokenizer
@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_family_reads_its_token_tree(tokenizer, name):
    vocabulary = vocabulary_of(tokenizer)
    check_against_definition(model_of(vocabulary, name), vocabulary)


def test_reading_is_feeding_byte_by_byte_and_feeding_at_once(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    stream = stream_of(model_of(vocabulary), vocabulary)
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    stream.read([prompt, prompt], [0, 1])
    one_by_one = feed_byte_by_byte(stream, 0, text)
    at_once = feed(stream, {1: text})[1]
    whole = stream.read([prompt + text], [2])
    assert_same(at_once, one_by_one)
    assert_same(whole.logits[0], one_by_one[-1])
    chosen = one_by_one[:-1].gather(-1, torch.tensor(text[1:])[:, None])[:, 0]
    assert_same(whole.token_log_probs[0][len(prompt) :], chosen)


@one_tokenizer
def test_rows_do_not_depend_on_each_other(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    prompts = [bytes_of(vocabulary, text) for text in (PROMPT, "a", "12 \n caf\u00e9s" * 5)]
    texts = [bytes_of(vocabulary, text) for text in (CONTINUATION, "bc  d", " 7")]
    together = stream_of(model, vocabulary)
    read = together.read(prompts, [2, 0, 1])
    fed = feed(together, dict(zip([2, 0, 1], texts, strict=True)))
    for place, row in enumerate([2, 0, 1]):
        alone = stream_of(model, vocabulary)
        own = alone.read([prompts[place]], [0])
        assert_same(read.logits[place], own.logits[0])
        assert_same(read.token_log_probs[place], own.token_log_probs[0])
        assert_same(fed[row], feed_byte_by_byte(alone, 0, texts[place]))


@one_tokenizer
def test_a_freed_row_serves_the_next_text_while_others_go_on(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    stream, other = stream_of(model, vocabulary), stream_of(model, vocabulary)
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    stream.read([prompt, text], [0, 1])
    other.read([prompt], [0])
    feed(stream, {0: text[:4], 1: text[:7]})
    stream.free(1)
    stream.read([prompt + text[:3]], [1])
    fed = feed(stream, {0: text[4:], 1: text[3:]})
    expected = feed_byte_by_byte(other, 0, text)
    assert_same(fed[0], expected[4:])
    assert_same(fed[1], expected[3:])


@one_tokenizer
def test_nothing_follows_the_end(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    stream = stream_of(model_of(vocabulary), vocabulary)
    stream.read([bytes_of(vocabulary, PROMPT)], [0])
    logits = feed(stream, {0: [ord("a"), END_SYMBOL, ord("b")]})[0]
    assert logits[0].exp().sum() == pytest.approx(1, abs=1e-12)
    assert (logits[1:] == -torch.inf).all()


@one_tokenizer
@pytest.mark.parametrize("tau", [0.0, 0.2])
def test_a_text_that_warping_excludes_stands_for_its_own_tokenisation(tokenizer, tau):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    warp = Warpers(SamplingConfig(top_k=100), vocabulary.stop_token_ids.tolist())
    evaluation = ByteEvaluation(tau=tau)
    stream = ByteStream(
        model, row_attention(model), vocabulary, num_rows=3, warp=warp, evaluation=evaluation
    )
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    read = stream.read([prompt], [0])
    logits = torch.cat([read.logits, feed_byte_by_byte(stream, 0, text)])
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(len(text) + 1).double())
    excluded = logits[:-1].gather(-1, torch.tensor(text)[:, None]) == -torch.inf
    assert excluded.any()


@one_tokenizer
def test_prompts_that_no_text_begins_with_and_too_long_ones_are_refused(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    stream = stream_of(model_of(vocabulary), vocabulary)
    with pytest.raises(ValueError, match="byte 0xff cannot follow b'a'"):
        stream.read([[ord("a"), 0xFF]], [0])
    with pytest.raises(ValueError, match=r"the prompt has 15\d\d tokens, the model has 1024"):
        stream.read([list(b"1!" * 777)], [0])


@pytest.mark.parametrize("prefetch", [1, 4])
def test_prefetching_changes_nothing_but_the_number_of_forwards(tokenizer, prefetch):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    counts, fed = [], []
    for number in (0, prefetch):
        stream = stream_of(model, vocabulary, prefetch=number)
        stream.read([prompt], [0])
        fed.append(feed_byte_by_byte(stream, 0, text))
        counts.append(stream.counts(0))
    assert_same(fed[1], fed[0])
    assert counts[0].num_guesses == 0 < counts[1].num_guesses


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    return (first.exp() - second.exp()).abs().sum(-1) / 2


@pytest.mark.parametrize("tau", [1e-3, 0.05, 0.3])
def test_left_out_nodes_lose_no_more_than_the_logged_bound(tokenizer, tau):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    exact, lazy = stream_of(model, vocabulary), stream_of(model, vocabulary, tau=tau, prefetch=2)
    for stream in (exact, lazy):
        stream.read([prompt], [0])
    losses = []
    for byte in text:
        expected, actual = feed(exact, {0: [byte]})[0], feed(lazy, {0: [byte]})[0]
        losses.append(float(total_variation(actual, expected)))
        assert losses[-1] <= lazy.counts(0).total_variation + 1e-12
        assert lazy.counts(0).total_variation <= tau
    assert lazy.counts(0).max_total_variation >= max(losses) > 0


@one_tokenizer
def test_what_is_left_out_does_not_depend_on_what_was_computed_ahead(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    fed = []
    for prefetch in (0, 3):
        stream = stream_of(model, vocabulary, tau=0.1, prefetch=prefetch)
        stream.read([prompt, prompt], [0, 1])
        fed += [feed_byte_by_byte(stream, 0, text), feed(stream, {1: text})[1]]
    for logits in fed[1:]:
        assert_same(logits, fed[0])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bounds_on_prompt_scores_hold_and_cost_a_few_nodes(tokenizer, name):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary, name)
    text = bytes_of(vocabulary, 3 * (PROMPT + CONTINUATION))
    scores, nodes = {}, {}
    for which in ("lower", "exact", "upper"):
        stream = stream_of(model, vocabulary, prompt_scores=which)
        read = stream.read([text], [0])
        scores[which], nodes[which] = read.token_log_probs[0], stream.counts(0).num_nodes
    assert (scores["lower"] <= scores["exact"] + 1e-12).all()
    assert (scores["exact"] <= scores["upper"] + 1e-12).all()
    assert (scores["upper"] <= 0).all()
    assert nodes["lower"] == nodes["upper"] < 0.7 * nodes["exact"]
    # The interval tells something: most bytes are known to a factor of two, though the model is
    # untrained and gives much mass to tokens that the text does not use.
    assert ((scores["upper"] - scores["lower"]).median()) < 0.7


@one_tokenizer
def test_without_prompt_scores_only_the_next_byte_is_computed(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    text = bytes_of(vocabulary, PROMPT)
    exact, none = stream_of(model, vocabulary), stream_of(model, vocabulary, prompt_scores="none")
    assert_same(none.read([text], [0]).logits, exact.read([text], [0]).logits)
    assert none.read([text], [1]).token_log_probs[0].shape == (0,)


@one_tokenizer
def test_the_first_byte_asks_for_no_logits_that_the_scores_had(tokenizer, monkeypatch):
    vocabulary = vocabulary_of(tokenizer)
    stream, asked = stream_of(model_of(vocabulary), vocabulary), []
    logits = OutputLayer.logits
    monkeypatch.setattr(
        OutputLayer,
        "logits",
        lambda layer, hidden: asked.append(len(hidden)) or logits(layer, hidden),
    )
    text = bytes_of(vocabulary, PROMPT)
    stream.read([text], [0])
    assert asked == [stream.counts(0).num_nodes]


@one_tokenizer
def test_dropping_dead_slots_changes_nothing(tokenizer, monkeypatch):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary, "qwen2, sliding")
    prompt, text = bytes_of(vocabulary, PROMPT), bytes_of(vocabulary, CONTINUATION)
    fed = []
    for limit in (0, 64):
        monkeypatch.setattr(byte_row, "MAX_DEAD_SLOTS", limit)
        stream = stream_of(model, vocabulary, prefetch=2)
        stream.read([prompt], [0])
        fed.append(feed_byte_by_byte(stream, 0, text))
    assert_same(fed[0], fed[1])


@one_tokenizer
def test_prompts_of_several_forwards_are_read_exactly(tokenizer, monkeypatch):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    text = bytes_of(vocabulary, PROMPT + CONTINUATION + " the keepers' things")
    whole, pieces = stream_of(model, vocabulary), stream_of(model, vocabulary)
    expected = whole.read([text], [0])
    monkeypatch.setattr(byte_prompt, "NODES_PER_FORWARD", 1)
    monkeypatch.setattr(byte_stream, "ROWS_PER_TILE", 3)
    read = pieces.read([text, text[:9]], [0, 2])
    assert_same(read.logits[0], expected.logits[0])
    assert_same(read.token_log_probs[0], expected.token_log_probs[0])
    assert pieces.counts(0).num_forwards > 5


@one_tokenizer
def test_a_text_that_outgrows_the_positions_is_over(tokenizer, caplog):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary, "gpt2")
    stream = stream_of(model, vocabulary)
    prompt = list(b"1!" * 500)
    stream.read([prompt, prompt[:8]], [0, 1])
    logits = feed(stream, {0: list(b"1!" * 20), 1: list(b"1!" * 20)})
    is_over = (logits[0] == -torch.inf).all(-1)
    assert not is_over[:20].any() and is_over[-10:].all()
    assert not (logits[1] == -torch.inf).all(-1).any()
    assert "more than the model's 1024 positions" in caplog.text


@pytest.mark.slow
@one_tokenizer
@pytest.mark.parametrize(("num_tokens", "scores"), [(1500, "exact"), (8000, "none")])
def test_long_contexts_are_read_and_gone_on_from(tokenizer, num_tokens, scores):
    vocabulary = vocabulary_of(tokenizer)
    model = model_of(vocabulary)
    model.config.max_position_embeddings = 10_000
    once = bytes_of(vocabulary, PROMPT + CONTINUATION)
    text = once * (num_tokens // len(tokenizer.encode(PROMPT + CONTINUATION).ids) + 1)
    stream = stream_of(model, vocabulary, prompt_scores=scores)
    read = stream.read([text[:-5], text], [0, 1])
    assert_same(feed_byte_by_byte(stream, 0, text[-5:])[-1], read.logits[1])
    assert stream.counts(0).num_nodes > 0.9 * num_tokens
