"""What a token costs between the batch's thread and the socket does not grow with its text."""

import asyncio
import time
from types import SimpleNamespace

from anchored.decode.engine.request import Request
from anchored.decode.ledger import Ledger, LedgerHeader
from anchored.decode.serving.answers import COMPLETIONS, Answer, LogProbTexts
from anchored.decode.serving.batch_thread import _deliver
from anchored.decode.serving.endpoint import _Talk
from anchored.decode.serving.engine import Job, Update

ENDED = Ledger(
    header=LedgerHeader(
        rule="anchored",
        rule_settings={},
        sampling={},
        seed=1,
        prompt_token_ids=[1],
        stop_token_ids=[1],
        fingerprints={},
        dtype="float32",
        debt=0.0,
        k=1.0,
        K=1.0,
        horizon=1,
        bound=1.0,
    )
)


async def _cpu_s(num_tokens: int) -> float:
    """Seconds of CPU for one stream whose tokens come one by one."""
    job = Job(request=Request(prompt_token_ids=[1]), request_id="a", updates=asyncio.Queue())
    num_sent = 0

    async def send(message: dict) -> None:
        nonlocal num_sent
        num_sent += message.get("body", b"").count(b"data: ")

    texts = LogProbTexts(SimpleNamespace(name="byte"))  # of which nothing is told
    answer = Answer(form=COMPLETIONS, answer_id="cmpl-0", model="anchored", texts=texts)
    talk = asyncio.ensure_future(_Talk(answer, [job], send).stream())
    start = time.thread_time()
    for _ in range(num_tokens):
        _deliver([(job, Update(text=" word", token_ids=[5]))])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    _deliver([(job, Update(ledger=ENDED))])
    await talk
    assert num_sent > num_tokens  # none was joined with another: each was sent by itself
    return time.thread_time() - start


def test_the_last_tokens_of_a_long_text_cost_what_the_first_do():
    asyncio.run(_cpu_s(500))  # imports and caches
    short = min(asyncio.run(_cpu_s(1_000)) for _ in range(3)) / 1_000
    long = min(asyncio.run(_cpu_s(16_000)) for _ in range(2)) / 16_000
    assert long < 4.0 * short  # quadratic, it would be 16 times
