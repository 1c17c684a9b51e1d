"""A command of `anchored` in this process."""

import pytest

from anchored.tools.cli import main


def with_options(words: list[str], more: list[str]) -> list[str]:
    """The words with these options in place of their own, as each may be given once."""
    given = {word for word in more if word.startswith("--")}
    kept, is_kept = [], True
    for word in words:
        is_kept = word not in given if word.startswith("--") else is_kept
        kept += [word] if is_kept else []
    return [*kept, *more]


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
