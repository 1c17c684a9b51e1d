"""Characters by what a pretokenizer's regex can tell apart."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .utf8 import completions

NUM_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
# Unicode White_Space: what \s means to Oniguruma, and less than str.isspace.
WHITE_SPACE = frozenset(
    chain(
        range(0x09, 0x0E),
        (0x20, 0x85, 0xA0, 0x1680),
        range(0x2000, 0x200B),
        (0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
    )
)


class CharacterClasses:
    """A partition of the code points; class 0 is what no text holds (surrogates, overlong forms).

    `names`: the classes in order; `of`: (0x110000,) uint8, the class of each code point.
    """

    def __init__(self, classify: Callable[[str, str], str]) -> None:
        """classify: name of the class of a character, given it and its Unicode category."""
        found = np.array([classify(*pair) for pair in _categories()])
        names, of = np.unique(found, return_inverse=True)
        self.names = ["", *names.tolist()]
        self.of = np.zeros(NUM_CODE_POINTS, np.uint8)
        self.of[_defined()] = of + 1
        self.of[_undefined()] = self.names.index(classify("\U0010ffff", "Cn"))
        self._completions: dict[bytes, frozenset[int]] = {}

    def index(self, name: str) -> int:
        """Number of a named class."""
        return self.names.index(name)

    def of_text(self, text: str) -> NDArray[np.uint8]:
        """Class of each character, (len(text),) uint8."""
        return self.of[np.frombuffer(text.encode("utf-32-le"), np.uint32)]

    def of_partial(self, partial: bytes) -> frozenset[int]:
        """Classes of the characters whose UTF-8 form starts with `partial`."""
        if partial not in self._completions:
            found = {
                int(name) for part in completions(partial) for name in np.unique(self.of[part])
            }
            self._completions[partial] = frozenset(found - {0})
        return self._completions[partial]


@lru_cache(maxsize=1)
def _categories() -> list[tuple[str, str]]:
    characters = map(chr, _defined().tolist())
    return [(character, unicodedata.category(character)) for character in characters]


@lru_cache(maxsize=1)
def _defined() -> NDArray[np.int64]:
    """Code points with a category of their own in planes 0 to 3 and 14."""
    candidates = [*range(0x40000), *range(0xE0000, 0xE1000)]
    return np.array(
        [n for n in candidates if unicodedata.category(chr(n)) not in ("Cn", "Cs", "Co")]
    )


def _undefined() -> NDArray[np.bool_]:
    mask = np.ones(NUM_CODE_POINTS, np.bool_)
    mask[_defined()] = False
    mask[SURROGATES.start : SURROGATES.stop] = False
    return mask
