"""Tokenizing one source: its settings, its folder, and the work on one input file."""

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...durable_files import file_sha256, locked
from .documents import DEFAULT_MAX_INVALID_DOCUMENTS, DocumentRules, Verdict, input_documents
from .shards import MANIFEST_NAME
from .tokenizer import DocumentEncoder, EncodedDocument
from .workers import FileJob, FileWork, Observer
from .writer import DocumentTally, Segment, write_manifests, write_segments

SCHEMA = "anchored-tokenize/4"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeJob(FileJob):
    """All that decides the shards of a source.

    Each input file gets shards by itself, and OUTPUT/progress records every finished segment. When
    all are, the manifest follows: without one the folder is none of shards.
    """

    tokenizer_file: Path
    begin_token: str
    end_token: str
    """Names of the tokens around a document, the former NO_TOKEN for none."""
    rules: DocumentRules
    max_tokens_per_shard: int
    max_tokens: int = 0
    """Tokens to train on that are enough, taken from the beginning of every file in proportion to
    its bytes; 0: all."""
    max_invalid_documents: int = DEFAULT_MAX_INVALID_DOCUMENTS
    """Records without text to read that the source may have; no part of `identity`, as the shards
    do not depend on it."""
    decontamination: dict[str, Any] = field(default_factory=dict)
    """Summary of the report whose documents `rules` leave out; empty where there is none."""

    @property
    def progress(self) -> Path:
        return self.output / "progress"

    @property
    def is_complete(self) -> bool:
        """True if the shards are all written and described."""
        return (self.output / MANIFEST_NAME).is_file()

    def start(self) -> None:
        """Begin the folder, or check that what is there was begun with the same settings.

        Raises: ValueError naming the first setting that differs, or if the output is not ours.
        """
        # In this order: another process may begin meanwhile, and records its settings first.
        names = {path.name for path in self.output.iterdir()} if self.output.exists() else set()
        if names - {self.progress.name} and not (self.progress / "job.json").exists():
            raise ValueError(
                f"output folder {self.output} exists and was not begun by `anchored tokenize`"
            )
        FileJob.start(self)  # not super(), which a dataclass with slots has lost

    def identity(self) -> dict[str, Any]:
        rules = asdict(self.rules)
        del rules["left_out"]  # it is in the summary of the decontamination
        return {
            "schema": SCHEMA,
            "source": self.source,
            "revision": self.inputs.revision,
            "tokenizer_sha256": file_sha256(self.tokenizer_file),
            "begin_token": self.begin_token,
            "end_token": self.end_token,
            "fields": asdict(self.fields),
            "rules": rules,
            "max_tokens": self.max_tokens,
            "max_tokens_per_shard": self.max_tokens_per_shard,
            "files": [[file.name, file.num_bytes] for file in self.inputs.files],
            "decontamination": self.decontamination,
        }

    def open(self) -> FileWork:
        encoder = DocumentEncoder(
            self.tokenizer_file, begin_token=self.begin_token, end_token=self.end_token
        )
        return functools.partial(self.tokenize_file, encoder=encoder)

    def tokenize_file(self, index: int, observe: Observer, *, encoder: DocumentEncoder) -> None:
        """Write the segments of input file `index` that are missing.

        Raises: ValueError if the file alone has more invalid documents than the source may have.
        """
        with locked(self.lock_of(index), waits=False) as is_ours:
            # 1. What is recorded is done, up to the record after its last segment.
            done = self._segments(index)
            if not is_ours or (done and done[-1].is_last):
                return
            first = done[-1].next_record if done else 0
            tally = DocumentTally.total(segment.tally for segment in done)
            # 2. The documents from there on, each judged, encoded and counted.
            file, longest = self.inputs.files[index], self.rules.max_document_bytes
            documents = input_documents(
                file, self.fields, first_record=first, max_document_bytes=longest
            )
            encoded = self._watched(encoder.encode(documents, self.rules), tally, observe)
            # 3. Of one file so many tokens are enough as it has a share of the bytes.
            if self.max_tokens:
                num_bytes = sum(file.num_bytes for file in self.inputs.files)
                enough = -(-self.max_tokens * file.num_bytes // max(1, num_bytes))
                shards = [one.shards[Verdict.TRAIN] for one in done if Verdict.TRAIN in one.shards]
                enough -= sum(shard.num_tokens for shard in shards)
                encoded = _first_tokens(encoded, enough)
            # 4. A segment is recorded once its shards are on the disk.
            segments = write_segments(
                encoded,
                self.output,
                max_tokens=self.max_tokens_per_shard,
                input_file=file.name,
                prefix=f"{index:05d}-",
                first_index=len(done),
            )
            for number, segment in enumerate(segments, start=len(done)):
                segment.write(self._segment_path(index, number))

    def finish(self, encoder: DocumentEncoder) -> bool:
        """Write the manifests; False if input files are still missing.

        Raises: ValueError if all files together have too many invalid documents, or no text.
        """
        with locked(self.progress / "finish.lock"):
            if self.is_complete:  # another process was faster
                return True
            by_file = [self._segments(index) for index in range(len(self.inputs.files))]
            if not all(segments and segments[-1].is_last for segments in by_file):
                return False
            segments = [segment for group in by_file for segment in group]
            self._check_problems(DocumentTally.total(one.tally for one in segments).problems)
            for left in self.progress.glob("*.partial-*"):
                left.unlink()  # half written by a process that was killed
            write_manifests(
                self.output,
                segments,
                source=self.source,
                revision=self.inputs.revision,
                encoder=encoder,
                rules=self.rules,
                decontamination=self.decontamination,
            )
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
        return self.progress / f"segment-{index:05d}-{number:05d}.json"


def _first_tokens(documents: Iterator[EncodedDocument], count: int) -> Iterator[EncodedDocument]:
    """Documents until those to train on have so many tokens; a generator is closed with them."""
    for encoded in documents if count > 0 else ():
        yield encoded
        if encoded.verdict is Verdict.TRAIN:
            count -= encoded.size[1]
            if count <= 0:
                return
