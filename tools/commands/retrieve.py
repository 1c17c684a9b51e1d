"""The command that finds a passage for each prompt."""

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from anchored.durable_files import new_file

from .files import check_input, check_outputs, read_prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrieveConfig:
    """Passages for the rules that read one: anchored retrieve --corpus books.jsonl
    --prompt-file prompts.jsonl --output with-passages.jsonl

    The output has the prompts' own lines with "passage", "passage_id" and "score"; generate takes
    it as --prompt-file, and as --passages for MemFree.
    """

    corpus: Path
    """JSON lines, {"text": ..., optional "id"}: one passage each."""
    prompt_file: Path
    """JSON lines, {"prompt": ..., ...}, or - for stdin."""
    output: Path | None = None
    """File for the lines; stdout unless given."""
    index: Path | None = None
    """Folder of the index, made once; CORPUS.bm25 unless given."""
    overwrite: bool = False
    """Replace an output that exists."""

    def __post_init__(self) -> None:
        check_input(self.corpus)
        check_outputs(self.output, overwrite=self.overwrite)


def run(config: RetrieveConfig) -> int:
    """Find, write; returns the exit status."""
    from anchored.eval.retrieval.bm25 import PassageIndex

    lines = read_prompts(config.prompt_file)
    folder = config.index or config.corpus.with_name(f"{config.corpus.name}.bm25")
    index = PassageIndex.build(config.corpus, folder, progress=sys.stderr.isatty())
    found = index.search([line.prompt for line in lines])
    with ExitStack() as files:
        output = sys.stdout
        if config.output is not None:
            partial = files.enter_context(new_file(config.output))
            output = files.enter_context(partial.open("w", encoding="utf-8"))
        for line, own in zip(lines, found, strict=True):
            passage = {"passage": own.text, "passage_id": own.id, "score": own.score}
            print(json.dumps({**line.record(), **passage}), file=output)
    return 0
