"""Words of a command line that no program can follow, each refused in one line."""

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn


class Refused(Exception):
    """Options or values that are wrong whatever is on the disk, in one line. It is no ValueError,
    which tyro would take for one of its values."""


def boxes_refused() -> AbstractContextManager[None]:
    """What tyro would draw a box of raises Refused meanwhile.

    Its hook has a private name: a version of tyro without one draws its boxes, and ends with the
    same status.
    """
    import tyro

    errors = getattr(tyro, "_errors", None)
    return nullcontext() if errors is None else errors.on_parse_error(_refuse_event)


def _refuse_event(event: Any) -> None:
    """Raise Refused for words that tyro cannot take; an event of an unknown kind is left to it."""
    argument = getattr(event, "argument", None)
    flag = None if argument is None else _shown(argument)
    match type(event).__name__:
        case "InvalidChoice":
            choices = ", ".join(event.choices)
            raise Refused(f"{flag} must be one of {choices}, got {event.value!r}")
        case "BadValue":
            raise Refused(f"{flag} needs a value")
        case "InstantiationFailure":
            raise Refused(" ".join([*([flag] if flag else []), *str(event.message).split()]))
        case "UnrecognizedArgs":
            raise Refused(_stray(event.tokens, event.prog))
        case "MissingArgs":
            missing = [_shown(wanted.arg) for wanted in event.missing_arguments]
            if event.unrecognized_tokens:
                wanted = f"{missing[0]} {event.unrecognized_tokens[0]}" if len(missing) == 1 else ""
                raise Refused(_stray(event.unrecognized_tokens, event.prog, wanted))
            *more, last = missing
            needed = f"{', '.join(more)} and {last} are" if more else f"{last} is"
            raise Refused(f"{needed} needed; {event.prog} --help says more")


def _shown(argument: Any) -> str:
    """The option, or the name of a word without one, in capitals."""
    if argument.is_positional():
        return str(argument.field.intern_name).upper()
    return str(argument.lowered.name_or_flags[-1])


def _stray(words: list[str], prog: str, wanted: str = "") -> str:
    """What is said of words that no option takes."""
    if words[0].startswith("-"):
        return f"there is no option {words[0]}; {prog} --help lists all"
    hint = f"did you mean {wanted}?" if wanted else "quote a value that has spaces"
    return f"{words[0]!r} belongs to no option; {hint}"


@contextmanager
def argparse_refused() -> Iterator[None]:
    """Words that a parser of argparse, another library's, refuses meanwhile raise Refused."""
    before = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = _refuse_message  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.error = before  # type: ignore[method-assign]


def _refuse_message(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise Refused(" ".join(message.split()))
