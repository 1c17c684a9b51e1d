r"""Pretokenizers that are one regex: GPT-2, cl100k, Qwen, o200k, Tekken and words of DeepSeek-V3.

GPT-2   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
cl100k  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
        |\s*[\r\n]+|\s+(?!\S)|\s+                      (Llama 3 and OLMo 2 use it too)
Qwen    cl100k with \p{N} for \p{N}{1,3}
o200k   words cut by case, with an optional contraction behind them (Llama 4 uses it too)
Tekken  o200k without contractions and with \p{N} for \p{N}{1,3} (Mistral NeMo)
DeepSeek-V3  [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
        |\s*[\r\n]+|\s+(?!\S)|\s+          (behind two other steps, see sequences.py)
"""

from collections.abc import Callable
from functools import lru_cache, partial

from .o200k import o200k
from .pretokenizer import (
    APOSTROPHE,
    NEWLINE,
    NUMBER,
    OTHER,
    ROLES,
    SPACE,
    WHITE,
    WHITE_SPACE,
    PretokenizerAutomaton,
    TransitionRules,
)

LETTERS = ("letter", "stmd", "rv", "e", "l")
ROLE_CLASSES = {role: (role,) for role in LETTERS}
SYMBOLS = (OTHER, APOSTROPHE)
DEEPSEEK_LETTERS = ("ascii_letter", "letter")
DEEPSEEK_SYMBOLS = ("ascii_symbol", OTHER)
ENDS = ("word", "word_not_e", "word_not_l", "digits_1", "symbols", "apostrophe", "contracted")


def gpt2() -> PretokenizerAutomaton:
    """GPT-2 and GPT-NeoX (OLMo 1)."""
    rules = TransitionRules(
        {
            **dict.fromkeys(LETTERS, ("word",)),
            NUMBER: ("digits_1",),
            OTHER: ("symbols",),
            APOSTROPHE: ("contraction", "apostrophe"),
            SPACE: ("single_space",),
            WHITE: ("single_gap",),
        }
    )
    _add_words(rules)
    rules.add_digits(None)
    rules.add_contraction(ROLE_CLASSES)
    rules.join("symbols", SYMBOLS, "symbols")
    rules.split_rest("symbols")
    _add_gpt2_apostrophe(rules)
    kept = {**dict.fromkeys(LETTERS, ("word",)), NUMBER: ("digits_1",)}
    kept |= dict.fromkeys(SYMBOLS, ("symbols",))
    rules.add_white_space({("space", name): targets for name, targets in kept.items()})
    return rules.automaton(_class_with_case, ENDS)


def cl100k(longest_number: int = 3) -> PretokenizerAutomaton:
    """cl100k, Llama 3 and OLMo 2; Qwen 2 and 2.5 with longest_number=1."""
    rules = TransitionRules(
        {
            **dict.fromkeys(LETTERS, ("word",)),
            NUMBER: ("digits_1",),
            OTHER: ("symbol",),
            APOSTROPHE: ("contraction", "apostrophe"),
            SPACE: ("before_newline", "single_space"),
            WHITE: ("before_newline", "single_gap"),
            NEWLINE: ("before_newline", "last_newline"),
        }
    )
    _add_words(rules)
    rules.add_digits(longest_number)
    rules.add_contraction(ROLE_CLASSES)
    _add_cl100k_symbols(rules)
    keeps = {(kind, name): ("word",) for kind in ("space", "gap") for name in LETTERS}
    rules.add_white_space({**keeps, **{("space", name): ("symbols",) for name in SYMBOLS}})
    rules.add_newlines()
    digits = {f"digits_{count}" for count in range(1, longest_number + 1)}
    ends = {*ENDS, *digits, "symbol", "closing_newlines", "last_newline"}
    return rules.automaton(_class_without_case, ends)


