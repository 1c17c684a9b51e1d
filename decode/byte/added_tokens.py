"""Added tokens that stand for text: literal matches, cut out of a text before anything else."""

from collections.abc import Mapping

Remainders = tuple[bytes, ...]


class AddedTokens:
    """Leftmost-longest matching of literals, as a rule on two neighbouring tokens.

    A literal that lies inside one token, or begins in one and ends in the next, would have been cut
    out, so such tokens and pairs never occur; nor is a literal matched where a longer one fits.
    A literal spread over three or more ordinary tokens is not excluded: both readings then count.
    """

    def __init__(self, literals: Mapping[int, bytes]) -> None:
        """literals: bytes of each added token."""
        self.literals = dict(literals)
        self._remainders: dict[bytes, Remainders] = {}
        for text in literals.values():
            for length in range(1, len(text)):
                held = self._remainders.get(text[:length], ())
                self._remainders[text[:length]] = (*held, text[length:])
        self._longest = max(map(len, literals.values()), default=0)

    def __contains__(self, token: object) -> bool:
        return token in self.literals

    def occurs_in(self, text: bytes) -> bool:
        """Whether `text` contains a literal."""
        return any(literal in text for literal in self.literals.values())

    def banned_after(self, token: int, text: bytes) -> Remainders:
        """What the next token must not start with, behind `token` with bytes `text`."""
        if token in self.literals:
            return self._remainders.get(text, ())
        longest = min(len(text), self._longest - 1)
        ends = (text[len(text) - length :] for length in range(1, longest + 1))
        return tuple(rest for end in ends for rest in self._remainders.get(end, ()))
