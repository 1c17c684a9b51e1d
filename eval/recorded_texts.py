"""Recorded generations as the measures read them: a run's folder, JSON lines, CopyBench's JSON."""

import json
import logging
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..field_types import field_error
from ..inputs import json_objects
from .statistics import over_seeds

logger = logging.getLogger(__name__)

PROMPTS_FILE = "prompts.jsonl"
"""In a run's folder: what its generations continue, by id."""
EVALUATION = "evaluation"
"""Folder in a run's folder, where the results of measures and judges lie."""
PAGE = "report.html"
"""In a run's folder: all that is known of it."""
SAFE, RISKY = "p_s", "p_r"
"""Names of the settings that are one model alone."""
ALONE = {SAFE: f"{SAFE} (safe model)", RISKY: f"{RISKY} (risky model)"}
"""How pictures and pages call them."""
CLOSING_MARKS = tuple(",.;:!?)]}")
"""What follows a word without a space."""

Record = Mapping[str, Any]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedText:
    """One generation; `setting`, `id` and `seed` name it."""

    setting: str
    """How it was decoded."""
    id: str
    """Of its prompt, which other settings and seeds continue too."""
    seed: int
    text: str
    """Without the prompt."""
    prompt: str = ""
    reference: str | None = None
    """How the work goes on that the prompt is from."""
    characters: list[list[str]] | None = None
    """Of that work: the names of each."""
    answer: str | None = None
    """The right one, where the prompt is a question of fact."""
    group: str | None = None
    """What results are split by, as how frequent the entity of a biography is."""
    debt: float | None = None
    """Nats that the prompt took from the budget."""
    row: Record = field(default_factory=dict, compare=False, repr=False)
    """All that its file says of it, and that of the prompts; {} of `read_texts`."""

    @property
    def key(self) -> dict[str, str | int]:
        """What a row of results is about."""
        return {"setting": self.setting, "id": self.id, "seed": self.seed}


def read_texts(path: Path, prompts: Path | None = None) -> list[RecordedText]:
    """The generations of a run's folder or of a file.

    path: a folder with generations/SETTING.jsonl; or JSON objects, one a line or all in one array,
    of "text", and "setting" (else the file's name), "id" (else the line), "seed",
    "prompt", "reference", "characters" (a list of lists of names), "group"; or what CopyBench
    writes: "output", "input", "reference", "reference_characters", "model" and "decoding".
    prompts: JSON objects with the same entries but for the text, by "id"; the folder's own
    prompts.jsonl unless given. What a generation says of itself goes before.
    Rows with an "error", or with null for a text, are left out with one line in the log.
    Raises: ValueError that names the file and the line, or a text that stands twice; OSError.
    """
    texts, num_missing = texts_in(path, prompts)
    if num_missing:
        num_rows = len(texts) + num_missing
        logger.warning("%d of %d rows have no text: left out", num_missing, num_rows)
    if not texts:
        raise ValueError(f"{path} holds no texts")
    return [replace(text, row={}) for text in texts]  # rows of a long run fill gigabytes


def texts_in(path: Path, prompts: Path | None = None) -> tuple[list[RecordedText], int]:
    """The texts of `read_texts` with their rows, and how many rows have none."""
    files, names = [path], {}
    if path.is_dir():
        files, names = generation_files(path), setting_names(path)
        beside = path / PROMPTS_FILE
        prompts = beside if prompts is None and beside.exists() else prompts
    known = {} if prompts is None else {_id(*own): own[1] for own in json_objects(prompts)}
    rows = [(file, *numbered) for file in files for numbered in json_objects(file)]
    whole = [row for row in rows if not _has_failed(row[2])]
    texts = [_text(*row, known, names) for row in whole]
    for same in grouped(texts, lambda text: tuple(text.key.values())).values():
        if len(same) > 1:  # it would count twice
            raise ValueError(f"{path}: the text of {same[0].key} stands twice")
    return texts, len(rows) - len(whole)


def setting_names(folder: Path) -> dict[str, str]:
    """Names of a run's settings by those of their files, in the order of its results.

    {} where there is no results.json yet.
    """
    path = folder / "results.json"
    rows = read_json(path, "anchored quickstart or sweep").get("rows", []) if path.exists() else []
    return {file_name(row["setting"]): row["setting"] for row in rows}


