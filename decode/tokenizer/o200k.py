r"""The o200k family (o200k, Llama 4; Tekken): words cut by case.

With U = \p{Lu}\p{Lt}, B = \p{Lm}\p{Lo}\p{M}, D = \p{Ll} and C a contraction as in cl100k:
    [^\r\n\p{L}\p{N}]?[UB]*[DB]+C?|[^\r\n\p{L}\p{N}]?[UB]+[DB]*C?|\p{N}{1,3}
    | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
Tekken (Mistral NeMo) has no C, and \p{N} for \p{N}{1,3}.
A run of U and B followed by no D ends, by backtracking, at its last B: "both" then splits before
the U that follow ("upper_only", which owes to be followed by U or by no letter), or joins them
("upper_owing", which owes a later B or D).
"""

from collections.abc import Sequence

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

LOWER = ("lower", "lower_stmd", "lower_rv", "lower_e", "lower_l")
UPPER = ("upper", "upper_stmd", "upper_rv", "upper_e", "upper_l")
BOTH = ("both", MARK)
LETTERS = (*LOWER, *UPPER, *BOTH)
SYMBOLS = (OTHER, SLASH, APOSTROPHE)
ENDS = ("lower", "upper", "both", "upper_only", "contracted")
OWING_ENDS = ("lower_not_e", "lower_not_l", "upper_not_e", "upper_not_l")
SYMBOL_ENDS = ("symbol", "symbols", "apostrophe", "closing_newlines", "last_newline")


def o200k(*, longest_number: int = 3, has_contractions: bool = True) -> PretokenizerAutomaton:
    """o200k and Llama 4; Tekken with longest_number=1 and without contractions."""
    rules = TransitionRules(
        {
            **_word_starts(),
            NUMBER: ("digits_1",),
            **dict.fromkeys(SYMBOLS, ("symbol",)),
            SPACE: ("before_newline", "single_space"),
            WHITE: ("before_newline", "single_gap"),
            NEWLINE: ("before_newline", "last_newline"),
        }
    )
    _add_words(rules)
    roles = ("stmd", "rv", "e", "l")
    rules.add_contraction({role: (f"lower_{role}", f"upper_{role}") for role in roles})
    rules.add_digits(longest_number)
    _add_symbols(rules)
    _add_suffix_apostrophe(rules)
    keeps = {(kind, name): to for kind in ("space", "gap") for name, to in _word_starts().items()}
    keeps |= {("space", name): ("symbols",) for name in SYMBOLS}
    rules.add_white_space(keeps)
    rules.add_newlines()
    digits = [f"digits_{count}" for count in range(1, longest_number + 1)]
    classify = _class if has_contractions else _class_without_roles
    return rules.automaton(classify, (*ENDS, *OWING_ENDS, *SYMBOL_ENDS, *digits))


def _word_starts() -> dict[str, tuple[str, ...]]:
    return {
        **dict.fromkeys(LOWER, ("lower",)),
        **dict.fromkeys(UPPER, ("upper",)),
        **dict.fromkeys(BOTH, ("both",)),
    }


def _add_words(rules: TransitionRules) -> None:
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
    rules.split(state, [name for name in rules.start if name not in (*LETTERS, APOSTROPHE)])


def _add_owing(
    rules: TransitionRules, state: str, *, like_state: str, banned: Sequence[str]
) -> None:
    """A copy of a word state that must not be followed by the `banned` classes."""
    for table in (rules.joins, rules.splits):
        copied = {(state, name): to for (owner, name), to in table.items() if owner == like_state}
        table.update({key: to for key, to in copied.items() if key[1] not in banned})


def _add_symbols(rules: TransitionRules) -> None:
    """Symbols and marks, with newlines and slashes behind them; a single one may begin a word."""
    for state in ("symbol", "symbols"):
        rules.join(state, SYMBOLS, "symbols")
        rules.join(state, [NEWLINE], "closing_newlines")
    for name, targets in _word_starts().items():
        rules.join("symbol", [name], *targets)
    rules.join("symbols", [MARK], "symbols")
    rules.join("closing_newlines", [NEWLINE, SLASH], "closing_newlines")
    for state in ("symbol", "symbols", "closing_newlines"):
        rules.split_rest(state)


def _add_suffix_apostrophe(rules: TransitionRules) -> None:
    """An apostrophe behind a word that is not the start of a contraction."""
    rules.join("apostrophe", SYMBOLS, "symbols")
    rules.join("apostrophe", [NEWLINE], "closing_newlines")
    for name in ("lower", "upper", "both", "lower_e", "upper_e", MARK):
        rules.join("apostrophe", [name], *_word_starts()[name])
    for case in ("lower", "upper"):
        rules.join("apostrophe", [f"{case}_rv"], f"{case}_not_e")
        rules.join("apostrophe", [f"{case}_l"], f"{case}_not_l")
    rules.split("apostrophe", [NUMBER, SPACE, WHITE])


def _class(character: str, category: str) -> str:
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


def _class_without_roles(character: str, category: str) -> str:
    """As `_class`, but apostrophes and letters have no part in contractions."""
    name = _class(character, category)
    return OTHER if name == APOSTROPHE else name.partition("_")[0]
