"""Messages of ASGI: a request's body within a limit, and answers that refuse it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

REQUEST_ID: Final = b"x-request-id"

MAX_BODY: Final = 8 << 20
"""Bytes of a request's body: two million tokens of text, more than a context of today holds."""

BODY_S: Final = 60.0
"""Seconds that a body may take to come: 8 MiB by a megabit a second."""

ERROR_TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "BodyTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
"""Types of errors by status, as OpenAI's clients name their exceptions."""

LONGEST_MESSAGE: Final = 1000
"""Most characters of an error's message: what a client sent does not come back by the megabyte."""


class BodyTooLarge(ValueError):
    """A body beyond the limit; none of it was kept."""


class ClientGone(Exception):
    """The client left before its request was whole."""


async def body_of(scope: Message, receive: Receive, limit: int = MAX_BODY) -> bytes:
    """The body of a request; BodyTooLarge for more bytes, by its header before it is read, and
    TimeoutError for one that does not come within BODY_S."""
    refusal = f"the body must have at most {limit} bytes"
    if (length := header_of(scope, b"content-length")) and int(length) > limit:
        raise BodyTooLarge(f"{refusal}, got {int(length)}")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise BodyTooLarge(refusal)
                more = message.get("more_body", False)
    except TimeoutError:
        raise TimeoutError(f"the body did not come within {BODY_S:g} s") from None
    return b"".join(parts)


def header_of(scope: Message, name: bytes) -> bytes:
    """The value of a header of a request, b"" without it; the server has made names lower case."""
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


def with_length(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Headers of a message whose body this is."""
    kept = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def error_body(status: int, message: str, **more: Any) -> dict[str, Any]:
    """The object that an answer of this status has for its body. more: fields of the error."""
    if len(message) > LONGEST_MESSAGE:
        message = message[:LONGEST_MESSAGE] + "..."
    plain = {"message": message, "type": ERROR_TYPES[status], "param": None, "code": status}
    return {"error": {**plain, **more}}


async def refuse(
    send: Send,
    status: int,
    message: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    **more: Any,
) -> None:
    """Answer with an error. more: fields of it."""
    body = json.dumps(error_body(status, message, **more)).encode()
    headers = with_length([(b"content-type", b"application/json"), *headers], body)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "
DONE: Final = _DATA + b"[DONE]" + EVENT_END
"""Ends a stream."""


def sent_event(chunk: dict[str, Any]) -> bytes:
    """The frame of a chunk."""
    return _DATA + json.dumps(chunk).encode() + EVENT_END
