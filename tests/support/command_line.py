"""A command of `anchored` in this process."""

from anchored.tools.cli import main


def run(capsys, *words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    try:
        main(list(words))
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *words: str) -> str:
    """The one line on stderr of a command that ends with status 1."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert err.startswith(f"anchored {words[0]}: ")
    return err
