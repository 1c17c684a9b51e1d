"""Which documents of token shards hold a text: an index of their passages, made on demand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ...durable_files import file_sha256, new_file
from .manifest import Shard
from .passages import letter_hashes
from .shards import TokenShards

ONE_IN = 16
"""Of the stretches of 64 letters, by their hash: those of a text are those of the documents."""
_ENTRY = np.dtype([("hash", "<u8"), ("document", "<u4")])


class TextIndex:
    """A file for each shard, of 12 bytes for each sampled stretch of letters, 0.75 a letter.

    A document that holds a whole text is found if one stretch of the text is sampled, as of 300
    letters all but one in a million are.
    """

    def __init__(self, shards: TokenShards, tokenizer_file: Path) -> None:
        """Raises ValueError if the shards are another tokenizer's."""
        if file_sha256(tokenizer_file) != shards.manifest.tokenizer_sha256:
            raise ValueError(f"{tokenizer_file} is not the tokenizer of {shards.folder}")
        self._shards = shards
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def find(self, text: str) -> Iterator[tuple[Shard, int, int, float]]:
        """(shard, document in it, the shard's first token, share of the text's stretches) of each.

        Shards without an index get it, beside their tokens. Of each shard the documents come first
        that share most.
        Raises: ValueError if no stretch of the text is sampled.
        """
        sought = letter_hashes(text, ONE_IN)
        if not len(sought):
            raise ValueError("the text is too short to be found: give about 300 letters of it")
        base = 0
        for shard in self._shards.manifest.shards:
            entries = self._entries(shard)
            first = np.searchsorted(entries["hash"], sought, side="left")
            behind = np.searchsorted(entries["hash"], sought, side="right")
            found = [entries["document"][i:j] for i, j in zip(first, behind, strict=True)]
            numbers, counts = np.unique(np.concatenate(found), return_counts=True)
            for place in np.argsort(-counts, kind="stable"):
                yield shard, int(numbers[place]), base, float(counts[place] / len(sought))
            base += shard.num_tokens

    def _entries(self, shard: Shard) -> np.ndarray:
        name = f"text-{shard.tokens_sha256[:16]}.index"
        path = self._shards.folder / name
        if not path.exists():
            with new_file(path) as partial:
                self._indexed(shard).tofile(partial)
        if not path.stat().st_size:  # which cannot be mapped
            return np.zeros(0, _ENTRY)
        return np.memmap(path, dtype=_ENTRY, mode="r")

    def _indexed(self, shard: Shard) -> np.ndarray:
        """The entries of a shard, in the order of their hashes."""
        tokens = np.memmap(self._shards.folder / shard.tokens_file, dtype="<u4", mode="r")
        offsets = self._shards.document_offsets(shard)
        parts = [np.zeros(0, _ENTRY)]
        for number in range(shard.num_documents):
            ids = tokens[offsets[number] + 1 : offsets[number + 1] - 1]  # without BOS and EOS
            text = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
            hashes = letter_hashes(text, ONE_IN)
            part = np.empty(len(hashes), _ENTRY)
            part["hash"], part["document"] = hashes, number
            parts.append(part)
        entries = np.concatenate(parts)
        return entries[np.argsort(entries["hash"], kind="stable")]
