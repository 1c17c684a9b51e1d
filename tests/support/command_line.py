"""A command of `anchored` in this process."""

import pytest

from anchored.tools.cli import main


def run(capsys, *words: str, status: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a command, which ends with this exit status."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    out, err = capsys.readouterr()
    assert int(end.value.code or 0) == status, out + err
    return out, err


def refused(capsys, *words: str, status: int = 1) -> str:
    """The one line on stderr of a command that ends with this status."""
    out, err = run(capsys, *words, status=status)
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"anchored {words[0]}: ")
    return err
