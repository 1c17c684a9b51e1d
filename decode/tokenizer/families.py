r"""Pretokenizers that are one regex: GPT-2, cl100k, Qwen, o200k, Tekken and words of DeepSeek-V3.

GPT-2   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
cl100k  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
        |\s*[\r\n]+|\s+(?!\S)|\s+                      (Llama 3 and OLMo 2 use it too)
Qwen    cl100k with \p{N} for \p{N}{1,3}
o200k   words cut by case; U = \p{Lu}\p{Lt}, B = \p{Lm}\p{Lo}\p{M}, D = \p{Ll}, C a contraction:
        [^\r\n\p{L}\p{N}]?[UB]*[DB]+C?|[^\r\n\p{L}\p{N}]?[UB]+[DB]*C?|\p{N}{1,3}
        | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+        (Llama 4 uses it too)
Tekken  o200k without C and with \p{N} for \p{N}{1,3} (Mistral NeMo)
DeepSeek-V3  [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
        |\s*[\r\n]+|\s+(?!\S)|\s+          (behind two other steps, see sequences.py)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from .pretokenizer import (
    APOSTROPHE,
    MARK,
    NEWLINE,
    NUMBER,
    OTHER,
    ROLES,
    SLASH,
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
LOWER = ("lower", "lower_stmd", "lower_rv", "lower_e", "lower_l")
UPPER = ("upper", "upper_stmd", "upper_rv", "upper_e", "upper_l")
BOTH = ("both", MARK)
CASED_LETTERS = (*LOWER, *UPPER, *BOTH)
SLASHED_SYMBOLS = (OTHER, SLASH, APOSTROPHE)
CASED_ENDS = ("lower", "upper", "both", "upper_only", "contracted")
OWING_ENDS = ("lower_not_e", "lower_not_l", "upper_not_e", "upper_not_l")
SYMBOL_ENDS = ("symbol", "symbols", "apostrophe", "closing_newlines", "last_newline")
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
    # An apostrophe that begins a pretoken and is no contraction is a symbol; letters split.
    rules.join("apostrophe", SYMBOLS, "symbols")
    rules.split("apostrophe", ["rv"], "word_not_e")
    rules.split("apostrophe", ["l"], "word_not_l")
    rules.split("apostrophe", ["letter", "e", NUMBER, SPACE, WHITE])
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
    # Symbols with the newlines behind them; a single one may begin a word.
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
    # Characters that no alternative takes, but for the last one before a word: its "prefix".
    rules.join("prefix", DEEPSEEK_LETTERS, "word")
    rules.join("unmatched", ["unmatched"], "unmatched")
    rules.split("unmatched", ["unmatched"], "prefix")
    rules.split("unmatched", [*DEEPSEEK_SYMBOLS, SPACE, WHITE, NEWLINE])
    ends = ("word", "attached", "ascii_symbol", "symbols", "closing_newlines")
    for state in ends:
        rules.split_rest(state)
    keeps = {(kind, name): ("word",) for kind in ("space", "gap") for name in DEEPSEEK_LETTERS}
    rules.add_white_space({**keeps, **{("space", name): ("symbols",) for name in DEEPSEEK_SYMBOLS}})
    rules.add_newlines()
    return rules.automaton(_deepseek_class, (*ends, "unmatched", "last_newline"))


def o200k(*, longest_number: int = 3, has_contractions: bool = True) -> PretokenizerAutomaton:
    """o200k and Llama 4; Tekken with longest_number=1 and without contractions.

    A run of U and B followed by no D ends, by backtracking, at its last B: "both" then splits
    before the U that follow ("upper_only", which owes to be followed by U or by no letter), or
    joins them ("upper_owing", which owes a later B or D).
    """
    rules = TransitionRules(
        {
            **_word_starts(),
            NUMBER: ("digits_1",),
            **dict.fromkeys(SLASHED_SYMBOLS, ("symbol",)),
            SPACE: ("before_newline", "single_space"),
            WHITE: ("before_newline", "single_gap"),
            NEWLINE: ("before_newline", "last_newline"),
        }
    )
    _add_cased_words(rules)
    roles = ("stmd", "rv", "e", "l")
    rules.add_contraction({role: (f"lower_{role}", f"upper_{role}") for role in roles})
    rules.add_digits(longest_number)
    _add_cased_symbols(rules)
    _add_suffix_apostrophe(rules)
    keeps = {(kind, name): to for kind in ("space", "gap") for name, to in _word_starts().items()}
    keeps |= {("space", name): ("symbols",) for name in SLASHED_SYMBOLS}
    rules.add_white_space(keeps)
    rules.add_newlines()
    digits = [f"digits_{count}" for count in range(1, longest_number + 1)]
    classify = _cased_class if has_contractions else _cased_class_without_roles
    return rules.automaton(classify, (*CASED_ENDS, *OWING_ENDS, *SYMBOL_ENDS, *digits))


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
    if category.startswith("L"):
        return ROLES.get(character, "letter")
    if category == "N":
        return NUMBER
    return APOSTROPHE if character == "'" else OTHER


def _class_without_case(character: str, category: str) -> str:
    if character in "\r\n":
        return NEWLINE
    # (?i:'s) takes the long s too: its simple case folding is s.
    folded = "s" if character == "\u017f" else character.lower()
    return _class_with_case(folded if folded in ROLES else character, category)


def _word_starts() -> dict[str, tuple[str, ...]]:
    return {
        **dict.fromkeys(LOWER, ("lower",)),
        **dict.fromkeys(UPPER, ("upper",)),
        **dict.fromkeys(BOTH, ("both",)),
    }


def _add_cased_words(rules: TransitionRules) -> None:
    rules.join("lower", (*LOWER, *BOTH), "lower")
    rules.join("upper", UPPER, "upper")
    rules.join("both", UPPER, "upper_owing")
    rules.join("upper_owing", UPPER, "upper_owing")
    rules.join("upper_only", UPPER, "upper_only")
    for state in ("upper", "both", "upper_owing"):
        rules.join(state, LOWER, "lower")
        rules.join(state, BOTH, "both")
    rules.split("both", UPPER, "upper_only")
    rules.split("lower", UPPER)
    for state in ("lower", "upper", "both", "upper_only"):
        _add_word_end(rules, state)
    for state in ("lower", "upper"):
        _add_owing(rules, f"{state}_not_e", like_state=state, banned=("lower_e", "upper_e"))
        _add_owing(rules, f"{state}_not_l", like_state=state, banned=("lower_l", "upper_l"))


def _add_word_end(rules: TransitionRules, state: str) -> None:
    rules.join(state, [APOSTROPHE], "contraction")
    rules.split(state, [APOSTROPHE], "apostrophe")
    rules.split(state, [name for name in rules.start if name not in (*CASED_LETTERS, APOSTROPHE)])


def _add_owing(
    rules: TransitionRules, state: str, *, like_state: str, banned: Sequence[str]
) -> None:
    """A copy of a word state that must not be followed by the `banned` classes."""
    for table in (rules.joins, rules.splits):
        copied = {(state, name): to for (at, name), to in table.items() if at == like_state}
        table.update({key: to for key, to in copied.items() if key[1] not in banned})


def _add_cased_symbols(rules: TransitionRules) -> None:
    """Symbols and marks, with newlines and slashes behind them; a single one may begin a word."""
    for state in ("symbol", "symbols"):
        rules.join(state, SLASHED_SYMBOLS, "symbols")
        rules.join(state, [NEWLINE], "closing_newlines")
    for name, targets in _word_starts().items():
        rules.join("symbol", [name], *targets)
    rules.join("symbols", [MARK], "symbols")
    rules.join("closing_newlines", [NEWLINE, SLASH], "closing_newlines")
    for state in ("symbol", "symbols", "closing_newlines"):
        rules.split_rest(state)


def _add_suffix_apostrophe(rules: TransitionRules) -> None:
    """An apostrophe behind a word that is not the start of a contraction."""
    rules.join("apostrophe", SLASHED_SYMBOLS, "symbols")
    rules.join("apostrophe", [NEWLINE], "closing_newlines")
    for name in ("lower", "upper", "both", "lower_e", "upper_e", MARK):
        rules.join("apostrophe", [name], *_word_starts()[name])
    for case in ("lower", "upper"):
        rules.join("apostrophe", [f"{case}_rv"], f"{case}_not_e")
        rules.join("apostrophe", [f"{case}_l"], f"{case}_not_l")
    rules.split("apostrophe", [NUMBER, SPACE, WHITE])


def _cased_class(character: str, category: str) -> str:
    if character in "\r\n":
        return NEWLINE
    if ord(character) in WHITE_SPACE:
        return SPACE if character == " " else WHITE
    if category in ("Lu", "Lt", "Ll"):
        case = "lower" if category == "Ll" else "upper"
        folded = "s" if character == "\u017f" else character.lower()
        return f"{case}_{ROLES[folded]}" if folded in ROLES else case
    if category in ("Lm", "Lo", "M"):
        return MARK if category == "M" else "both"
    if category == "N":
        return NUMBER
    return {"'": APOSTROPHE, "/": SLASH}.get(character, OTHER)


def _cased_class_without_roles(character: str, category: str) -> str:
    """As `_cased_class`, but apostrophes and letters have no part in contractions."""
    name = _cased_class(character, category)
    return OTHER if name == APOSTROPHE else name.partition("_")[0]
