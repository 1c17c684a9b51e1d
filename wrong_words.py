"""Words of a command line that no program can follow, each refused in one line."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn


class Refused(Exception):
    """Options or values that are wrong whatever is on the disk, in one line. It is no ValueError,
    which tyro would take for one of its values."""


def boxes_refused() -> AbstractContextManager[None]:
    """A context in which words that tyro would draw a box of raise Refused.

    Its hook has a private name: a version of tyro without one draws its boxes, and ends with the
    same status.
    """
    import tyro

    errors = getattr(tyro, "_errors", None)
    return nullcontext() if errors is None else errors.on_parse_error(_refuse_event)


def _refuse_event(event: Any) -> None:
    """Raise Refused for words that tyro cannot take; an event of an unknown kind is left to it."""
    argument = getattr(event, "argument", None)
    flag = argument.lowered.name_or_flags[-1] if argument else ""
    match type(event).__name__:
        case "InvalidChoice":
            raise Refused(f"{flag} must be one of {', '.join(event.choices)}, got {event.value!r}")
        case "BadValue":
            raise Refused(f"{flag} needs a value")
        case "InstantiationFailure":
            raise Refused(" ".join([flag, *str(event.message).split()]).strip())
        case "UnrecognizedArgs":
            raise Refused(f"there is no option {event.tokens[0]}; {event.prog} --help lists all")


def refuse_message(parser: object, message: str) -> NoReturn:
    """Raise Refused, as `error` of a parser of argparse that is another library's."""
    raise Refused(" ".join(message.split()))
