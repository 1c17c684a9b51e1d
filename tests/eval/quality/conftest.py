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

    def make(server: ChatServer, folder: Path, **options: Any) -> ChatClient:
        requests = PaidRequests(folder)
        endpoint = Endpoint(model="judge", base_url=server.url, timeout_s=60.0)
        return ChatClient(endpoint, requests, api_key=None, **options)

    return make
