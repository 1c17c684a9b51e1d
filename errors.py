"""The error of a request that fails, and errors of other libraries in one line."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONGEST_REASON: Final = 200
"""Characters of another library's reason: some take a paragraph."""


class AnchoredError(RuntimeError):
    """A request failed because of its input or the machine; the first line is the reason.

    Arguments that are wrong by themselves are ValueErrors; any other RuntimeError is a bug.
    """


@contextmanager
def in_one_line(failure: str) -> Iterator[None]:
    """Raise ValueError, in one line, for whatever a library raises: what failed, and the reason.

    It may be anything, such as a KeyError for a rotary embedding that transformers does not know,
    or an ImportError for an attention that is not installed.
    """
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        reason = f"{kind}: {error}" if isinstance(error, KeyError) else str(error) or kind
        raise ValueError(f"{failure}: {textwrap.shorten(reason, LONGEST_REASON)}") from error