def read_json(path: Path, writer: str) -> Mapping[str, Any]:
    """The object of a JSON file; ValueError that names the command that would have written it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not what {writer} writes")
    return content


def has_open_seam(prompt: str, reference: str) -> bool:
    """Whether a space is missing between a prompt and its continuation, as data sets cut them.

    A word begins after a space, which belongs to the continuation; marks as commas have none.
    """
    if not prompt or not reference or prompt[-1].isspace() or reference[0].isspace():
        return False
    return not reference.startswith(CLOSING_MARKS)


def generation_files(folder: Path) -> list[Path]:
    """generations/SETTING.jsonl of a run's folder, k=2 before k=10; ValueError without any."""
    all_files = sorted((folder / "generations").glob("*.jsonl"), key=_with_numbers)
    files = [file for file in all_files if not file.name.endswith(".unfinished.jsonl")]
    if not files:
        raise ValueError(f"{folder} holds no generations/*.jsonl")
    return files


def file_name(name: str) -> str:
    """The name of a setting, a model or a prompt, as its files and folders bear it."""
    return re.sub(r"[^\w.=+-]+", "-", name)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items of each key, in the order of their first ones."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_setting(texts: Iterable[RecordedText]) -> dict[str, list[RecordedText]]:
    """The texts of each setting."""
    return grouped(texts, lambda text: text.setting)


def rows_by_setting(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of results of each setting."""
    return grouped(rows, lambda row: str(row["setting"]))


def figure_over_seeds(rows: Iterable[dict[str, Any]], figure: str) -> dict[str, Any] | None:
    """Statistics of a figure's mean over the rows of each seed; None without rows."""
    seeds = grouped(rows, lambda row: row["seed"]).values()
    means = [math.fsum(row[figure] for row in own) / len(own) for own in seeds]
    return over_seeds(means)._asdict() if means else None


def _with_numbers(file: Path) -> list[str | float]:
    """So that k=2 comes before k=10: texts and the numbers between them, in turn."""
    parts = re.split(r"(\d+(?:\.\d+)?)", file.stem)
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def _id(number: int, row: Record) -> str:
    return str(number if row.get("id") is None else row["id"])


_ENTRIES = {
    "text": ("text", "output"),
    "prompt": ("input", "prompt"),
    "reference": ("reference",),
    "characters": ("characters", "reference_characters"),
    "answer": ("answer",),
    "seed": ("seed",),
    "debt": ("debt",),
}
"""Names that a field of `RecordedText` may have in a file, the first before the others."""


def _text(
    file: Path, number: int, row: Record, known: Mapping[str, Record], names: Mapping[str, str]
) -> RecordedText:
    prompt_id = _id(number, row)
    merged = {**known.get(prompt_id, {}), **{k: v for k, v in row.items() if v is not None}}
    values: dict[str, Any] = {"seed": 0}
    for name, entries in _ENTRIES.items():
        given = next((merged[entry] for entry in entries if entry in merged), None)
        values |= {} if given is None else {name: given}
    if values.get("debt") == "inf":  # as ledgers have it
        values["debt"] = math.inf
    if "text" not in values:
        raise ValueError(f"{file}, row {number} lacks {' or '.join(map(repr, _ENTRIES['text']))}")
    values["setting"] = _setting(merged, names.get(file.stem, file.stem))
    values["group"] = None if merged.get("group") is None else str(merged["group"])
    if error := field_error(RecordedText, {"id": prompt_id, **values}):
        raise ValueError(f"{file}, row {number}: {error}")
    return RecordedText(id=prompt_id, row=merged, **values)


def _has_failed(row: Record) -> bool:
    nulls = [row[name] is None for name in _ENTRIES["text"] if name in row]
    return bool(row.get("error")) or (bool(nulls) and all(nulls))


def _setting(row: Record, default: str) -> str:
    """The setting's name; for rows of CopyBench the model and how it was decoded."""
    parts = [row["setting"]] if "setting" in row else [row.get("model"), row.get("decoding")]
    return "/".join(str(part) for part in parts if part) or default
