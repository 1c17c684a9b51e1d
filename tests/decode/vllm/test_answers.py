"""When texts of the engine leave, and what is settled of them."""

import asyncio
from types import SimpleNamespace

import pytest

from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalError, JournalReader
from anchored.decode.vllm import answers
from anchored.decode.vllm.answers import Answers, ShutDown, Unreserved

from ..serving.test_journal import header, step


def outputs_of(*texts):
    """An engine's outputs, the last of them finished; `closed` once nobody asks any more."""

    async def generate():
        try:
            for number, token_ids in enumerate(texts):
                text = SimpleNamespace(token_ids=token_ids)
                yield SimpleNamespace(outputs=[text], finished=number + 1 == len(texts))
        finally:
            closed.append(True)

    closed: list[bool] = []
    return generate(), closed


@pytest.fixture
def journal(tmp_path):
    """A writer that has begun the request "a", and the answers of its reader."""
    writer = JournalWriter(tmp_path)
    writer.open("a-12345678", header(horizon=8), has_stops=False)
    yield writer, Answers(JournalReader(tmp_path))
    writer.close()


def write(writer, *token_ids, start=0):
    writer.steps([("a-12345678", step(start + i, token)) for i, token in enumerate(token_ids)])


@pytest.mark.parametrize("is_delta", [True, False])
def test_a_text_leaves_after_the_journal_has_all_of_it(is_delta, journal):
    writer, text_answers = journal
    outputs, closed = outputs_of([5, 2], [3] if is_delta else [5, 2, 3])
    events = []

    async def read():
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, lambda: (events.append("first"), write(writer, 5, 2)))
        loop.call_later(0.06, lambda: (events.append("last"), write(writer, 3, start=2)))
        async for _ in text_answers.held(outputs, "a", is_delta=is_delta):
            events.append("left")

    asyncio.run(read())
    assert events == ["first", "left", "last", "left"]
    assert text_answers.take("a")["spent"] == 1.5
    assert text_answers.take("a") is None
    assert (closed, text_answers.journal.find("a")) == ([True], None)


@pytest.mark.parametrize("number", [0, 1], ids=["other", "missing"])
def test_a_text_that_the_journal_lacks_does_not_leave_and_stops_its_engine(
    number, journal, monkeypatch
):
    monkeypatch.setattr(answers, "WAIT_S", 0.03)
    (writer, text_answers), got = journal, []
    write(writer, 5, *([7], [])[number])
    outputs, closed = outputs_of([5], [5, 6], [5, 6, 2])

    async def read():
        async for output in text_answers.held(outputs, "a", is_delta=False):
            got.append(output)

    with pytest.raises(JournalError, match=r"not \[5, 6\]"):
        asyncio.run(read())
    assert len(got) == 1
    assert (closed, text_answers.take("a"), text_answers.journal.find("a")) == ([True], None, None)


def test_all_late_texts_share_one_look_into_the_journal(tmp_path):
    names = [f"t{number}" for number in range(40)]
    writer, text_answers, looks = JournalWriter(tmp_path), Answers(JournalReader(tmp_path)), []
    refresh = text_answers.journal.refresh

    def counted():
        looks.append(1)
        return refresh()

    text_answers.journal.refresh = counted

    def write_all():
        for name in names:
            writer.open(f"{name}-12345678", header(horizon=1), has_stops=False)
            writer.steps([(f"{name}-12345678", step(0, 5))])

    async def read(name):
        outputs, _ = outputs_of([5])
        return [output async for output in text_answers.held(outputs, name, is_delta=True)]

    async def read_all():
        asyncio.get_running_loop().call_later(0.02, write_all)
        return await asyncio.gather(*map(read, names))

    assert all(len(got) == 1 for got in asyncio.run(read_all()))
    assert len(looks) < len(names)
    writer.close()


def test_each_token_of_a_text_is_compared_once_and_its_figures_are_summed_once(tmp_path):
    num_tokens, compared, summed = 400, [], []
    writer, text_answers = JournalWriter(tmp_path), Answers(JournalReader(tmp_path))
    writer.open("a-12345678", header(horizon=num_tokens), has_stops=False)
    write(writer, *[9] * num_tokens)
    holds, answer = text_answers.journal.holds, text_answers.journal.answer

    def counted(name, token_ids, start):
        compared.append(len(token_ids) if text_answers.journal.find(name) else 0)
        return holds(name, token_ids, start)

    text_answers.journal.holds = counted
    text_answers.journal.answer = lambda *asked: (summed.append(1), answer(*asked))[1]
    outputs, _ = outputs_of(*[[9]] * num_tokens)

    async def read():
        return [output async for output in text_answers.held(outputs, "a", is_delta=True)]

    assert len(asyncio.run(read())) == num_tokens
    assert (sum(compared), sum(summed)) == (num_tokens, 1)
    writer.close()


def test_a_stream_whose_journal_is_on_time_never_waits(journal, monkeypatch):
    writer, text_answers = journal
    waits, sleep = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda s, *more: (waits.append(s), sleep(s, *more))[1])

    async def generate():
        for place in range(8):
            write(writer, 9, start=place)
            text = SimpleNamespace(token_ids=[9])
            yield SimpleNamespace(outputs=[text], finished=place == 7)

    async def read():
        return [output async for output in text_answers.held(generate(), "a", is_delta=True)]

    assert len(asyncio.run(read())) == 8
    assert sum(waits) == 0.0


