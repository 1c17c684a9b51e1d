"""A client of a scripted server, for the judges."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Say, chat_server, in_turn

from anchored.eval.paid_requests import PaidRequests


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """Says "well" until it has another script."""
    with chat_server(in_turn([Say("well")])) as scripted_server:
        yield scripted_server


@pytest.fixture
def chat_client(server: ChatServer, tmp_path: Path) -> Callable[..., Any]:
    """Makes a client of the server, which keeps answers in the test's folder; needs openai."""
    pytest.importorskip("openai")
    from anchored.eval.quality.chat_client import ChatClient, Endpoint

    def make(*, key: str | None = None, endpoint: dict[str, Any] | None = None, **options: Any):
        about = {"base_url": server.url, "price_in": 2.0, "price_out": 8.0, **(endpoint or {})}
        served = Endpoint(model="judge", **about)
        return ChatClient(served, PaidRequests(tmp_path), api_key=key, **options)

    return make
