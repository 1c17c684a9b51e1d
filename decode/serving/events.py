"""Frames of server-sent events, by which texts are streamed."""

import json
from typing import Any, Final

EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "
DONE: Final = _DATA + b"[DONE]" + EVENT_END
"""Ends a stream."""


def sent_event(chunk: dict[str, Any]) -> bytes:
    """The frame of a chunk."""
    return _DATA + json.dumps(chunk).encode() + EVENT_END
