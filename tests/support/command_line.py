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
