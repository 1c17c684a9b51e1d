"""A client of the scripted server, for the judges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer

from anchored.eval.paid_requests import PaidRequests


@pytest.fixture
def chat_client() -> Callable[..., Any]:
    """Makes a client of a server, which keeps answers in a folder; skips without openai."""
    pytest.importorskip("openai")
    from anchored.eval.quality.chat_client import ChatClient, Endpoint

    def make(
        server: ChatServer, folder: Path, *, key: str | None = None, **options: Any
    ) -> ChatClient:
        about = {"timeout_s": options.pop("timeout_s", 60.0), "price_in": 2.0, "price_out": 8.0}
        endpoint = Endpoint(model="judge", base_url=server.url, **about)
        return ChatClient(endpoint, PaidRequests(folder), api_key=key, **options)

    return make