@pytest.fixture
def settled():
    """(what was settled, Answers' arguments of accounts that note it)"""
    nats: dict[str, float | None] = {}
    return nats, nats.__setitem__


async def read_all(text_answers, outputs, name="a", **options):
    return [output async for output in text_answers.held(outputs, name, is_delta=True, **options)]


def test_a_text_draws_nothing_that_no_account_has_reserved(journal, settled):
    _, text_answers = journal
    text_answers.settle = settled[1]
    for reserved in ({}, {"a": 1.0}):
        text_answers.reserve(reserved)
        outputs, closed = outputs_of([5])
        with pytest.raises(Unreserved, match=r"a may spend 2 nats, and (None|1\.0) are reserved"):
            asyncio.run(read_all(text_answers, outputs, most=2.0))
        assert closed == []  # it was never asked for anything
    text_answers.release(["a", "b"])
    assert settled[0] == {"a": 0.0}


def test_a_whole_text_is_settled_as_it_ends_and_others_once_the_engine_has_noted_all(
    journal, settled
):
    writer, text_answers = journal
    text_answers.settle, noted = settled[1], []

    async def note():
        noted.append(dict(settled[0]))
        write(writer, 7, start=2)  # a step that was drawn as the client left

    text_answers.noted = note
    writer.open("b-12345678", header(horizon=2), has_stops=False)
    writer.steps([("b-12345678", step(place, 5)) for place in range(2)])
    text_answers.reserve({"a": 8.0, "b": 2.0})

    async def read():
        write(writer, 5, 2)
        outputs, closed = outputs_of([5, 2], [9])
        texts = text_answers.held(outputs, "a", is_delta=True, most=8.0)
        await anext(texts)
        await texts.aclose()
        assert closed == [True] and settled[0] == {}
        await read_all(text_answers, outputs_of([5, 5])[0], "b", most=2.0)
        await text_answers.end(0.0)

    asyncio.run(read())
    assert noted == [{"b": 1.0}]
    assert settled[0] == {"b": 1.0, "a": 1.5}
    text_answers.release(["a", "b"])
    assert settled[0] == {"b": 1.0, "a": 1.5}  # each once


def test_what_an_engine_that_is_gone_drew_is_left_to_the_next_server(journal, settled):
    writer, text_answers = journal
    text_answers.settle = settled[1]

    async def note():
        raise RuntimeError("the engine is dead")

    text_answers.noted = note
    text_answers.reserve({"a": 8.0})

    async def read():
        write(writer, 5)
        texts = text_answers.held(outputs_of([5], [9])[0], "a", is_delta=True, most=8.0)
        await anext(texts)
        await texts.aclose()
        await text_answers.end(0.0)

    asyncio.run(read())
    assert settled[0] == {}


def test_at_the_servers_end_texts_go_on_for_a_while_and_then_end_with_an_error(journal):
    writer, text_answers = journal
    aborted = asyncio.Event()

    async def generate():
        write(writer, 5)
        yield SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[5], finish_reason=None)], finished=False
        )
        await aborted.wait()
        text = SimpleNamespace(token_ids=[], finish_reason="abort")
        yield SimpleNamespace(outputs=[text], finished=True)

    async def abort(names):
        assert names == ["a"]
        aborted.set()

    async def read():
        reading = asyncio.ensure_future(read_all(text_answers, generate()))
        await asyncio.sleep(0.02)
        start = asyncio.get_running_loop().time()
        await text_answers.end(0.1, abort)
        assert 0.1 <= asyncio.get_running_loop().time() - start < 3.0
        with pytest.raises(ShutDown):
            await reading

    asyncio.run(read())
    assert text_answers.is_ending


def test_texts_are_counted_with_their_nats(journal):
    writer, text_answers = journal
    write(writer, *[5] * 8)
    asyncio.run(read_all(text_answers, outputs_of([5] * 8)[0]))
    page = text_answers.metrics.page().decode()
    for line in (
        'anchored_texts_total{finish_reason="length"} 1.0',
        "anchored_symbols_total 8.0",
        "anchored_spent_nats_total 4.0",
        "anchored_debt_nats_count 1.0",
        "anchored_uncertified_texts_total 1.0",  # the bound of its header is 3.75 nats
    ):
        assert line in page.splitlines(), line


def test_a_request_that_is_on_its_way_to_the_engine_as_the_server_ends_is_settled_too(
    journal, settled
):
    _, text_answers = journal
    text_answers.settle, aborted = settled[1], []

    async def abort(names):
        aborted.extend(names)

    async def request():
        with text_answers.request():
            await asyncio.sleep(0.1)  # its account answers after the signal
            text_answers.reserve({"late": 2.0})
            try:
                with pytest.raises(ShutDown):
                    await read_all(text_answers, outputs_of([5])[0], "late", most=2.0)
            finally:
                text_answers.release(["late"])

    async def both():
        asking = asyncio.ensure_future(request())
        await asyncio.sleep(0)
        await text_answers.end(0.0, abort)
        assert asking.done() and settled[0] == {"late": 0.0}
        await asking

    asyncio.run(both())
    assert aborted == []
