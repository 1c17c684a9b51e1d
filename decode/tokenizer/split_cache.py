"""How the tokens of a large vocabulary are made, kept on disk: a third of the work to read one."""

import hashlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

FORMAT = "anchored-splits/1"
"""Changes with what `MergeTable` makes of the same merges."""

LEAST_TOKENS = 10_000
"""Of smaller vocabularies nothing is kept: they are read in a tenth of a second."""

logger = logging.getLogger(__name__)


class Splits(NamedTuple):
    """What BPE makes of a list of merges."""

    pairs: NDArray[np.int32]
    """(n, 3): token, left and right half, halves before what is made of them."""
    num_irregular: int
    """The last ones of them are those of irregular tokens."""


class SplitCache:
    """Splits by the sha256 of a tokenizer, one safetensors file each, checked by their own hash.

    A file that is damaged, or of another format, counts as none. One that cannot be written is a
    line of the log.
    """

    def __init__(self, folder: Path) -> None:
        """folder: made when it is needed; it may be deleted any time."""
        self.folder = folder

    def load(self, sha256: str) -> Splits | None:
        """Those of a tokenizer, None where they are not known."""
        try:
            with safe_open(self._path(sha256), "np") as file:
                pairs, about = file.get_tensor("pairs"), file.metadata() or {}
        except (OSError, SafetensorError):
            return None
        if about != _about(pairs, sha256, about.get("num_irregular", "")):
            return None
        return Splits(pairs, int(about["num_irregular"]))

    def save(self, sha256: str, splits: Splits) -> None:
        """Keep them."""
        if len(splits.pairs) < LEAST_TOKENS:
            return
        path = self._path(sha256)
        partial = path.with_suffix(f".{os.getpid()}")  # several processes may write at once
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            about = _about(splits.pairs, sha256, str(splits.num_irregular))
            save_file({"pairs": splits.pairs}, partial, about)
            partial.replace(path)
        except (OSError, SafetensorError) as error:
            logger.warning("vocabulary not cached, it is read anew each time: %s", error)

    def _path(self, sha256: str) -> Path:
        return self.folder / f"{sha256}.safetensors"


def _about(pairs: NDArray[np.int32], sha256: str, num_irregular: str) -> dict[str, str]:
    """The metadata of a file that is whole."""
    digest = hashlib.sha256(f"{sha256} {num_irregular} {pairs.shape}".encode())
    digest.update(pairs.tobytes())
    return {"format": FORMAT, "num_irregular": num_irregular, "sha256": digest.hexdigest()}
