"""A page as Chromium shows it, headless, by its debugging protocol over a pipe: no driver, no port.

What a page logs, and what its policy refuses, is kept; scripts of the test run beside the page's
own, which has none.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
ANSWER_S = 120.0
"""How long an answer may take, on a machine that is at other work."""


@dataclass
class Page:
    """An open page."""

    _to_browser: int
    _from_browser: int
    messages: list[str] = field(default_factory=list)
    """What the console holds: errors, warnings, exceptions, refusals of the policy."""
    requests: list[str] = field(default_factory=list)
    """Addresses that were asked for, those of data: aside."""
    _session: str = ""
    _count: int = 0
    _unread: bytes = b""
    _seen: set[str] = field(default_factory=set)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command of the protocol."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        payload = json.dumps(message).encode() + b"\0"
        while payload:
            payload = payload[os.write(self._to_browser, payload) :]
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, address: str) -> None:
        """Show a page until everything of it is loaded."""
        target = self.send("Target.createTarget", url="about:blank")
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._seen:
            self._note(self._next())

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is, as JSON."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The page's beginning as a PNG."""
        found = self.send("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._unread:
            readable, _, _ = select.select([self._from_browser], [], [], 1.0)
            assert readable or time.monotonic() < deadline, "the browser does not answer"
            if readable:
                read = os.read(self._from_browser, 1 << 20)
                assert read, "the browser has ended"
                self._unread += read
        whole, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(whole))

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._seen.add(method)
        if method == "Log.entryAdded":
            self.messages.append(str(parameters["entry"]["text"]))
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.messages.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            address = str(parameters["request"]["url"])
            self.requests += [] if address.startswith("data:") else [address]


@contextmanager
def browser_page(address: str, profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, with everything loaded; profile: a folder for its files."""
    own_read, to_browser = os.pipe()
    from_browser, own_write = os.pipe()
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage"
    words = [str(CHROMIUM), *flags.split(), "--window-size=1200,900", "--remote-debugging-pipe"]
    words.append(f"--user-data-dir={profile}")
    # The browser reads its commands at 3 and answers at 4, whatever the numbers are here.
    line = f'exec "$@" 3<&{own_read} 4>&{own_write}'
    log = (profile.parent / "browser.log").open("wb")
    browser = subprocess.Popen(
        ["bash", "-c", line, "browser", *words],
        pass_fds=(own_read, own_write),
        stdout=log,
        stderr=log,
    )
    os.close(own_read)
    os.close(own_write)
    page = Page(to_browser, from_browser)
    try:
        page.open(address)
        yield page
    finally:
        os.close(to_browser)  # at which it ends
        os.close(from_browser)
        try:
            browser.wait(30)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
        log.close()
