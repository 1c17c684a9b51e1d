"""Many clients of a server at once: plain, streaming, leaving midway, and asking for nonsense."""

import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from waiting import HANG_S

NUM_CLIENTS = 24
KINDS = ("plain", "stream", "stream", "leaves", "chat", "bad")

BAD: Sequence[Any] = (
    {"prompt": "salt", "anchored": {"k": -1.0}},
    {"prompt": "salt", "anchored": {"kk": 1.0}},
    {"prompt": "salt", "n": 300},
    {"prompt": "salt", "logit_bias": {"5": 1.0}},
    {"prompt": "salt", "temperature": "hot"},
    {"prompt": "salt", "max_tokens": 10**9},
    {"prompt": [1, 10**7]},
    {"prompt": ""},
    {"prompt": "salt", "stop": "a<|turn|>"},
    b"{",
    b"[" * 50_000,
    b'{"prompt": NaN}',
)


@dataclass(kw_only=True)
class Asked:
    """One request, and what came back."""

    kind: str
    body: Any
    status: int = 0
    answer_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    """The figures of a text that has ended."""


def mixed(
    count: int,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    seed: int = 0,
    divergences: Sequence[str] = (),
) -> list[Asked]:
    """Requests of all kinds, the same ones every time; divergences: that some of them ask for."""
    rng, asked = random.Random(seed), []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        if kind == "bad":
            asked.append(Asked(kind=kind, body=BAD[number // len(KINDS) % len(BAD)]))
            continue
        prompt = rng.choice(prompts)
        body: dict[str, Any] = {"model": "anchored", "return_token_ids": True}
        is_chat = kind == "chat"
        body |= (
            {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        )
        body["max_tokens"] = max_tokens if kind == "leaves" else rng.randint(1, max_tokens)
        body["stream"] = kind in ("stream", "leaves") or (is_chat and rng.random() < 0.5)
        body["temperature"] = rng.choice([0.7, 1.0, 1.3])
        body |= rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"repetition_penalty": 1.2}])
        body |= {"stop": ["e"]} if rng.random() < 0.2 else {}
        nats = rng.choice([{}, {"k": 0.0}, {"k": 0.3}, {"k": 3.0}, {"K": 12.0}, {"bank": 1.0}])
        divergence = rng.choice([{}, {}, *({"divergence": name} for name in divergences)])
        body["anchored"] = {"seed": rng.getrandbits(40), **nats, **divergence}
        asked.append(Asked(kind=kind, body=body))
    return asked


def sent(
    address: str,
    requests: Sequence[Asked],
    after_each: Callable[[int], None] = lambda count: None,
    key: str = "-",
) -> None:
    """Send them, NUM_CLIENTS at a time; what comes back is noted in each.

    after_each: is called with the number of those that are over. A server that goes away leaves
    status 0, or the tokens that came until then.
    """
    over = 0

    def one(asked: Asked) -> None:
        nonlocal over
        with suppress(httpx.HTTPError):
            _ask(address, asked, key)
        over += 1
        after_each(over)

    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        list(threads.map(one, requests))


def _ask(address: str, asked: Asked, key: str) -> None:
    is_chat = asked.kind == "chat"
    url = f"{address}/v1/{'chat/' if is_chat else ''}completions"
    content = asked.body if isinstance(asked.body, bytes) else json.dumps(asked.body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with httpx.stream("POST", url, content=content, headers=headers, timeout=HANG_S) as response:
        asked.status = response.status_code
        if asked.kind == "bad" or response.status_code != 200:
            response.read()
            return
        if not asked.body["stream"]:
            response.read()
            _note(asked, response.json())
            return
        for number, line in enumerate(line for line in response.iter_lines() if line):
            if line == "data: [DONE]":
                return
            _note(asked, json.loads(line.removeprefix("data: ")))
            if asked.kind == "leaves" and number == 2:
                return


def _note(asked: Asked, part: dict[str, Any]) -> None:
    if "error" in part:
        return
    asked.answer_id = part["id"]
    for choice in part["choices"]:
        asked.token_ids += choice.get("token_ids") or []
        said = choice.get("delta", choice.get("message", {}))
        asked.text += choice.get("text", "") + (said.get("content") or "")
        asked.figures = choice.get("anchored", asked.figures)
