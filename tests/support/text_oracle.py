"""Which token sequences occur in texts, and the bytes that follow: by the library's word.

Nothing is shared with decode/byte: bytes, borders and merges are asked of the libraries, and every
step is a forward by itself.
"""

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, product

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""The byte that each letter of a byte-level vocabulary means."""
END_SYMBOL = 256
# What makes a pretokenizer look back or ahead, all of it: apostrophe, letters of contractions in
# both cases (the long s folds to one), line ends, space.
HOLDING = tuple("'sStTmMdDrRvVeElL\u017f\n\r ")
# One of every other kind that no merge touches: letters of each case and of none, mark, number,
# white space, control character.
FRESH = tuple("\u0436\u0416\ud55c\u0900\u096b\u1680\x01")
# What else pretokenizers of several steps tell apart: other scripts, symbols of ASCII and not, CJK.
FRESH_OF_STEPS = tuple("\u0639\u055a^\u0964\u8a02")
# For SmolLM2, whose merges join most first bytes: `Digits` and `ByteLevel` tell letters, numbers,
# white space and others apart.
FRESH_OF_SMOLLM2 = tuple("\u0180\u0181\u01bb\u0300\u07c0\u055a\x0c\x01")
CONTRACTED = tuple("".join(pair) for pair in (*product("rRvV", "eE"), *product("lL", "lL")))
RUNS = tuple("".join(run) for n in range(3) for run in product(*[" \t\n\r"] * n, "\n\r"))
WHITE = [chr(point) for point in range(0x10000) if chr(point).isspace()]
# Of the symbols that some steps name, one of each first two bytes.
SYMBOLS_OF_STEPS = [*"\u2018\u3001\u2026\u0964\u06d4\u060c\uff0c"]
CONTINUATIONS = range(0x80, 0xC0)
FEW = (0x80, 0x90, 0xA0, 0xBF)


class TextOracle:
    """A token sequence occurs if the tokenization of some complete text begins with it.

    That is asked of the library, for each token after a sequence that occurs and for these texts:

    - The bytes so far, where they are whole characters, and after them nothing, one of HOLDING or
      FRESH; after an apostrophe one of CONTRACTED, after white space one of RUNS.
    - A cut character finished in all ways (of two bytes that it lacks the last is one of FEW, of
      three the second is and the last is the first of FEW), and as every white space it may be and
      each of SYMBOLS_OF_STEPS.
    - After these, where it is white space or lacked one byte that some merge joins: HOLDING,
      FRESH, and for each byte that some merge joins, characters that begin with it; after white
      space one of RUNS.

    So nothing is taken to occur that does not. Nor is anything left out: what comes later moves a
    border, which depends on the kind of a character or two and on white space, or joins a merge,
    which a fresh character never does. Texts are those after the normalizer.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, has_steps: bool = False, fresh: Sequence[str] = FRESH
    ) -> None:
        """has_steps: whether its pretokenizer tells more kinds apart than those of one regex.
        fresh: a character of each kind that no merge touches."""
        content = json.loads(tokenizer.to_str())
        self._library = Tokenizer.from_str(json.dumps({**content, "normalizer": None}))
        special = {entry["id"] for entry in content["added_tokens"]}
        self.bytes_of = {
            token: bytes(BYTE_OF[letter] for letter in piece)
            for piece, token in tokenizer.get_vocab().items()
            if token not in special
        }
        self._writable = {byte for text in self.bytes_of.values() for byte in text}
        self._one = (*HOLDING, *fresh, *(FRESH_OF_STEPS if has_steps else ()))
        self._rare = [*WHITE, *SYMBOLS_OF_STEPS] if has_steps else WHITE
        first = {text.encode()[0] for text in set(self._one) - {*HOLDING}}
        assert not any(len(text) > 1 and first & set(text) for text in self.bytes_of.values())
        merged = {byte for text in self.bytes_of.values() if len(text) > 1 for byte in text}
        self._merged = merged.intersection(CONTINUATIONS)
        first = sorted(merged - {*CONTINUATIONS})
        self._after = [
            *self._one,
            *(text for byte in first for text in _first_texts(bytes([byte]))),
        ]
        self._followers: dict[tuple[int, ...], list[int]] = {}

    def text(self, path: Sequence[int]) -> bytes:
        """The bytes of a sequence."""
        return b"".join(self.bytes_of[token] for token in path)

    def may_end(self, path: tuple[int, ...]) -> bool:
        """Whether the sequence is the tokenization of a text."""
        return self.tokens(self.text(path)) == path

    def tokens(self, spelled: bytes) -> tuple[int, ...] | None:
        """The tokens of the text that is spelled so; None where there is none."""
        text = decoded(spelled)
        if text is None:
            return None
        return tuple(self._library.encode(text, add_special_tokens=False).ids)

    def followers(self, path: tuple[int, ...]) -> list[int]:
        """The tokens with which a sequence that occurs may go on."""
        if path not in self._followers:
            begun = self.text(path)
            tokens = [
                t for t, text in self.bytes_of.items() if num_missing(begun + text) is not None
            ]
            following: list[int] = []
            for tails in (_first_texts, self._more_texts):
                shown = self._shown(path, tokens, tails)
                following += shown
                tokens = [token for token in tokens if token not in shown]
            self._followers[path] = following
        return self._followers[path]

    def _shown(self, path, tokens, tails) -> set[int]:
        """The tokens after `path` with which some text begins."""
        tried = [
            (t, text)
            for t in tokens
            for text in tails(self.text((*path, t)))
            # The library leaves out bytes without a token: what is left is another text.
            if self._writable.issuperset(text.encode())
        ]
        texts = [text for _, text in tried]
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        pairs = zip(tried, encodings, strict=True)
        length = len(path) + 1
        return {t for (t, _), encoding in pairs if tuple(encoding.ids[:length]) == (*path, t)}

    def _more_texts(self, text: bytes) -> list[str]:
        """All that is tried but the first texts."""
        missing = num_missing(text)
        if not missing:
            whole = text.decode()
            tails = [
                *self._one,
                *(CONTRACTED if whole[-1:] == "'" else RUNS if whole[-1:].isspace() else ()),
            ]
            return [whole + tail for tail in tails]
        rare = [begun for letter in self._rare if (begun := _completed(text, letter, missing))]
        white = [begun for begun in rare if begun[-1] in WHITE]
        merged = _wholes(text, [sorted(self._merged)]) if missing == 1 else []
        every = _wholes(text, [CONTINUATIONS, FEW, FEW[:1]][:missing])
        after = product(white, RUNS), product([*rare, *merged], self._after)
        return [*every, *rare, *map("".join, chain(*after))]


