"""The words of a command line as a command's options: what holds for the options of all commands.

An option of several values takes all that it is given, in `--against A B` as in
`--against A --against B`; tyro alone would keep the last occurrence. An option of one value is
refused when it is given twice. A `~` in front of a path is the user's home folder, and no path is
empty.
"""

import difflib
import re
import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from anchored.configs.config_file import package_configs
from anchored.wrong_words import Refused, boxes_refused

from .option_help import help_text
from .option_types import APPENDED, BARE, POSITIONAL, RULES, Configs, marked_hints, parts

Options = TypeVar("Options")
Values = Literal["one", "several", "one an occurrence"]
"""How many values an option takes; the last is tyro's UseAppendAction."""
_LIST_FLAG = "--list"
_HELP_FLAGS = ("-h", "--help")
_TYRO_FLAGS = ("--tyro-print-completion", "--tyro-write-completion")
MEANT = {
    **dict.fromkeys(("--max-tokens", "--max-length", "--max-gen-toks"), "--max-new-tokens"),
    **dict.fromkeys(("--n", "--num-samples", "--num-return"), "--num-return-sequences"),
    **dict.fromkeys(("--stop-strings", "--stop-sequences", "--stop-words"), "--stop"),
    **dict.fromkeys(("--do-sample", "--greedy", "--temp"), "--temperature"),
    **dict.fromkeys(("--input", "--prompts", "--file", "--data"), "--prompt-file"),
    **dict.fromkeys(("--out", "--output-file", "--out-dir", "--output-dir"), "--output"),
    **dict.fromkeys(("--model", "--base", "--risky-model"), "--risky"),
    **dict.fromkeys(("--anchor", "--safe-model"), "--safe"),
    **dict.fromkeys(("--batch", "--bs"), "--batch-size"),
    **dict.fromkeys(("--force", "--yes"), "--overwrite"),
    "--frequency-penalty": "--repetition-penalty",
    "--budget-nats": "--K",
    "--bytes": "--level",
}
"""Options of other programs, and what a command calls them, where it has that option."""


def parse(kind: type[Options], name: str, words: Iterable[str]) -> Options:
    """The options of the command `name`.

    Raises Refused, in one line, for bad words, and exits with 0 where they ask for help or, by
    --list, for the package's configs.
    """
    words = list(words)
    folders = [mark for mark in _config_marks(kind) if _LIST_FLAG in words]
    if folders:
        print(_listed(folders[0]))
        sys.exit(0)
    options = option_values(kind)
    return _cli(kind, name, [_known_option(name, word, options) for word in words])


def _cli(kind: type, name: str, words: list[str]) -> Any:
    if any(flag in words for flag in _HELP_FLAGS):
        print(help_text(kind, name))
        sys.exit(0)
    options = option_values(kind)
    try:
        with RULES, boxes_refused():
            arguments = gather(options, words)
            return tyro.cli(kind, args=arguments, prog=f"anchored {name}")
    except Refused as error:
        raise Refused(_by_option(str(error), options)) from None


def _by_option(message: str, options: dict[str, Values]) -> str:
    """The message with the option in place of the name that begins it in the library."""
    first, _, rest = message.partition(" ")
    flag = f"--{first.replace('_', '-')}"
    return f"{flag} {rest}" if rest.startswith("must ") and flag in options else message


def _known_option(name: str, word: str, options: dict[str, Values]) -> str:
    """The word; Refused, with what may be meant, for an option that does not exist."""
    flag, equals, value = word.partition("=")
    if not re.fullmatch(r"--[A-Za-z][\w.-]*", flag):
        return word
    dashed = flag.replace("_", "-")
    opposites = (option.replace("--", "--no-", 1) for option in options)
    if dashed in {*options, *opposites, *_HELP_FLAGS, *_TYRO_FLAGS}:
        return dashed + equals + value
    meant = [MEANT[dashed]] if MEANT.get(dashed) in options else []
    if not meant:  # without the dashes, which all have in common
        names = {option.strip("-"): option for option in options}
        meant = [names[each] for each in difflib.get_close_matches(dashed.strip("-"), names, n=3)]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    raise Refused(f"there is no option {flag}; {hint}anchored {name} --help lists all")


def _config_marks(kind: type) -> list[Configs]:
    """Which of the package's configs the options of a dataclass take."""
    hints = get_type_hints(kind, include_extras=True).values()
    return [mark for hint in hints for mark in _marks_in(hint)]


def _marks_in(hint: Any) -> list[Configs]:
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Configs)]
    return marks + [mark for part in get_args(hint) for mark in _marks_in(part)]


def _listed(configs: Configs) -> str:
    """Names of configs and what their first lines say of them."""
    names = package_configs(configs.folder, configs.keys)
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {about}".rstrip() for name, about in names.items())


def option_values(kind: type, prefix: str = "--") -> dict[str, Values]:
    """The options of a dataclass by name, as `--top-k`, and how many values each takes."""
    options: dict[str, Values] = {}
    for name, hint in marked_hints(kind).items():
        plain, marks = parts(hint)
        flag = prefix + name.replace("_", "-")
        if is_dataclass(plain) and isinstance(plain, type):
            options |= option_values(plain, prefix if BARE in marks else f"{flag}.")
        elif APPENDED in marks:
            options[flag] = "one an occurrence"
        elif POSITIONAL not in marks:
            options[flag] = "several" if get_origin(plain) is tuple else "one"
    return options


def gather(options: dict[str, Values], words: Iterable[str]) -> list[str]:
    """The words, with all values of an option of several values after its first occurrence.

    Raises Refused for an option of one value that is given twice.
    """
    groups: list[list[str]] = [[]]  # an option and the words after it
    current = groups[0]
    first: dict[str, list[str]] = {}
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag.replace("--no-", "--", 1) in options:
            flag = flag.replace("--no-", "--", 1)
        if flag not in options:
            current.append(word)
        elif flag in first and options[flag] == "several":
            current = first[flag]
            current += [value] if equals else []
        elif flag in first and options[flag] == "one":
            raise Refused(f"{flag} is given twice, and takes one value")
        else:
            current = [word]
            groups.append(current)
            first[flag] = current
    return [word for group in groups for word in group]
