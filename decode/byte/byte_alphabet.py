"""The printable characters in which byte-level BPE vocabularies write bytes."""

PRINTABLE_BYTES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_characters() -> list[str]:
    """The character of each byte 0..255: itself where Latin-1 prints it, else chr(256 + n).

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", encoder.
    """
    characters = {byte: chr(byte) for byte in PRINTABLE_BYTES}
    for byte in range(256):
        characters.setdefault(byte, chr(256 + len(characters) - len(PRINTABLE_BYTES)))
    return [characters[byte] for byte in range(256)]


BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(byte_characters())}


def token_bytes(token: str) -> bytes:
    """The bytes that a vocabulary entry stands for. Raises ValueError outside the alphabet."""
    try:
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, token))
    except KeyError as error:
        raise ValueError(
            f"vocabulary entry {token!r} is not written in the byte-level alphabet"
        ) from error
