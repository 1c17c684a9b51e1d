"""A command of `anchored` in this process."""

from anchored.tools.cli import main


def with_options(words: list[str], more: list[str]) -> list[str]:
    """The words with these options in place of their own, as each may be given once."""
    given = {word for word in more if word.startswith("--")}
    kept, is_kept = [], True
    for word in words:
        is_kept = word not in given if word.startswith("--") else is_kept
        kept += [word] if is_kept else []
    return [*kept, *more]


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
