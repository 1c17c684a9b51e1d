"""The command that finds a passage for each prompt."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anchored.durable_files import write_durably
from anchored.inputs import check_input, read_prompts

from .files import check_outputs
from .words import OutputFile

if TYPE_CHECKING:
    from anchored.eval.retrieval.passages import PassageIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrieveConfig:
    """Find a passage for each prompt: anchored retrieve --corpus books.jsonl --prompt-file P.jsonl

    Writes the prompts' own lines with "passage", "passage_id" and "score". The command generate
    takes them as --prompt-file for the rules that read a passage, and as --passages for MemFree.
    """

    corpus: Path
    """File of passages, JSON lines {"text": ..., optional "id"}."""
    prompt_file: Path
    """File of prompts, JSON lines {"prompt": ..., ...}, or - for stdin."""
    output: OutputFile | None = None
    """File for the lines; stdout unless given."""
    encoder: str | None = None
    """Model of sentence-transformers whose embeddings are compared, a folder or a Hub id as
    Alibaba-NLP/gte-Qwen2-1.5B-instruct; words are compared unless given."""
    instruction: str | None = None
    """Text in front of a query that the encoder reads; the paper's unless given."""
    index: Path | None = None
    """Folder of the index, which is made once; CORPUS.bm25 or CORPUS.dense unless given."""
    overwrite: bool = False
    """Replace an output that exists."""

    def __post_init__(self) -> None:
        check_input(self.corpus)
        if self.instruction is not None and self.encoder is None:
            raise ValueError("--instruction needs an --encoder")
        check_outputs(self, self.output)


def run(config: RetrieveConfig) -> int:
    """Find, write; returns the exit status."""
    lines = read_prompts(config.prompt_file)
    passages, text = _index(config).search([line.prompt for line in lines]), ""
    for line, found in zip(lines, passages, strict=True):
        passage = {"passage": found.text, "passage_id": found.id, "score": found.score}
        text += json.dumps({**line.record(), **passage}) + "\n"
    if config.output is None:
        print(text, end="")
    else:
        write_durably(config.output, text, overwrite=config.overwrite)
    return 0


def _index(config: RetrieveConfig) -> "PassageIndex":
    kind = "bm25" if config.encoder is None else "dense"
    folder = config.index or config.corpus.with_name(f"{config.corpus.name}.{kind}")
    progress = sys.stderr.isatty()
    if config.encoder is None:
        from anchored.eval.retrieval.bm25 import WordIndex

        return WordIndex(config.corpus, folder, progress=progress)
    from anchored.eval.retrieval.dense import INSTRUCTION, DenseIndex

    own = INSTRUCTION if config.instruction is None else config.instruction
    return DenseIndex(config.corpus, folder, config.encoder, instruction=own, progress=progress)
