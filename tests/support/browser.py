"""A page as Chromium shows it, headless, by its debugging protocol over a pipe: no driver, no port.
What a page logs, and what its policy refuses, is kept."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--window-size=1200,900", "--remote-debugging-pipe"),
)


class Page:
    """An open page."""

    def __init__(self, to_browser: BinaryIO, from_browser: BinaryIO, address: str) -> None:
        """Show a page until everything of it is loaded."""
        self._to_browser, self._from_browser = to_browser, from_browser
        self._session: dict[str, str] = {}
        self._count = 0
        self._is_loaded = False
        self.messages: list[str] = []
        """What the console holds: errors, warnings, exceptions, refusals of the policy."""
        self.requests: list[str] = []
        """Addresses that were asked for, those of data: aside."""
        target = self.send("Target.createTarget", url="about:blank")
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.navigate", url=address)
        while not self._is_loaded:
            self._note(self._next())

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        self._to_browser.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is, as JSON."""
        evaluation = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in evaluation, evaluation
        return evaluation["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        """Show the page in a window of so many pixels; a narrow one is a phone's."""
        look = {"deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **look)

    def _next(self) -> dict[str, Any]:
        whole = bytearray()
        while (byte := self._from_browser.read(1)) != b"\0":
            assert byte, "the browser has ended"
            whole += byte
        return dict(json.loads(whole))

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._is_loaded |= method == "Page.loadEventFired"
        if method == "Log.entryAdded":
            self.messages.append(str(parameters["entry"]["text"]))
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.messages.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            address = str(parameters["request"]["url"])
            self.requests += [] if address.startswith("data:") else [address]


@contextmanager
def browser_page(address: str, profile: Path) -> Iterator[Page]:
    """A page of a new browser, with everything loaded; profile: a folder for its files."""
    command_fd, to_browser = os.pipe()
    from_browser, answer_fd = os.pipe()
    # The browser reads its commands at 3 and answers at 4, whatever the numbers are here.
    line = f'exec "$@" 3<&{command_fd} 4>&{answer_fd}'
    words = ["timeout", "600", str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
    browser = subprocess.Popen(
        ["bash", "-c", line, "browser", *words],
        pass_fds=(command_fd, answer_fd),
        stderr=subprocess.DEVNULL,
    )
    os.close(command_fd)
    os.close(answer_fd)
    try:
        with open(to_browser, "wb", buffering=0) as to, open(from_browser, "rb") as answers:
            yield Page(to, answers, address)
    finally:
        browser.wait()  # it ends when its pipe does
