"""How alike two texts are: ROUGE F1, and the overlap of their word shingles."""

import functools
import inspect
from collections.abc import Sequence

from datasketch import MinHash
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer, Tokenizer


def rouge_f1(hypothesis: str, reference: str, *, max_words: int) -> tuple[float, float]:
    """ROUGE-1 and ROUGE-L F1 in [0, 1] of the first `max_words` Porter-stemmed words.

    The tokenizer knows ASCII only: other letters split a word, and a text without ASCII letters
    or digits scores 0. An empty text scores 0.
    Source: Lin 2004; rouge-score 0.1.2.
    """
    scores = _scorer().score(_stems(reference, max_words), _stems(hypothesis, max_words))
    return scores["rouge1"].fmeasure, scores["rougeL"].fmeasure


class _StemTokenizer(Tokenizer):
    """Splits what `_stems` joined: the words are stemmed and counted before scoring."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


@functools.cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], tokenizer=_StemTokenizer())


@functools.cache
def _stemming_tokenizer() -> DefaultTokenizer:
    return DefaultTokenizer(use_stemmer=True)


@functools.lru_cache(maxsize=1024)  # a reference is scored once per setting and seed
def _stems(text: str, max_words: int) -> str:
    return " ".join(_stemming_tokenizer().tokenize(text)[:max_words])


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
