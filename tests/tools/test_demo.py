"""The demonstration's page, in a browser, on the quickstart's pair."""

import gc
import re
from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Page, browser_page
from real_pair import needs_real_model, real_folders
from waiting import until

from anchored import Decoder, Ledger, ModelPair, Pathwise, SafeOnly
from anchored.tools.commands.serving import DemoConfig
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    needs_real_model,
    pytest.mark.filterwarnings("default"),  # gradio's use of pandas is deprecated by it
]
(PROMPT,) = cut_prompts(read_works()[:1])
"""The page's first example."""
LARGEST_GAP = """Math.max(...[...document.querySelectorAll('.answer span')].map((token) =>
    parseFloat(getComputedStyle(token).paddingLeft) + parseFloat(getComputedStyle(token).marginLeft)
))"""
"""Pixels between a token and the one before, which are one word as often as not."""


@pytest.fixture(autouse=True)
def nothing_of_gradio_is_left() -> Iterator[None]:
    """It leaves event loops open, whose warnings would be another test's."""
    yield
    gc.collect()


def wait_for(page: Page, words: str) -> None:
    until(lambda: words in page.value("document.body.innerText"))


def press(page: Page, name: str) -> None:
    page.value(
        f"[...document.querySelectorAll('button')].find((b) => b.innerText.trim() == {name!r})"
        ".click()"
    )


def test_a_page_streams_three_texts_and_verifies_the_ledger(tmp_path):
    from anchored.tools import demo  # gradio is imported by slow tests alone

    folders = real_folders(tmp_path / "models")
    pair = ModelPair.from_pretrained(*folders)
    blocks = demo.page(pair, tmp_path)
    address = demo.serve(blocks, tmp_path, None, prevent_thread_lock=True)
    try:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match=f"^--port {port} cannot be used: Address already in use"):
            demo.run(DemoConfig(safe=folders[0], risky=folders[1], port=port))
        with browser_page(address, tmp_path / "profile") as page:
            wait_for(page, "nats of at most")  # of its first example, with which it begins
            press(page, "Verify the ledger of p*")
            wait_for(page, "tokens reproduced")
            shown = page.value("document.body.innerText")
            assert "Darker tokens spent more nats" in shown
            assert "times as likely as from the safe model" in shown
            assert re.search(r"recites the protected text with a chance of at most \d\.\de-", shown)
            shades = page.value("[...document.querySelectorAll('.answer .s6')].length")
            assert shades > 0 and page.value(LARGEST_GAP) == 0
            returned = page.value("[...document.querySelectorAll('.answer .returned')].length")
            assert returned > 0
            assert page.messages == []
            assert all(request.startswith(address) for request in page.requests)
    finally:
        blocks.close()
    (file,) = tmp_path.glob("*/ledger.jsonl")
    ledger = Ledger.load(file)
    for rule in (SafeOnly(), Pathwise()):
        (result,) = Decoder(pair, rule).generate(PROMPT.prompt, max_new_tokens=64)
        assert "".join(result.text.split()) in "".join(shown.split())
    assert result.ledger.token_ids == ledger.token_ids
