"""Tokenising beside the bare tokenizer: anchored bench tokenize --input TEXTS --tokenizer T

Both run in one process on one thread, and processor time is what counts, so that the rates are of
one core. The baseline has every text in memory and only encodes it; `anchored tokenize` reads,
parses, judges and encodes the same documents, and writes, hashes and describes the shards. Loading
the tokenizer counts in neither.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from anchored.pretrain.document import DocumentRules
from anchored.pretrain.document_encoder import DocumentEncoder
from anchored.pretrain.input_documents import RecordFields, input_documents
from anchored.pretrain.input_files import SourceFiles, local_files
from anchored.pretrain.shard_writer import DEFAULT_SHARD_TOKENS
from anchored.pretrain.shards import TokenShards
from anchored.pretrain.tokenize_job import TokenizeJob
from anchored.pretrain.tokenizer_file import tokenizer_file

BASELINE, OURS = "encode_batch_fast", "anchored tokenize"
BATCH_DOCUMENTS = 256
"""Of the baseline: more at once are not encoded faster."""
TITLES = ("MB/s a core", "tokens/s a core", "ratio", "other ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchTokenizeConfig:
    """What `anchored bench tokenize` measures."""

    input: tuple[Path, ...]
    """Local files or folders: .jsonl (also .gz, .zst), .parquet."""
    tokenizer: str
    """tokenizer.json, its folder, or a Hub model as OWNER/NAME@REVISION."""
    text_field: str = "text"
    """Field of a record that holds the text."""
    runs: int = 3
    """Of each, in turn; the median counts."""

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise ValueError(f"runs must be >= 1, got {self.runs}")


def run(config: BenchTokenizeConfig) -> int:
    """Print one table and return 0."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # asked for at every call: one thread from here
    file = tokenizer_file(config.tokenizer)
    files = local_files(config.input, revision="local")
    fields = RecordFields(text=config.text_field, fixed_licence="any")
    texts = _texts(files, fields)
    seconds: dict[str, list[float]] = {BASELINE: [], OURS: []}
    num_other_ids = 0
    for _ in range(config.runs):
        baseline_seconds, baseline_ids = encode(texts, file)
        our_seconds, our_ids = tokenize(files, fields, file)
        seconds[BASELINE].append(baseline_seconds)
        seconds[OURS].append(our_seconds)
        num_other_ids = max(num_other_ids, _num_different(baseline_ids, our_ids))
    num_bytes = sum(len(text.encode()) for text in texts)
    print(
        f"{len(texts):,} documents, {num_bytes / 1e6:,.1f} MB, {len(our_ids):,} tokens with BOS "
        f"and EOS, vocabulary {Tokenizer.from_file(str(file)).get_vocab_size():,}, tokenizers "
        f"{tokenizers.__version__}, one thread, processor time, median of {config.runs} runs"
    )
    print(_line("", *TITLES))
    for name, measured in seconds.items():
        print(
            _line(
                name,
                f"{num_bytes / 1e6 / median(measured):.3f}",
                f"{len(our_ids) / median(measured):,.0f}",
                f"{median(seconds[BASELINE]) / median(measured):.3f}",
                str(num_other_ids) if name == OURS else "-",
            )
        )
    return 0


def encode(texts: list[str], file: Path) -> tuple[float, np.ndarray]:
    """The baseline: seconds to encode all texts, and their ids (num_tokens,) with BOS and EOS."""
    encoder = DocumentEncoder(file)
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True  # text that looks like a special token is text
    seconds, ids = 0.0, []
    for first in range(0, len(texts), BATCH_DOCUMENTS):
        batch = texts[first : first + BATCH_DOCUMENTS]
        start = time.process_time()
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        seconds += time.process_time() - start
        ids += [
            np.array([encoder.bos_id, *encoding.ids, encoder.eos_id], dtype="<u4")
            for encoding in encodings
        ]
    return seconds, np.concatenate(ids)


def tokenize(files: SourceFiles, fields: RecordFields, file: Path) -> tuple[float, np.ndarray]:
    """Seconds to make token shards of the files, and the shards' ids (num_tokens,)."""
    encoder = DocumentEncoder(file)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        job = TokenizeJob(
            source="bench",
            output=Path(folder) / "shards",
            inputs=files,
            tokenizer_file=file,
            fields=fields,
            rules=DocumentRules(),
            max_tokens_per_shard=DEFAULT_SHARD_TOKENS,
        )
        job.start()
        for index in range(len(files.files)):
            job.tokenize_file(index, encoder, lambda encoded: None)
        job.finish(encoder)
        seconds = time.process_time() - start
        shards = TokenShards.open(job.output)
        return seconds, shards.tokens(0, shards.num_tokens)


def _texts(files: SourceFiles, fields: RecordFields) -> list[str]:
    rules = DocumentRules()
    documents = (one for file in files.files for one in input_documents(file, fields))
    return [one.text.decode() for one in documents if one.text and rules.verdict(one).is_kept]


def _num_different(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    return int((one[:length] != other[:length]).sum()) + max(len(one), len(other)) - length


def _line(name: str, *cells: str) -> str:
    return f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells)
