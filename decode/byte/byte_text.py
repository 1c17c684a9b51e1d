"""Characters of a growing list of bytes."""

import codecs


class ByteText:
    """Decodes UTF-8; each ill-formed piece becomes one replacement character, nothing is lost."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, symbol: int) -> str:
        """The characters that this byte completes, "" if none."""
        return self._decoder.decode(bytes([symbol]))

    def finish(self) -> str:
        """The replacement character for a character that was not completed, else ""."""
        return self._decoder.decode(b"", final=True)
