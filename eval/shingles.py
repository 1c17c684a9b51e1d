"""Overlap of the word shingles of two texts: exact Jaccard similarity and its MinHash estimate."""

import functools
import inspect
from collections.abc import Sequence

from datasketch import MinHash


def shingles(words: Sequence[str], size: int) -> frozenset[str]:
    """Every run of `size` words, joined by single spaces; empty if there are fewer words."""
    return frozenset(" ".join(words[i : i + size]) for i in range(len(words) - size + 1))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared share of the union, in [0, 1]; 0 if either set is empty."""
    if not first or not second:
        return 0.0
    return len(first & second) / len(first | second)


def minhash_jaccard(
    first: frozenset[str], second: frozenset[str], *, num_permutations: int, seed: int
) -> float:
    """MinHash estimate of `jaccard`: the share of permutations whose minima agree.

    Standard error at most sqrt(0.25 / num_permutations), 0.044 for 128. Returns 0 if either set
    is empty, where the estimator itself would call two empty sets identical.
    Source: Broder 1997; SHA-1 of UTF-8 cut to 32 bits, permutations a*h + b mod 2**61 - 1.
    """
    if not first or not second:
        return 0.0
    sketches = []
    for shingle_set in (first, second):
        sketch = _empty_sketch(num_permutations, seed).copy()
        sketch.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingle_set])
        sketches.append(sketch)
    return float(sketches[0].jaccard(sketches[1]))


@functools.cache
def _empty_sketch(num_permutations: int, seed: int) -> MinHash:
    # datasketch 2.0 changed its default permutations; "legacy" names the only ones before that.
    has_scheme = "scheme" in inspect.signature(MinHash).parameters
    scheme = {"scheme": "legacy"} if has_scheme else {}
    return MinHash(num_perm=num_permutations, seed=seed, **scheme)
