"""Frames of server-sent events, by which both servers stream."""

import json
from typing import Any, Final

EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "
DONE: Final = _DATA + b"[DONE]" + EVENT_END
"""Ends a stream."""


def sent_event(chunk: dict[str, Any]) -> bytes:
    """The frame of a chunk."""
    return _DATA + json.dumps(chunk).encode() + EVENT_END


def chunk_of(event: bytes) -> dict[str, Any] | None:
    """The chunk of a frame; None for one that holds no object, as the last one."""
    content = event.removeprefix(_DATA)
    if content == event or not content.startswith(b"{"):
        return None
    chunk: dict[str, Any] = json.loads(content)
    return chunk
