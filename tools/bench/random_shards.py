"""Token shards of random ids, for benchmarks: nothing to download, and read like any others."""

from pathlib import Path

import numpy as np

from anchored.pretrain.tokens.manifest import MANIFEST_NAME, Manifest
from anchored.pretrain.tokens.segments import ShardFiles
from anchored.pretrain.tokens.shards import TokenShards

BOS_ID, EOS_ID = 0, 1
DOCUMENT_TOKENS = 1000


def write_random_shards(
    folder: Path, num_tokens: int, *, vocab_size: int, generator: np.random.Generator
) -> TokenShards:
    """Make a folder with one shard of `num_tokens` tokens in documents of DOCUMENT_TOKENS.

    folder: must not exist. vocab_size: at least 3, as two tokens are BOS and EOS.
    """
    folder.mkdir(parents=True)
    files = ShardFiles(folder, "00000", input_file="random")
    lengths = [DOCUMENT_TOKENS] * (num_tokens // DOCUMENT_TOKENS)
    if rest := num_tokens % DOCUMENT_TOKENS:
        lengths.append(rest)
    for record, length in enumerate(lengths):
        token_ids = generator.integers(2, vocab_size, size=length, dtype="<u4")
        token_ids[-1], token_ids[0] = EOS_ID, BOS_ID
        files.add(token_ids, record=record, licence="none")
    manifest = Manifest(
        source=folder.name,
        revision="random",
        split="train",
        heldout_fraction=0.0,
        licences={"none": len(lengths)},
        refused_licences={},
        tokenizer_sha256="random",
        vocab_size=vocab_size,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        num_documents=len(lengths),
        num_empty_documents=0,
        num_invalid_documents=0,
        num_oversized_documents=0,
        max_document_bytes=0,
        num_bytes=0,
        num_tokens=num_tokens,
        shards=(files.close(),),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return TokenShards.open(folder, verify=False)
