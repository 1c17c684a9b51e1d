"""Recorded generations as measures read them: a run's folder, JSON lines, CopyBench's JSON."""

import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..durable_files import write_durably
from ..fields import field_error
from ..inputs import json_objects
from .segmentation import words
from .statistics import SeedStatistics, json_value, over_seeds

logger = logging.getLogger(__name__)

PROMPTS_FILE = "prompts.jsonl"
"""Prompts of a run's folder, by id."""
EVALUATION = "evaluation"
"""Folder of a run's folder with the results of measures and judges."""
PAGE = "report.html"
"""Page of a run's folder with all results."""
SAFE, RISKY = "p_s", "p_r"
"""Names of the settings that are one model alone."""
ALONE = {SAFE: f"{SAFE} (safe model)", RISKY: f"{RISKY} (risky model)"}
"""Names of the models alone in pictures and pages."""
CLOSING_MARKS = tuple(
    ",.;:!?)]}" + "\u3001\u3002\u300b\u300d\u300f\uff01\uff09\uff0c\uff1a\uff1b\uff1f"
)
"""Marks that follow a word without a space."""

Record = Mapping[str, Any]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedText:
    """One generation; `setting`, `id` and `seed` name it."""

    setting: str
    id: str
    """The prompt's id, which other settings and seeds continue too."""
    seed: int
    text: str
    """The continuation, without the prompt."""
    prompt: str = ""
    reference: str | None = None
    """The work's continuation of the prompt."""
    characters: list[list[str]] | None = None
    """The names of each of the work's characters."""
    answer: str | None = None
    """The right answer, if the prompt is a question of fact."""
    group: str | None = None
    """The group by which results are split, as how frequent the entity of a biography is."""
    debt: float | None = None
    """Nats that the prompt took from the budget."""
    row: Record = field(default_factory=dict, compare=False, repr=False)
    """All entries of the text's file and of the prompts' file; {} from `read_texts`."""

    @property
    def key(self) -> dict[str, str | int]:
        """The entries by which a row of results names its text."""
        return {"setting": self.setting, "id": self.id, "seed": self.seed}


def read_texts(path: Path | Sequence[Path], prompts: Path | None = None) -> list[RecordedText]:
    """The generations of a run's folder, of a file, or of several files.

    path: a folder with generations/SETTING.jsonl; or JSON objects, one per line or all in an array,
    of "text", and "setting" (else the file's name), "id" (else the line) and other fields of
    `RecordedText`, or CopyBench's. Several files, or those of a folder, have a setting each, named
    by the file; their prompts without an "id" are known by their content. prompts: JSON objects
    with entries that texts lack, by "id"; by default the folder's prompts.jsonl. Rows without a
    text are left out with one line in the log. Raises: ValueError that names the file and the line,
    a text that occurs twice, or a prompt with two references; OSError.
    """
    texts, num_missing = texts_in(path, prompts)
    if num_missing:
        num_rows = len(texts) + num_missing
        logger.warning("%d of %d rows have no text: left out", num_missing, num_rows)
    if not texts:
        raise ValueError(f"{names_of([path] if isinstance(path, Path) else path)} holds no texts")
    return [replace(text, row={}) for text in texts]  # rows of a long run fill gigabytes


def texts_in(
    path: Path | Sequence[Path], prompts: Path | None = None
) -> tuple[list[RecordedText], int]:
    """The texts of `read_texts` with their rows, and how many rows have none."""
    paths = [path] if isinstance(path, Path) else list(path)
    names = file_settings(paths)
    is_by_file = len(names) > 1 and not (len(paths) == 1 and is_run(paths[0]))
    if prompts is None and (paths[0] / PROMPTS_FILE).exists():
        prompts = paths[0] / PROMPTS_FILE
    records = [] if prompts is None else json_objects(prompts)
    known = {_id(*numbered, is_by_file): numbered[1] for numbered in records}
    texts, num_missing = [], 0
    for file, setting in names.items():
        for number, row in json_objects(file):
            nulls = [row[name] is None for name in _ENTRIES["text"] if name in row]
            if row.get("error") or (nulls and all(nulls)):
                num_missing += 1
                continue
            name = _id(number, row, is_by_file)
            merged = {**known.get(name, {}), **{k: v for k, v in row.items() if v is not None}}
            parts = [merged.get("model"), merged.get("decoding")]  # of CopyBench's only file
            if "setting" in merged or is_by_file:
                parts = [merged.get("setting")]
            setting_name = "/".join(str(part) for part in parts if part) or setting
            texts.append(_text(f"{file}, row {number}", setting_name, name, merged))
    for key, count in Counter(tuple(text.key.items()) for text in texts).items():
        if count > 1:  # it would count twice
            raise ValueError(f"{names_of(paths)}: the text of {dict(key)} occurs twice")
    for name, same in grouped(texts, lambda text: text.id).items() if is_by_file else ():
        references = {text.reference: text.setting for text in same if text.reference is not None}
        if len(references) > 1:  # they would be compared
            first, second, *_ = references.values()
            raise ValueError(f"{first} and {second} have different references of prompt {name!r}")
    return texts, num_missing


def is_run(path: Path) -> bool:
    """Tell whether the path is the folder of a quickstart or a sweep."""
    return (path / "generations").is_dir()


