"""Tokenising beside the bare tokenizer."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from anchored import text_tables
from anchored.pretrain.tokens.documents import (
    DEFAULT_SHARD_TOKENS,
    DocumentRules,
    RecordFields,
    input_documents,
)
from anchored.pretrain.tokens.encoder import DocumentEncoder, tokenizer_file
from anchored.pretrain.tokens.input_files import InputFile, SourceFiles, local_files
from anchored.pretrain.tokens.job import TokenizeJob
from anchored.pretrain.tokens.shards import TokenShards

from ..options import BenchTokenizeConfig
from ..timing import PROCESS, Stopwatch

BASELINE, OURS = "encode_batch_fast", "anchored tokenize"
BATCH_DOCUMENTS = 256
"""Of the baseline: more at once are not encoded faster."""
TITLES = ("MB/s a core", "tokens/s a core", "ratio", "other ids")


@dataclass(slots=True)
class Tally:
    """Sums over the files of one run."""

    num_documents: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    baseline_seconds: float = 0.0
    our_seconds: float = 0.0
    num_other_ids: int = 0
    """Places where the shards do not hold the id of the bare tokenizer."""

    def rates(self, seconds: float) -> tuple[str, str]:
        """MB and tokens a second."""
        return f"{self.num_bytes / 1e6 / seconds:.3f}", f"{self.num_tokens / seconds:,.0f}"


def run(config: BenchTokenizeConfig) -> int:
    """Print one table and return 0."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # asked for at every call: one thread from here
    file = tokenizer_file(config.tokenizer)
    files = local_files(config.input, revision="local").files
    fields = RecordFields(text=config.text_field, fixed_licence="any")
    runs = [measure(files, fields, file) for _ in range(config.runs)]
    size = runs[0]
    print(
        f"{size.num_documents:,} documents, {size.num_bytes / 1e6:,.1f} MB in {len(files)} files, "
        f"{size.num_tokens:,} tokens with BOS and EOS, tokenizers {tokenizers.__version__}, one "
        f"thread, processor time, median of {config.runs} runs"
    )
    baseline = median(run.baseline_seconds for run in runs)
    ours = median(run.our_seconds for run in runs)
    ratio = median(run.baseline_seconds / run.our_seconds for run in runs)
    num_other_ids = max(run.num_other_ids for run in runs)
    rows = [
        ("", *TITLES),
        (BASELINE, *size.rates(baseline), "1.000", "-"),
        (OURS, *size.rates(ours), f"{ratio:.3f}", str(num_other_ids)),
    ]
    text_tables.print_lines(rows, 18, name_width=20)
    return 0


def measure(files: tuple[InputFile, ...], fields: RecordFields, file: Path) -> Tally:
    """Encode and tokenise each input file. file: tokenizer.json, loaded anew for each of both."""
    encoder, tokenizer = DocumentEncoder(file), Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True  # text that looks like a special token is text
    tally = Tally()
    for one in files:
        texts = kept_texts(one, fields)
        baseline_seconds, texts_ids = encode(texts, tokenizer)
        our_seconds, ids = tokenize(one, fields, file, encoder)
        expected = [np.array([encoder.bos_id, *each, encoder.eos_id]) for each in texts_ids]
        tally.num_documents += len(texts)
        tally.num_bytes += sum(len(text.encode()) for text in texts)
        tally.num_tokens += len(ids)
        tally.baseline_seconds += baseline_seconds
        tally.our_seconds += our_seconds
        tally.num_other_ids += _num_different(np.concatenate(expected), ids)
    return tally


def encode(texts: list[str], tokenizer: Tokenizer) -> tuple[float, list[list[int]]]:
    """The baseline: seconds to encode all texts, and the ids of each without BOS and EOS."""
    seconds, ids = 0.0, []
    for first in range(0, len(texts), BATCH_DOCUMENTS):
        batch = texts[first : first + BATCH_DOCUMENTS]
        with Stopwatch(PROCESS) as watch:
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        seconds += watch.seconds
        ids += [encoding.ids for encoding in encodings]
    return seconds, ids


def tokenize(
    one: InputFile, fields: RecordFields, file: Path, encoder: DocumentEncoder
) -> tuple[float, np.ndarray]:
    """Seconds to make token shards of an input file, and the shards' ids (num_tokens,)."""
    with tempfile.TemporaryDirectory() as folder:
        with Stopwatch(PROCESS) as watch:
            job = TokenizeJob(
                source="bench",
                output=Path(folder) / "shards",
                inputs=SourceFiles("local", (one,)),
                tokenizer_file=file,
                fields=fields,
                rules=DocumentRules(),
                max_tokens_per_shard=DEFAULT_SHARD_TOKENS,
            )
            job.start()
            job.tokenize_file(0, lambda num_bytes, num_tokens: None, encoder=encoder)
            job.finish(encoder)
        seconds = watch.seconds
        shards = TokenShards.open(job.output)
        return seconds, shards.tokens(0, shards.num_tokens)


def kept_texts(one: InputFile, fields: RecordFields) -> list[str]:
    """The texts of an input file that `anchored tokenize` keeps."""
    rules = DocumentRules()
    documents = input_documents(one, fields)
    return [one.text.decode() for one in documents if one.text and rules.verdict(one).is_kept]


def _num_different(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    return int((one[:length] != other[:length]).sum()) + max(len(one), len(other)) - length
