"""Searching one source for texts that it must not hold, and the report that leaves them out."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...durable_files import file_sha256, locked, new_file, new_folder, write_durably
from ...identities import check_same
from .documents import RecordFields, input_documents, text_digest
from .input_files import DamagedFile, InputFile, SourceFiles, json_records
from .passages import NUM_LETTERS, NUM_WORDS, Passages
from .workers import ADVICE, FileJob, FileWork, Observer

SCHEMA = "anchored-decontamination/1"
_JSON_LINES = (".jsonl", ".ndjson", ".gz", ".zst", ".zstd")
_PARQUET_ROWS = 256
_AGAINST = "against"
# No tokenizer takes a longer document at once, so none is trained on that was not searched.
_MAX_SEARCHED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ForbiddenTexts:
    """The texts looked for: their names, the files that they are from, and their passages."""

    names: list[str]
    files: list[dict[str, Any]]
    """"name", "sha256", "num_texts", and "num_short": texts without a passage to look for."""
    passages: Passages

    @classmethod
    def prepare(cls, files: Sequence[Path], output: Path) -> "ForbiddenTexts":
        """Hash the texts of some files into a folder of `output`, or check what is there.

        files: JSON lines, JSON or Parquet, of which every string counts as text, else plain
        text; or folders of these.
        Raises: ValueError for a file that cannot be read, or other texts or things there.
        """
        lock = output / f"{_AGAINST}.lock"
        if output.exists() and any(output.iterdir()) and not lock.exists():
            raise ValueError(f"{output} holds other things: name a new folder")
        paths = [file for path in files for file in _files(path)]
        wanted = [{"name": path.name, "sha256": file_sha256(path)} for path in paths]
        folder = output / _AGAINST
        if not folder.exists():
            hashed = cls._hashed(paths, wanted)  # before the lock: what cannot be read leaves none
            with locked(lock):
                if not folder.exists():  # another process may have been faster
                    with new_folder(folder) as partial:
                        hashed.passages.save(partial)
                        table = {"names": hashed.names, "files": hashed.files}
                        (partial / "texts.json").write_text(json.dumps(table) + "\n")
        texts = cls.load(output)
        kept = [{name: file[name] for name in ("name", "sha256")} for file in texts.files]
        check_same({_AGAINST: kept}, {_AGAINST: wanted}, folder, advice=ADVICE)
        return texts

    @classmethod
    def load(cls, output: Path) -> "ForbiddenTexts":
        """The texts that `prepare` hashed; processes of a machine share their memory."""
        folder = output / _AGAINST
        table = json.loads((folder / "texts.json").read_text())
        return cls(table["names"], table["files"], Passages.load(folder))

    @classmethod
    def _hashed(cls, paths: Sequence[Path], files: list[dict[str, Any]]) -> "ForbiddenTexts":
        names: list[str] = []
        ends = [0]

        def numbered() -> Iterator[tuple[int, str]]:
            for path in paths:
                for name, strings in _texts(path):
                    names.append(name)
                    yield from ((len(names) - 1, string) for string in strings)
                ends.append(len(names))

        passages, long_ones = Passages.of(numbered())
        if not long_ones:
            raise ValueError(
                f"the texts to look for hold no {NUM_WORDS} words or {NUM_LETTERS} letters in a row"
            )
        counted = []
        for file, (start, end) in zip(files, pairwise(ends), strict=True):
            num_short = sum(number not in long_ones for number in range(start, end))
            counted.append(file | {"num_texts": end - start, "num_short": num_short})
        return cls(names, counted, passages)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminationJob(FileJob):
    """The search of one source.

    OUTPUT/progress/SOURCE records every finished file, OUTPUT/against the passages looked for.
    """

    against: list[dict[str, Any]]
    """`ForbiddenTexts.files` of the texts looked for."""

    @property
    def report_file(self) -> Path:
        return self.output / f"{self.source}.jsonl"

    @property
    def progress(self) -> Path:
        return self.output / "progress" / self.source

    def identity(self) -> dict[str, Any]:
        return {
            "source": self.source,
            **_searched(self.inputs, self.fields),
            "against": self.against,
            "num_words": NUM_WORDS,
            "num_letters": NUM_LETTERS,
        }

    def open(self) -> FileWork:
        return functools.partial(self.search_file, texts=ForbiddenTexts.load(self.output))

    def search_file(self, index: int, observe: Observer, *, texts: ForbiddenTexts) -> None:
        """Record what the file's documents share with the texts, unless that is done."""
        path, file = self._file_path(index), self.inputs.files[index]
        with locked(self.lock_of(index), waits=False) as is_ours:
            if not is_ours or path.exists():
                return
            table: dict[str, Any] = {"num_documents": 0, "num_bytes": 0, "documents": []}
            for document in input_documents(
                file, self.fields, max_document_bytes=_MAX_SEARCHED_BYTES
            ):
                text = document.text or b""
                table["num_documents"] += 1
                table["num_bytes"] += len(text)
                if shared := texts.passages.shared_with(text.decode(), texts.names):
                    where = {"input_file": file.name, "record": document.record}
                    match = {**where, "digest": text_digest(text).hex(), **asdict(shared)}
                    table["documents"].append(match)
                observe(len(text), 1)
            write_durably(path, json.dumps(table) + "\n")

    def finish(self, *, least_chars: int) -> "Report | None":
        """Write the report, in place of an earlier one; None while input files are missing.

        least_chars: documents that share fewer characters are reported and kept.
        """
        paths = [self._file_path(index) for index in range(len(self.inputs.files))]
        if not all(path.exists() for path in paths):
            return None
        tables = [json.loads(path.read_text()) for path in paths]
        documents = [document for table in tables for document in table["documents"]]
        for document in documents:
            document["left_out"] = document["num_chars"] >= least_chars
        sums = {key: sum(table[key] for table in tables) for key in ("num_documents", "num_bytes")}
        report = Report(**self.identity(), **sums, least_chars=least_chars, documents=documents)
        report.write(self.report_file)
        return report

    def _file_path(self, index: int) -> Path:
        return self.progress / f"file-{index:05d}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The matches of a source with the texts looked for: a JSON line, then one a document.

    A document has "input_file", "record", "digest", the fields of `SharedText`, and "left_out".
    """

    source: str
    revision: str
    text_field: str
    files: list[list[Any]]
    """Name and size of each input file."""
    against: list[dict[str, Any]]
    num_words: int
    num_letters: int
    least_chars: int
    num_documents: int
    num_bytes: int
    documents: list[dict[str, Any]]

    @property
    def left_out(self) -> frozenset[bytes]:
        """Digests of the texts that are not trained on."""
        return frozenset(bytes.fromhex(one["digest"]) for one in self.documents if one["left_out"])

    @property
    def num_left_out(self) -> int:
        return sum(document["left_out"] for document in self.documents)

    def _head(self, *omitted: str) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in omitted}

    def summary(self) -> dict[str, Any]:
        """The report for manifests and model cards: documents and files are counted, not listed."""
        counts = {"num_matched": len(self.documents), "num_left_out": self.num_left_out}
        return self._head("documents", "files") | counts

    def write(self, path: Path) -> None:
        """Replace the file."""
        head = {"schema": SCHEMA, **self._head("documents")}
        with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
            for row in (head, *self.documents):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Raises ValueError if the file is no such report."""
        try:
            head, *documents = map(json.loads, path.read_bytes().splitlines())
            if head.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            return cls(**head, documents=documents)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a decontamination report: {error}") from error

    def check(self, inputs: SourceFiles, fields: RecordFields) -> None:
        """Raise ValueError unless these are the texts that were searched."""
        for name, value in _searched(inputs, fields).items():
            if value != getattr(self, name):
                raise ValueError(
                    f"the decontamination report of {self.source} was made of other inputs: their "
                    f"{name} differ; run `anchored decontaminate` on these"
                )