def deepseek_v3() -> PretokenizerAutomaton:
    """The words of DeepSeek-V3; what no alternative takes (controls, numbers) stays together."""
    rules = TransitionRules(
        {
            **dict.fromkeys(DEEPSEEK_LETTERS, ("word",)),
            "ascii_symbol": ("ascii_symbol",),
            OTHER: ("symbols",),
            "unmatched": ("unmatched", "prefix"),
            SPACE: ("before_newline", "single_space"),
            WHITE: ("before_newline", "single_gap"),
            NEWLINE: ("before_newline", "last_newline"),
        }
    )
    rules.join("word", DEEPSEEK_LETTERS, "word")
    rules.join("attached", ["ascii_letter"], "attached")
    rules.join("ascii_symbol", ["ascii_letter"], "attached")
    for state in ("ascii_symbol", "symbols"):
        rules.join(state, DEEPSEEK_SYMBOLS, "symbols")
        rules.join(state, [NEWLINE], "closing_newlines")
    rules.join("closing_newlines", [NEWLINE], "closing_newlines")
    _add_unmatched(rules)
    ends = ("word", "attached", "ascii_symbol", "symbols", "closing_newlines")
    for state in ends:
        rules.split_rest(state)
    keeps = {(kind, name): ("word",) for kind in ("space", "gap") for name in DEEPSEEK_LETTERS}
    rules.add_white_space({**keeps, **{("space", name): ("symbols",) for name in DEEPSEEK_SYMBOLS}})
    rules.add_newlines()
    return rules.automaton(_deepseek_class, (*ends, "unmatched", "last_newline"))


FAMILIES: dict[str, Callable[[], PretokenizerAutomaton]] = {
    "GPT-2": gpt2,
    "cl100k": cl100k,
    "Qwen": partial(cl100k, longest_number=1),
    "o200k": o200k,
    "Tekken": partial(o200k, longest_number=1, has_contractions=False),
    "DeepSeek-V3": deepseek_v3,
}


@lru_cache(maxsize=len(FAMILIES))
def family(name: str) -> PretokenizerAutomaton:
    """The automaton of a family by name, built once."""
    return FAMILIES[name]()


def _add_words(rules: TransitionRules) -> None:
    """Runs of letters; behind an apostrophe one may owe not to complete a contraction."""
    for state, banned in (("word", None), ("word_not_e", "e"), ("word_not_l", "l")):
        rules.join(state, [name for name in LETTERS if name != banned], "word")
        rules.split(state, [name for name in rules.start if name not in LETTERS])


def _add_gpt2_apostrophe(rules: TransitionRules) -> None:
    """An apostrophe that begins a pretoken and is no contraction is a symbol; letters split."""
    rules.join("apostrophe", SYMBOLS, "symbols")
    rules.split("apostrophe", ["rv"], "word_not_e")
    rules.split("apostrophe", ["l"], "word_not_l")
    rules.split("apostrophe", ["letter", "e", NUMBER, SPACE, WHITE])


def _add_cl100k_symbols(rules: TransitionRules) -> None:
    """Symbols with the newlines behind them; a single one may begin a word."""
    for state in ("symbol", "apostrophe", "symbols"):
        rules.join(state, SYMBOLS, "symbols")
        rules.join(state, [NEWLINE], "closing_newlines")
    rules.join("closing_newlines", [NEWLINE], "closing_newlines")
    rules.join("symbol", LETTERS, "word")
    rules.join("apostrophe", ["letter", "e"], "word")
    rules.join("apostrophe", ["rv"], "word_not_e")
    rules.join("apostrophe", ["l"], "word_not_l")
    rules.split("apostrophe", [NUMBER, SPACE, WHITE])
    for state in ("symbol", "symbols", "closing_newlines"):
        rules.split_rest(state)


def _add_unmatched(rules: TransitionRules) -> None:
    """Characters that no alternative takes, but for the last one before a word: its "prefix"."""
    rules.join("prefix", DEEPSEEK_LETTERS, "word")
    rules.join("unmatched", ["unmatched"], "unmatched")
    rules.split("unmatched", ["unmatched"], "prefix")
    rules.split("unmatched", [*DEEPSEEK_SYMBOLS, SPACE, WHITE, NEWLINE])


def _deepseek_class(character: str, category: str) -> str:
    if character in "\r\n":
        return NEWLINE
    if ord(character) in WHITE_SPACE:
        return SPACE if character == " " else WHITE
    if category.startswith("L") or category == "M":
        return "ascii_letter" if character.isascii() else "letter"
    if category in ("P", "S"):
        return "ascii_symbol" if character.isascii() else OTHER
    return "unmatched"


def _class_with_case(character: str, category: str) -> str:
    if ord(character) in WHITE_SPACE:
        return SPACE if character == " " else WHITE
    return _visible_class(character, category)


def _class_without_case(character: str, category: str) -> str:
    if character in "\r\n":
        return NEWLINE
    # (?i:'s) takes the long s too: its simple case folding is s.
    folded = "s" if character == "\u017f" else character.lower()
    return _class_with_case(folded if folded in ROLES else character, category)


def _visible_class(character: str, category: str) -> str:
    if category.startswith("L"):
        return ROLES.get(character, "letter")
    if category == "N":
        return NUMBER
    return APOSTROPHE if character == "'" else OTHER
