"""What a launched run shows while it trains."""

import io
import os
import sys

import pytest

from anchored.pretrain.launch import _forward, launch

BAR = (
    "run: 10%|\u2588 |\rrun: 55%|\u2588\u2588|\rrun: 100%|\u2588\u2588|\nanchored.pretrain: done\n"
)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_sees_the_bar_move_and_a_log_file_gets_finished_lines_only(
    monkeypatch, is_terminal
):
    screen = io.StringIO()
    screen.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("anchored.pretrain.launch._READ_BYTES", 7)  # cuts characters in two
    source, sink = os.pipe()
    os.write(sink, BAR.encode())
    os.close(sink)
    with os.fdopen(source, "rb") as output:
        tail = _forward(output)
    assert tail == "run: 100%|\u2588\u2588|\nanchored.pretrain: done"
    assert screen.getvalue() == (BAR if is_terminal else f"{tail}\n")


def test_no_processes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="num_processes must be at least 1, got 0"):
        launch(tmp_path / "run.toml", num_processes=0)