def _searched(inputs: SourceFiles, fields: RecordFields) -> dict[str, Any]:
    """The texts of a source, as reports name them."""
    files = [[file.name, file.num_bytes] for file in inputs.files]
    return {"revision": inputs.revision, "text_field": fields.text, "files": files}


def search_summary(summary: Mapping[str, Any]) -> str:
    """One line of what `Report.summary` says."""
    form = (
        "{num_matched:,} of {num_documents:,} documents share {num_words} words or {num_letters} "
        "letters in a row with {names}; {num_left_out:,} left out"
    )
    return form.format(**summary, names=", ".join(file["name"] for file in summary["against"]))


def _files(path: Path) -> list[Path]:
    return sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]


def _texts(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The texts of a file: a name, and all strings that it consists of."""
    try:
        if path.name.endswith(_JSON_LINES):
            lines = json_records(InputFile(path.name, str(path), 0))
            rows: Iterator[tuple[int, Any]]
            rows = ((number, json.loads(line)) for number, line in enumerate(lines, 1) if line)
        elif path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            batches = ParquetFile(path).iter_batches(_PARQUET_ROWS)
            rows = enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        elif path.suffix == ".json":
            table = json.loads(path.read_bytes())
            rows = enumerate(table if isinstance(table, list) else [table], 1)
        else:
            yield path.name, [path.read_text(encoding="utf-8")]
            return
        for number, row in rows:
            yield f"{path.name}:{number}", list(_strings(row))
    except (DamagedFile, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as texts to look for: {error}") from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