def _first_texts(text: bytes) -> list[str]:
    """Texts that begin so and are the likeliest to show it."""
    missing = num_missing(text)
    return _wholes(text, [FEW, FEW[:1], FEW[:1]][:missing]) if missing else [text.decode()]


def _wholes(text: bytes, choices: Sequence[Sequence[int]]) -> list[str]:
    """The texts that bytes complete of which each is one of its choices."""
    texts = (decoded(text + bytes(end)) for end in product(*choices))
    return [whole for whole in texts if whole is not None]


def _completed(text: bytes, letter: str, missing: int) -> str:
    """The text with the character at its end completed to `letter`; "" if it begins otherwise."""
    form = letter.encode()
    begun = form[: len(form) - missing]
    return decoded(text + form[len(begun) :]) or "" if begun and text.endswith(begun) else ""


class OracleDistributions:
    """Sums over all sequences that occur, of steps that are plain forwards: what the next byte is.

    A step is the model's distribution over the tokens that may follow and the end, renormalized.
    """

    def __init__(self, oracle: TextOracle, model, start: Sequence[int], end_id: int) -> None:
        self.oracle, self._model, self._start, self._end_id = oracle, model, start, end_id
        self._steps: dict[tuple[int, ...], dict[int, float]] = {}

    def next_symbol(self, text: bytes) -> np.ndarray:
        """(257,) log q(x | text), -inf where nothing goes on so."""
        masses = np.full(257, -math.inf)
        for path, log_mass in self._paths(text):
            held = self.oracle.text(path)
            for token, step in self._step(path).items():
                if token == self._end_id:
                    symbol = END_SYMBOL if held == text else None
                else:
                    longer = held + self.oracle.bytes_of[token]
                    goes_on = longer.startswith(text) and longer != text
                    symbol = longer[len(text)] if goes_on else None
                if symbol is not None:
                    masses[symbol] = np.logaddexp(masses[symbol], log_mass + step)
        return masses - np.logaddexp.reduce(masses)

    def _paths(self, text: bytes) -> Iterable[tuple[tuple[int, ...], float]]:
        """The sequences that `text` begins with, and their log-probabilities."""
        unseen: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        while unseen:
            path, log_mass = unseen.pop()
            yield path, log_mass
            for token, step in self._step(path).items():
                longer = (*path, token)
                if token != self._end_id and text.startswith(self.oracle.text(longer)):
                    unseen.append((longer, log_mass + step))

    def _step(self, path: tuple[int, ...]) -> dict[int, float]:
        if path not in self._steps:
            with torch.inference_mode():
                row = self._model(torch.tensor([[*self._start, *path]])).logits[0, -1]
            ends = [self._end_id] if self.oracle.may_end(path) else []
            tokens = [*self.oracle.followers(path), *ends]
            log_probs = row[tokens].double().log_softmax(0).tolist()
            self._steps[path] = dict(zip(tokens, log_probs, strict=True))
        return self._steps[path]


def worst_error(actual: Iterable[float], expected: Iterable[float]) -> float:
    """Largest relative error of probabilities given by logs; inf where one alone is zero or NaN."""
    pairs = zip(actual, expected, strict=True)
    errors = [0.0 if a == e else abs(math.expm1(a - e)) for a, e in pairs]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def decoded(text: bytes) -> str | None:
    """The characters of UTF-8 bytes; None for others."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


@cache
def num_missing(text: bytes) -> int | None:
    """How many bytes the character at the end lacks; None if no text begins so."""
    ends = (b"", *(bytes([first]) + b"\x80" * rest for rest in range(3) for first in FEW))
    return next((len(end) for end in ends if decoded(text + end) is not None), None)
