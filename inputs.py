"""Files, texts, JSON, prompts and numbers of a user; and how what is wrong is named."""

import json
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .fields import checked_nats, checked_seed, from_record

STDIN = Path("-")


def check_input(path: Path | None, kind: Literal["file", "folder"] = "file") -> None:
    """Raise FileNotFoundError, in one line, for a path that is none of these; None is no path."""
    if path is not None and not (path.is_file() if kind == "file" else path.is_dir()):
        other = "file" if path.is_file() else "folder" if path.is_dir() else "device or pipe"
        is_other = f"{path} is a {other}, not a {kind}"
        where = is_other if path.exists() else f"there is no {kind} {path}"
        raise FileNotFoundError(where)


class RepeatedName(ValueError):
    """A JSON object that has one name twice."""


def with_each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, as `object_pairs_hook`. Raises RepeatedName, as programs differ in which of
    the values they read."""
    if len(record := dict(pairs)) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise RepeatedName(f"has {reprlib.repr(min(n for n in names if names[n] > 1))} twice")
    return record


def json_objects(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file, or of stdin for "-", each with the number of its line, from 1.

    In an array, it is the number of the object. Raises OSError, or ValueError that names the file
    and the line.
    """
    name, text = file_title(file), _text_in(file)
    if text.lstrip().startswith("["):
        numbered = list(enumerate(_parsed(text, name), 1))
    else:  # not splitlines: JSON strings may hold other separators of lines, as U+2028
        lines = enumerate(text.split("\n"), 1)
        numbered = [(n, _parsed(line, f"{name}, line {n}")) for n, line in lines if line.strip()]
    for number, value in numbered:
        if not isinstance(value, dict):
            raise ValueError(f"{name}, row {number} must be a JSON object")
    return numbered


def records(corpus: Path) -> Iterator[dict[str, Any]]:
    """Each line of a corpus, {"text": ..., optional "id"}, read one by one.

    Lines without an id are counted from 0. Raises ValueError for a line that is not that.
    """
    number = -1
    with corpus.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # the latter for brackets without end
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise ValueError(f'{corpus}: line {number + 1} is no JSON object with a "text"')
            yield {"text": record["text"], "id": record.get("id", number)}
    if number < 0:
        raise ValueError(f"{corpus} holds no passages")


def text_of(word: str) -> str:
    """The text that a word of a command line stands for.

    "-" stands for all of stdin and "@FILE" for a file, each without its last line break; "@@TEXT"
    for "@TEXT". Raises OSError, or ValueError for a text that is empty or not UTF-8.
    """
    if word != "-" and (word[:1] != "@" or word[:2] == "@@"):
        return word.removeprefix("@")
    file = Path(word) if word == "-" else Path(word[1:]).expanduser()
    check_input(None if file == STDIN else file)
    text = _text_in(file).removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError(f"{file_title(file)} holds no text")
    return text


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def unescaped(word: str) -> str:
    r"""The word with line breaks, tabs and so on in place of \n, \t, \r and \\.

    A shell has no plain way to write these. Raises ValueError for any other character after a \.
    """

    def character(escape: re.Match[str]) -> str:
        if escape[1] not in _ESCAPES:
            raise ValueError(rf"{word} has {escape[0]}: give \n, \t or \r, or \\ for a backslash")
        return _ESCAPES[escape[1]]

    return re.sub(r"\\(.?)", character, word, flags=re.DOTALL)


def _text_in(file: Path) -> str:
    try:  # a byte order mark is what some editors put in front of a file
        return sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file_title(file)} is not UTF-8 text: {error.reason}") from None


def file_title(file: Path) -> str:
    """The name of a file in messages."""
    return "stdin" if file == STDIN else str(file)


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    """A line of a file of prompts: the one schema of every command that reads or writes such files.

    A command reads what it needs; the other keys travel along into what it writes.
    """

    id: str | int | None = None
    """The caller's name for it, which its results bear."""
    prompt: str = ""
    messages: list[Any] | None = None
    """A conversation in place of a prompt."""
    reference: str | None = None
    """The continuation of the prompt in its work."""
    title: str | None = None
    domain: str | None = None
    """The kind of text, as "books"."""
    seed: int | None = None
    k: float | None = None
    passage: str | None = None
    """Text that some streams of a rule read before the prompt, as `anchored retrieve` finds it."""
    passage_id: str | int | None = None
    """Its name in the corpus."""
    score: float | None = None
    """The score of its match with the prompt."""
    characters: list[list[str]] | None = None
    """The work's characters, with the names of each, for the measure of non-literal copying."""
    reference_characters: list[list[str]] | None = None
    """The same by the name that CopyBench has."""
    group: str | int | float | None = None
    """The group that results are split by."""
    answer: str | None = None
    """The right one, where the prompt is a question of fact."""

    def __post_init__(self) -> None:
        if self.seed is not None:
            checked_seed(self.seed)
        if self.k is not None:
            checked_nats("k", self.k)

    def record(self) -> dict[str, Any]:
        """The values that the line has, as JSON has them."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return values if self.prompt else {n: v for n, v in values.items() if n != "prompt"}


def read_prompts(
    file: Path,
    *,
    holds: Literal["prompt", "messages"] = "prompt",
    needs: Sequence[str] = (),
) -> list[PromptLine]:
    """The prompts of a file, or of stdin for "-", one JSON object a line.

    holds: what each line has, not the other. needs: further keys that each line must have. Raises
    OSError, or ValueError that names the file and the line.
    """
    name = file_title(file)
    lines: list[PromptLine] = []
    first: dict[Any, int] = {}
    for number, row in json_objects(file):
        where = f"{name}, line {number}"
        lines.append(line := _prompt(row, where, holds, needs))
        key = line.id, line.seed, line.k  # by which results are told apart
        if line.id is not None and first.setdefault(key, number) != number:
            raise ValueError(f"{where}: id {line.id!r} occurs twice, first in line {first[key]}")
    if not lines:
        raise ValueError(f"{name} holds no {holds.removesuffix('s')}s")
    return lines


def _prompt(record: dict[str, Any], where: str, holds: str, needs: Sequence[str]) -> PromptLine:
    if not record.get(holds):
        raise ValueError(f'{where} must be an object with a "{holds}"')
    other = "messages" if holds == "prompt" else "prompt"
    keys = [field.name for field in fields(PromptLine) if field.name != other]
    if unknown := [key for key in record if key not in keys]:
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}; known: {', '.join(keys)}")
    record = {key: value for key, value in record.items() if value is not None}
    if missing := [key for key in needs if key not in record]:
        raise ValueError(f'{where} must have the key "{missing[0]}", which this command reads')
    try:
        return from_record(PromptLine, record)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
