"""Training text searched for works and benchmarks that it must not hold."""

from dataclasses import dataclass
from pathlib import Path

from anchored import text_tables
from anchored.fields import check_least
from anchored.inputs import check_input
from anchored.pretrain.tokens.decontamination import DecontaminationJob, ForbiddenTexts, Report
from anchored.pretrain.tokens.documents import RecordFields
from anchored.pretrain.tokens.workers import do_files

from .tokenize import STILL_AT_WORK, SourceConfig, each_source, input_files, with_mixture

_NUM_SHOWN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateConfig(SourceConfig):
    """Search training text: anchored decontaminate --source S --input TEXTS --against F --output D

    Looks in every document for 13 words or 64 letters in a row of the texts of --against, whatever
    their case, spaces and punctuation, and writes D/S.jsonl, which anchored tokenize takes as its
    option --leave-out. Run again after an interruption it goes on with the next input file; any
    number of these commands, on any machines, share the files, as in tokenize.
    """

    against: tuple[Path, ...]
    """Works, prompts and benchmarks to search for: JSON lines, JSON or Parquet (every string in
    them counts), plain text, or folders of these."""
    output: Path
    """Folder of the reports; all sources share the hashes in it, 14 to 16 bytes a passage."""
    least_chars: int = 0
    """Characters that a document must share to be left out; others are reported and kept."""

    def __post_init__(self) -> None:
        SourceConfig.__post_init__(self)
        check_least(self, 0, "least_chars")


def run(config: DecontaminateConfig) -> int:
    """Search the files that no other process is at work on; the last one reports on the source."""
    for path in config.against:
        check_input(path, "folder" if path.is_dir() else "file")
    parts = map(with_mixture, each_source(config))
    inputs = {part.source: input_files(part, config.output) for part in parts}
    texts = ForbiddenTexts.prepare(config.against, config.output)
    print(_texts_report(texts))
    for source, files in inputs.items():
        job = DecontaminationJob(
            source=source,
            output=config.output,
            inputs=files,
            fields=RecordFields(text=config.text_field),
            against=texts.files,
        )
        job.start()
        print(do_files(job, num_workers=config.workers, unit="documents"))
        report = job.finish(least_chars=config.least_chars)
        shown = f"{_report(report)}\n{job.report_file}" if report else f"{source}: {STILL_AT_WORK}"
        print(shown)
    return 0


def _texts_report(texts: ForbiddenTexts) -> str:
    hashes, size = texts.passages.hashes, texts.passages.num_bytes
    lines = [
        f"looking for {len(hashes):,} passages of {len(texts.names):,} texts: "
        f"{size / 1e6:,.1f} MB of memory, {size / len(hashes):.1f} bytes a passage"
    ]
    lines += [
        f"  {file['name']}: {file['num_short']:,} of {file['num_texts']:,} texts are too short"
        for file in texts.files
        if file["num_short"]
    ]
    return "\n".join(lines)


def _report(report: Report) -> str:
    """Count the matches, and list the documents that share most."""
    head = (
        f"{report.source}: {len(report.documents):,} of {report.num_documents:,} documents share "
        f"passages, {report.num_left_out:,} to be left out"
    )
    rows = []
    for one in sorted(report.documents, key=lambda one: -int(one["num_chars"]))[:_NUM_SHOWN]:
        figures = f"{one['num_chars']:,}", f"{one['share']:.1%}", f"{one['longest']:,}"
        rows.append([f"{one['input_file']}:{one['record']}", *figures, one["texts"][0]])
    titles = ("document", "characters", "share", "longest", "with")
    return "\n".join([head, text_tables.aligned(titles, rows)] if rows else [head])
