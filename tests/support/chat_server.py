"""A server on this machine, OpenAI-compatible unless the script says otherwise."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import HANG_S

Body = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """One scripted reply: the text of a completion, or a status with what belongs to it."""

    text: str | None = ""
    status: int = 200
    raw: str | None = None
    """Sent as it is, in place of a completion."""
    when: threading.Event | None = None
    """Sent when this is set."""


@dataclass
class ChatServer:
    """The requests that came in, and the replies to them."""

    script: Callable[[Body], Say]
    url: str = ""
    requests: list[Body] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    keys: set[str | None] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, key: str | None, body: Body) -> Say:
        with self._guard:
            self.requests.append(body)
            self.paths[path] += 1
            self.keys.add(key)
            return self.script(body)


def in_turn(says: Iterable[Say]) -> Callable[[Body], Say]:
    """One reply after another, whatever is asked; the last one for ever."""
    left = list(says)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]


def user_text(body: Body) -> str:
    """The text of the user's message in a request."""
    return str(body["messages"][-1]["content"])


@contextmanager
def chat_server(script: Callable[[Body], Say]) -> Iterator[ChatServer]:
    """A server on a free port, until the context ends."""
    state = ChatServer(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = self.headers["Authorization"] or self.headers["X-API-KEY"]
            say = state.answer(self.path, key, body)
            if say.when is not None:
                say.when.wait(HANG_S)
            payload = (_completion(say.text) if say.raw is None else say.raw).encode()
            with suppress(OSError):  # of a client that did not wait
                self.send_response(say.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.send_header("retry-after-ms", "1")  # clients would wait half a second and more
                self.end_headers()
                self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(text: str | None) -> str:
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage})
