"""Two lean models' forwards at once say what they say in turns, and only models alike run so."""

import threading
from concurrent.futures import wait

import pytest
import torch
from tiny_models import tiny_llama, word_prompts

from anchored import RCAD, Anchored, Decoder, ModelPair
from anchored.decode.engine import side_by_side
from anchored.decode.engine.side_by_side import SideBySide
from anchored.decode.levels.level import TokenLevel
from anchored.decode.settings import SamplingConfig
from anchored.decode.streams.row_stream import RowStream

PATIENCE_S = 120


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def pair_of(tokenizer, *layers: int) -> ModelPair:
    safe, risky = (tiny_llama(1 + i, layers=n).float() for i, n in enumerate(layers))
    return ModelPair(safe, risky, tokenizer)


@pytest.fixture
def seen_threads(monkeypatch) -> list[tuple[threading.Thread, int]]:
    """(thread, its number of torch's threads) of each forward."""
    seen, feed = [], RowStream.feed

    def spied(self, *arguments):
        seen.append((threading.current_thread(), torch.get_num_threads()))
        return feed(self, *arguments)

    monkeypatch.setattr(RowStream, "feed", spied)
    return seen


def is_main(thread: threading.Thread) -> bool:
    return thread is threading.main_thread()


@pytest.mark.parametrize("rule", [Anchored(k=1.0), RCAD(alpha=0.5, compared=False)], ids=str)
def test_tokens_and_spends_are_those_of_forwards_in_turns(
    rule, tokenizer, monkeypatch, seen_threads
):
    # What the interpreter sets before it waits for threads that decode on after the main one.
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    options = {"max_new_tokens": 3, "seed": [0, 1, 2]}
    if isinstance(rule, RCAD):
        options["passages"] = ["the cat sat on a mat"] * 3
    decoder = Decoder(pair_of(tokenizer, 2, 2), rule, batch_size=2)
    at_once = decoder.generate(word_prompts(3, 8), **options)
    workers = {thread for thread, number in seen_threads if number == 1 and not is_main(thread)}
    assert workers and torch.get_num_threads() == 2
    for worker in workers:  # they end with the call
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
    seen_threads.clear()
    monkeypatch.setattr(SideBySide, "__call__", lambda self, forwards: [run() for run in forwards])
    in_turns = decoder.generate(word_prompts(3, 8), **options)
    assert all(is_main(thread) for thread, _ in seen_threads)
    for one, other in zip(at_once, in_turns, strict=True):
        assert one.token_ids == other.token_ids
        spends = ([step.spend for step in each.ledger.steps] for each in (one, other))
        torch.testing.assert_close(*map(torch.tensor, spends), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "num_threads"), [((1, 5), 2), ((2, 2), 3)])
def test_models_of_unlike_sizes_and_threads_that_do_not_divide_take_turns(
    layers, num_threads, tokenizer, seen_threads
):
    torch.set_num_threads(num_threads)
    decoder = Decoder(pair_of(tokenizer, *layers), Anchored(k=1.0, debt="none"))
    decoder.generate(word_prompts(1, 8), max_new_tokens=4)
    assert set(seen_threads) == {(threading.main_thread(), num_threads)}


def test_a_failing_forward_fails_the_step_and_leaves_no_other_running(tokenizer, monkeypatch):
    """The other one ends no sooner than it is waited for."""
    level = TokenLevel(pair_of(tokenizer, 2, 2))
    forwards = SideBySide(level.open_streams(1, 9, SamplingConfig(), scores_prompts=False))
    is_awaited, is_over = threading.Event(), threading.Event()

    def awaiting(futures):
        is_awaited.set()
        return wait(futures)

    def failing():
        raise RuntimeError("out of memory")

    def later():
        assert is_awaited.wait(PATIENCE_S)
        is_over.set()

    monkeypatch.setattr(side_by_side, "wait", awaiting)
    with pytest.raises(RuntimeError, match="out of memory"):
        forwards([failing, later])
    was_over = is_over.is_set()
    is_awaited.set()
    assert was_over and torch.get_num_threads() == 2
