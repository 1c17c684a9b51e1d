"""Two lean models' forwards at once say what they say in turns, and only models alike run so."""

import threading
import time

import pytest
import torch
from tiny_models import tiny_llama, word_prompts

from anchored import RCAD, Anchored, Decoder, ModelPair
from anchored.decode.engine.side_by_side import SideBySide
from anchored.decode.streams.row_stream import RowStream

NUM_PROMPTS = 5


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def pair_of(tokenizer, *layers: int) -> ModelPair:
    safe, risky = (tiny_llama(1 + i, layers=n).float() for i, n in enumerate(layers))
    return ModelPair(safe, risky, tokenizer)


def seen_threads(monkeypatch) -> list[tuple[str, int]]:
    """(kind of thread, its number of torch's threads) of each forward from now on."""
    seen, feed_rows = [], RowStream.feed_rows

    def spied(self, rows, tokens):
        is_main = threading.current_thread() is threading.main_thread()
        seen.append(("main" if is_main else "worker", torch.get_num_threads()))
        return feed_rows(self, rows, tokens)

    monkeypatch.setattr(RowStream, "feed_rows", spied)
    return seen


@pytest.mark.parametrize(
    "rule", [Anchored(k=1.0), Anchored(k=0.05), RCAD(alpha=0.5, compared=False)], ids=str
)
def test_tokens_and_spends_are_those_of_forwards_in_turns(
    rule, tokenizer, monkeypatch, two_threads
):
    pair, prompts = pair_of(tokenizer, 2, 2), word_prompts(NUM_PROMPTS, 8)
    asked = {"max_new_tokens": 12, "seed": list(range(NUM_PROMPTS))}
    if isinstance(rule, RCAD):
        asked["passages"] = ["the cat sat on a mat"] * NUM_PROMPTS
    decoder = Decoder(pair, rule, batch_size=3)
    seen = seen_threads(monkeypatch)
    at_once = decoder.generate(prompts, **asked)
    assert ("worker", 1) in seen and torch.get_num_threads() == 2
    seen.clear()
    monkeypatch.setattr(SideBySide, "__call__", lambda self, forwards: [run() for run in forwards])
    in_turns = decoder.generate(prompts, **asked)
    assert {kind for kind, _ in seen} == {"main"}
    for one, other in zip(at_once, in_turns, strict=True):
        assert one.token_ids == other.token_ids
        assert one.ledger.risky_forwards == other.ledger.risky_forwards
        spends = ([step.spend for step in each.ledger.steps] for each in (one, other))
        torch.testing.assert_close(*map(torch.tensor, spends), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "num_threads"), [((1, 9), 2), ((2, 2), 1), ((2, 2), 3)])
def test_models_of_unlike_sizes_and_threads_that_do_not_divide_take_turns(
    layers, num_threads, tokenizer, monkeypatch, two_threads
):
    seen = seen_threads(monkeypatch)
    torch.set_num_threads(num_threads)
    Decoder(pair_of(tokenizer, *layers), Anchored(k=1.0)).generate(
        word_prompts(2, 8), max_new_tokens=4
    )
    assert set(seen) == {("main", num_threads)}


def test_a_failing_forward_fails_the_step_and_leaves_no_other_running(
    tokenizer, monkeypatch, two_threads
):
    pair, feed_rows, is_over = pair_of(tokenizer, 2, 2), RowStream.feed_rows, threading.Event()

    def failing(self, rows, tokens):
        if self.model is pair.safe:
            raise RuntimeError("out of memory")
        time.sleep(0.2)
        is_over.set()
        return feed_rows(self, rows, tokens)

    monkeypatch.setattr(RowStream, "feed_rows", failing)
    decoder = Decoder(pair, Anchored(k=1.0, debt="none"))
    with pytest.raises(RuntimeError, match="out of memory"):
        decoder.generate(word_prompts(1, 8), max_new_tokens=6)
    assert is_over.is_set() and torch.get_num_threads() == 2


def test_a_thread_decodes_on_when_the_main_thread_has_ended(tokenizer, monkeypatch, two_threads):
    # What the interpreter sets before it waits for such threads.
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    decoder, seen = Decoder(pair_of(tokenizer, 2, 2), Anchored(k=1.0)), seen_threads(monkeypatch)
    (result,) = decoder.generate(word_prompts(1, 8), max_new_tokens=6)
    assert not result.error and ("worker", 1) in seen


def test_threads_that_begin_meanwhile_have_their_full_number(tokenizer, monkeypatch, two_threads):
    feed_rows, numbers, workers = RowStream.feed_rows, [], set()

    def probed(self, rows, tokens):
        probe = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
        probe.start()
        probe.join()
        workers.add(threading.current_thread())
        return feed_rows(self, rows, tokens)

    monkeypatch.setattr(RowStream, "feed_rows", probed)
    decoder = Decoder(pair_of(tokenizer, 2, 2), Anchored(k=1.0, debt="none"))
    decoder.generate(word_prompts(1, 8), max_new_tokens=12)
    assert set(numbers[-4:]) == {2}  # workers take their share in their first step
    workers.discard(threading.main_thread())
    assert len(workers) == 2
    for worker in workers:  # they end with the call
        worker.join(timeout=60)
        assert not worker.is_alive()
