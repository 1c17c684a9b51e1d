"""The demonstration's page, in a browser, on the quickstart's pair."""

import time

import pytest
from browser import CHROMIUM, Page, browser_page
from real_pair import needs_real_model, real_folders

from anchored import Anchored, Decoder, Ledger, ModelPair, SafeOnly
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    needs_real_model,
    pytest.mark.filterwarnings("default"),  # gradio's use of pandas is deprecated by it
]
(PROMPT,) = cut_prompts(read_works()[:1])
"""What the page offers first."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> ModelPair:
    return ModelPair.from_pretrained(*real_folders(tmp_path_factory.mktemp("real")))


def wait_for(page: Page, words: str) -> None:
    """Wait until the page says so."""
    deadline = time.monotonic() + 240  # some seconds of work, on a machine that is at other work
    while words not in (text := page.value("document.body.innerText")):
        assert time.monotonic() < deadline, text
        time.sleep(0.5)


def press(page: Page, name: str) -> None:
    page.value(
        f"[...document.querySelectorAll('button')].find((b) => b.innerText.trim() == {name!r})"
        ".click()"
    )


def test_a_page_streams_three_texts_and_verifies_the_ledger(pair, tmp_path):
    from anchored.tools.demo import page as demo_page  # gradio is imported by slow tests alone

    blocks = demo_page(pair, tmp_path)
    _, address, _ = blocks.launch(
        server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, allowed_paths=[str(tmp_path)]
    )
    try:
        with browser_page(address, tmp_path / "profile") as page:
            wait_for(page, "Generate")
            press(page, "Verify its ledger")
            wait_for(page, "There is no ledger yet")
            press(page, "Generate")
            wait_for(page, "nats of at most")
            press(page, "Verify its ledger")
            wait_for(page, "tokens reproduced")
            shown = page.value("document.body.innerText")
            assert page.messages == []
            assert all(each.startswith(address) for each in page.requests)
    finally:
        blocks.close()
    (file,) = tmp_path.glob("*/ledger.jsonl")
    ledger = Ledger.load(file)
    for rule in (SafeOnly(), Anchored(k=1.0)):
        (result,) = Decoder(pair, rule).generate(PROMPT.prompt, max_new_tokens=64)
        assert "".join(result.text.split()) in "".join(shown.split())
    assert result.ledger.token_ids == ledger.token_ids


def test_a_question_is_asked_as_a_chat(pair, tmp_path):
    from anchored.tools.demo import RULES, decode

    asked = ("Who keeps the lamp?", True, "", 4.0, 8, next(iter(RULES)), None)  # an empty seed
    *_, last = decode(pair, tmp_path, *asked)
    (result,) = Decoder(pair, Anchored(k=4.0)).generate(
        messages=[{"role": "user", "content": asked[0]}], max_new_tokens=8
    )
    assert "".join(text for text, _ in last[1]) == result.text
