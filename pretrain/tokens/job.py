"""Tokenising one source: its settings, its folder, and the work on one input file."""

import fcntl
import functools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...durable_files import file_sha256, partial_path, sync_folder, write_durably
from .documents import (
    DEFAULT_MAX_INVALID_DOCUMENTS,
    DocumentRules,
    RecordFields,
    Verdict,
    input_documents,
)
from .encoder import DocumentEncoder, EncodedDocument
from .input_files import SourceFiles
from .shards import MANIFEST_NAME
from .workers import FileWork, Observer
from .writer import DocumentTally, Segment, write_manifests, write_segments

SCHEMA = "anchored-tokenize/2"
_PROGRESS_FOLDER = "progress"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeJob:
    """All that decides the shards of a source.

    The shards are written to OUTPUT.partial, each input file by itself, so that any number of
    processes on any number of machines share the work. progress/ there records every finished
    segment. When all are, the folder gets its manifests and its name.
    """

    source: str
    output: Path
    inputs: SourceFiles
    tokenizer_file: Path
    fields: RecordFields
    rules: DocumentRules
    max_tokens_per_shard: int
    max_tokens: int = 0
    """Tokens to train on that are enough, taken from the beginning of every file in proportion to
    its bytes; 0: all."""
    max_invalid_documents: int = DEFAULT_MAX_INVALID_DOCUMENTS
    """Records without text to read that the source may have; no part of `identity`, as the shards
    do not depend on it: a source that was ended by them goes on with a higher number."""
    decontamination: dict[str, Any] = field(default_factory=dict)
    """Summary of the report whose documents `rules` leave out; empty where there is none."""

    def __post_init__(self) -> None:
        if self.max_invalid_documents < 0:
            raise ValueError(
                f"max_invalid_documents must be at least 0, got {self.max_invalid_documents}"
            )

    @property
    def partial(self) -> Path:
        """The folder while it is being filled."""
        return partial_path(self.output)

    @property
    def is_complete(self) -> bool:
        """Whether the shards are all written and described."""
        return (self.output / MANIFEST_NAME).is_file()

    def start(self) -> None:
        """Make the folder, or check that what is there was begun with the same settings.

        Raises: ValueError naming the first setting that differs, or if the output is not ours.
        """
        if self.output.exists() and not self.is_complete:
            raise ValueError(f"output folder {self.output} exists and holds no token shards")
        folder = self.output if self.is_complete else self.partial
        path = folder / _PROGRESS_FOLDER / "job.json"
        if not path.exists() and self.is_complete:
            raise ValueError(f"output folder {self.output} was not written by `anchored tokenize`")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock("start"):
            claim(path, self.identity(), folder)

    def identity(self) -> dict[str, Any]:
        """The settings as a JSON object; jobs with the same write the same bytes."""
        table = {
            "schema": SCHEMA,
            "source": self.source,
            "revision": self.inputs.revision,
            "tokenizer_sha256": file_sha256(self.tokenizer_file),
            "fields": asdict(self.fields),
            # What is left out stands in the summary of the decontamination.
            "rules": {
                name: value for name, value in asdict(self.rules).items() if name != "left_out"
            },
            "max_tokens": self.max_tokens,
            "max_tokens_per_shard": self.max_tokens_per_shard,
            "files": [[file.name, file.num_bytes] for file in self.inputs.files],
            "decontamination": self.decontamination,
        }
        return json.loads(json.dumps(table))

    def open(self) -> FileWork:
        """Tokenises the file of an index with a tokenizer that is read once."""
        return functools.partial(self.tokenize_file, encoder=DocumentEncoder(self.tokenizer_file))

    def tokenize_file(self, index: int, observe: Observer, *, encoder: DocumentEncoder) -> None:
        """Write the segments of input file `index` that are missing.

        Where another process is at work on the same file, waits until that one is done.
        Raises: ValueError if the file alone has more invalid documents than the source may have.
        """
        with self._lock(f"{index:05d}"):
            done = self._segments(index)
            if self.is_complete or (done and done[-1].is_last):
                return
            first = done[-1].next_record if done else 0
            file = self.inputs.files[index]
            documents = input_documents(file, self.fields, first_record=first)
            tally = DocumentTally.total(segment.tally for segment in done)
            encoded = self._watched(encoder.encode(documents, self.rules), tally, observe)
            if self.max_tokens:
                # Of one file so many are enough as it has a share of the bytes.
                num_bytes = sum(file.num_bytes for file in self.inputs.files)
                enough = -(-self.max_tokens * file.num_bytes // max(1, num_bytes))
                shards = [segment.shards.get(Verdict.TRAIN) for segment in done]
                num_done = sum(shard.num_tokens for shard in shards if shard)
                encoded = _first_tokens(encoded, enough - num_done)
            segments = write_segments(
                encoded,
                self.partial,
                max_tokens=self.max_tokens_per_shard,
                input_file=file.name,
                prefix=f"{index:05d}-",
                first_index=len(done),
            )
            for number, segment in enumerate(segments, start=len(done)):
                segment.write(self._segment_path(index, number))

    def finish(self, encoder: DocumentEncoder) -> bool:
        """Give the folder its manifests and its name; False if input files are still missing.

        Raises: ValueError if all files together have too many invalid documents, or no text.
        """
        with self._lock("finish"):
            if self.is_complete:  # another process was faster
                return True
            by_file = [self._segments(index) for index in range(len(self.inputs.files))]
            if not all(segments and segments[-1].is_last for segments in by_file):
                return False
            segments = [segment for group in by_file for segment in group]
            self._check_problems(DocumentTally.total(one.tally for one in segments).problems)
            write_manifests(
                self.partial,
                segments,
                source=self.source,
                revision=self.inputs.revision,
                encoder=encoder,
                rules=self.rules,
                decontamination=self.decontamination,
            )
            for left in (self.partial / _PROGRESS_FOLDER).glob("*.partial-*"):
                left.unlink()  # half written by a process that was killed
            self.partial.rename(self.output)
            sync_folder(self.output.parent)
            return True

    def _watched(
        self, documents: Iterator[EncodedDocument], done: DocumentTally, observe: Observer
    ) -> Iterator[EncodedDocument]:
        """The documents of a file after those that are done, each counted by `observe`."""
        problems = Counter(done.problems)
        for encoded in documents:
            if problem := encoded.document.problem:
                problems[problem.value] += 1
                self._check_problems(problems)
            observe(*encoded.size)
            yield encoded

    def _check_problems(self, problems: Counter[str]) -> None:
        if problems.total() > self.max_invalid_documents:
            counts = ", ".join(f"{count} {problem}" for problem, count in problems.most_common())
            raise ValueError(
                f"source {self.source} has more than {self.max_invalid_documents} records without "
                f"text that can be read ({counts}; text field {self.fields.text!r}): mend the "
                "input, or allow more with max_invalid_documents and go on"
            )

    def _segments(self, index: int) -> list[Segment]:
        segments: list[Segment] = []
        while (path := self._segment_path(index, len(segments))).exists():
            segments.append(Segment.read(path))
        return segments

    def _segment_path(self, index: int, number: int) -> Path:
        return self.partial / _PROGRESS_FOLDER / f"segment-{index:05d}-{number:05d}.json"

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        # Held by the system: it goes with the process, however that ends.
        path = Path(_PROGRESS_FOLDER) / f"{name}.lock"
        try:
            file = (self.partial / path).open("w")
        except FileNotFoundError:  # completed by another process, and renamed
            file = (self.output / path).open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _first_tokens(documents: Iterator[EncodedDocument], count: int) -> Iterator[EncodedDocument]:
    """Documents until those to train on have so many tokens; a generator is closed with them."""
    for encoded in documents if count > 0 else ():
        yield encoded
        if encoded.verdict is Verdict.TRAIN:
            count -= encoded.size[1]
            if count <= 0:
                return


def claim(path: Path, ours: dict[str, Any], folder: Path) -> None:
    """Record settings in a file of a folder; where it is there, raise as `check_same` does."""
    if path.exists():
        check_same(json.loads(path.read_text()), ours, folder)
    else:
        write_durably(path, json.dumps(ours, indent=2) + "\n")


def check_same(recorded: dict[str, Any], ours: dict[str, Any], folder: Path) -> None:
    """Raise ValueError, naming the first that differs, unless settings are as recorded before."""
    for key, value in ours.items():
        if recorded.get(key) != value:
            before, now = (
                text if len(text) <= 200 else text[:197] + "..."
                for text in (json.dumps(recorded.get(key)), json.dumps(value))
            )
            raise ValueError(
                f"{folder} was begun with other settings ({key} was {before} and is now {now}): "
                "restore it or choose another output"
            )
