"""Characters by what a pretokenizer's regex can tell apart."""

from collections.abc import Callable
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

from .utf8 import completions

NUM_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
CATEGORIES = ("Lu", "Lt", "Ll", "Lm", "Lo", "M", "N")
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
        """classify: name of the class of a character, given it and its category.

        Categories are those of CATEGORIES, "" for all others.
        """
        categories = _categories()
        found = np.array([classify(c, categories.get(c, "")) for c in _characters()])
        names, of = np.unique(found, return_inverse=True)
        self.names = ["", *names.tolist()]
        rest = self.names.index(classify("\U0010ffff", ""))
        self.of = np.full(NUM_CODE_POINTS, rest, np.uint8)
        self.of[SURROGATES.start : SURROGATES.stop] = 0
        self.of[np.frombuffer(_characters().encode("utf-32-le"), np.uint32)] = of + 1
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
def _characters() -> str:
    """Planes 0 to 3 and 14 without the surrogates: all that is assigned, private use aside."""
    spans = (range(SURROGATES.start), range(SURROGATES.stop, 0x40000), range(0xE0000, 0xE1000))
    return "".join(map(chr, chain(*spans)))


@lru_cache(maxsize=1)
def _categories() -> dict[str, str]:
    """Category of each letter, mark and number, as the pretokenizers' own regex engine has it.

    Python's table would differ from it by the version of Unicode: 9,392 letters with Python 3.11.
    """
    found: dict[str, str] = {}
    for name in CATEGORIES:
        others = normalizers.Replace(Regex(rf"\P{{{name}}}+"), "")
        found.update(dict.fromkeys(others.normalize_str(_characters()), name))
    return found