def names_of(paths: Sequence[Path]) -> str:
    """The first of the files or folders and the number of the others, for messages."""
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def file_settings(paths: Sequence[Path]) -> dict[Path, str]:
    """The files of texts, each with the name of its setting; k=2 before k=10 in a folder. Files of
    a run have the order of its results. Raises: ValueError for a folder without any."""
    if len(paths) == 1 and is_run(paths[0]):
        results, files = paths[0] / "results.json", generation_files(paths[0])
        whole = read_json(results, "anchored quickstart or sweep") if results.exists() else {}
        known = {file_name(row["setting"]): row["setting"] for row in whole.get("rows", [])}
        order = {stem: number for number, stem in enumerate(known)}
        files.sort(key=lambda file: order.get(file.stem, len(order)))
        return {file: known.get(file.stem, file.stem) for file in files}
    files = []
    for path in paths:
        inside = sorted(path.glob("*.json*"), key=_with_numbers) if path.is_dir() else [path]
        if path.is_dir():
            inside = [
                f for f in inside if f.suffix in (".json", ".jsonl") and f.name != PROMPTS_FILE
            ]
        files += inside or generation_files(path)
    files = list(dict.fromkeys(files))
    num_alike = Counter(file.stem for file in files)
    return {
        file: file.stem if num_alike[file.stem] == 1 else f"{file.parent.name}/{file.stem}"
        for file in files
    }


def read_json(path: Path, writer: str) -> Mapping[str, Any]:
    """The object of a JSON file; ValueError that names the command that would have written it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not what {writer} writes")
    return content


def write_evaluation(folder: Path, name: str, results: Record) -> None:
    """Record the results of a measure or a judge in evaluation/NAME.json of a folder."""
    write_json(folder / EVALUATION / f"{name}.json", results)


def write_json(path: Path, results: Record, *, indent: int | None = 1) -> None:
    """Write a results file: a record with None for what is infinite or undefined, and the
    environment."""
    from ..environment import environment_record  # imports torch

    whole = json_value({**results, "environment": environment_record()})
    write_durably(path, json.dumps(whole, indent=indent, allow_nan=False) + "\n")


def evaluation_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of evaluation/NAME.json; [] without that file."""
    path = folder / EVALUATION / f"{name}.json"
    if not path.exists():
        return []
    return list(read_json(path, f"anchored evaluate --only {name}").get("rows", []))


def has_open_seam(prompt: str, reference: str) -> bool:
    """Tell whether a space is missing between a prompt and its continuation, as data sets cut them.
    A word begins after a space, which belongs to the continuation; marks such as commas have none,
    nor do the words of scripts without spaces."""
    if not prompt or reference.startswith(CLOSING_MARKS):
        return False
    joined, apart = words(prompt + reference), [*words(prompt), *words(reference)]
    return len(joined) < len(apart)


def generation_files(folder: Path) -> list[Path]:
    """generations/SETTING.jsonl of a run's folder, k=2 before k=10; ValueError without any."""
    all_files = sorted((folder / "generations").glob("*.jsonl"), key=_with_numbers)
    files = [file for file in all_files if not file.name.endswith(".unfinished.jsonl")]
    if not files:
        raise ValueError(f"{folder} holds no generations/*.jsonl and no files of texts")
    return files


def file_name(name: str) -> str:
    """The name of a setting, a model or a prompt in the names of files and folders."""
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


def figure_over_seeds(rows: Iterable[dict[str, Any]], figure: str) -> SeedStatistics | None:
    """Statistics of a figure's mean over the rows of each seed; None without rows."""
    seeds = grouped(rows, lambda row: row["seed"]).values()
    means = [math.fsum(row[figure] for row in same) / len(same) for same in seeds]
    return over_seeds(means) if means else None


def _with_numbers(file: Path) -> list[str | float]:
    """A key that sorts k=2 before k=10: texts and the numbers between them, in turn."""
    parts = re.split(r"(\d+(?:\.\d+)?)", file.stem)
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def _id(number: int, row: Record, is_by_prompt: bool) -> str:
    """The prompt's id; else a hash of its text, or the number of the row."""
    if row.get("id") is not None:
        return str(row["id"])
    if not is_by_prompt or (prompt := _entry(row, "prompt")) is None:
        return str(number)
    return hashlib.sha256(str(prompt).encode("utf-8", "surrogatepass")).hexdigest()[:12]


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


def _entry(row: Record, name: str) -> Any:
    """The entry of a row for a field of `RecordedText`."""
    return next((row[entry] for entry in _ENTRIES[name] if row.get(entry) is not None), None)


def _text(place: str, setting: str, prompt_id: str, row: Record) -> RecordedText:
    """The text of a row with the entries of its prompt. place: of the row, for messages."""
    values: dict[str, Any] = {"setting": setting, "id": prompt_id, "seed": 0}
    entries = {name: _entry(row, name) for name in _ENTRIES}
    values |= {name: entry for name, entry in entries.items() if entry is not None}
    if values.get("debt") == "inf":  # as ledgers have it
        values["debt"] = math.inf
    if "text" not in values:
        raise ValueError(f"{place} lacks {' or '.join(map(repr, _ENTRIES['text']))}")
    values["group"] = None if row.get("group") is None else str(row["group"])
    if error := field_error(RecordedText, values):
        raise ValueError(f"{place}: {error}")
    return RecordedText(row=row, **values)
