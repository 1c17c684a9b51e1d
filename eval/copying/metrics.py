"""Copying of a text: the paper's six metrics, which NCR averages, and those of other packages."""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from itertools import takewhile
from typing import Any, Final, NamedTuple

import numpy as np
import regex
from datasketch import MinHash
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from ...fields import real_number
from ...installed import declared, entry_point, loaded, package_of
from ..recorded_texts import grouped
from ..segmentation import bare_words, normal_form, words
from ..statistics import Array

METRIC_SET: Final = "paper_spec_v3"
"""Version of the metrics, written into results: figures of two versions are not compared.

Raised (v1, v2, ...) with every change by which some text gets another figure or NCR has another
mean: a definition, a constant below, how words are cut, a metric mended, added or removed, a
library that computes one. Not for speed.
"""
METRICS: Final = ("rouge1_ge_tau", "rougeL_ge_tau", "word_lcs", "char_lcs", "word_acs", "minhash")
"""The metrics that NCR averages; what else is measured changes neither NCR nor their figures."""
GROUP: Final = "anchored.metrics"
"""Entry points of installed packages: functions of (generation, reference) that give a number."""
INSTALLED: Final = "copying/"
"""Prefix of the name of an installed metric in all records."""

# The paper's, but for the last two, which it leaves open.
MAX_WORDS: Final = 100
"""Words (`segmentation.words`) that the word metrics read of each text; the character metric reads
all."""
ROUGE_THRESHOLD: Final = 0.4
"""An example counts when its ROUGE F1 is at least this. The paper's prose says "exceeds", its
tables say at least; the tables are followed."""
MIN_SPAN_WORDS: Final = 6
"""Shortest span that the accumulated common substrings count."""
SHINGLE_WORDS: Final = 3
"""Words in a MinHash shingle."""
NUM_PERMUTATIONS: Final = 128
"""MinHash permutations: a standard error of at most sqrt(0.25 / 128) = 0.044."""
MINHASH_SEED: Final = 1
"""Seed of the permutations, datasketch's default."""

# An F1 of exactly 0.4 comes out below the float 0.4 for a third of all pairs of lengths; two
# different F1 of 100 words differ by more than 1e-5.
_ROUNDING: Final = 1e-9

Symbols = str
"""A text of characters, or of words with one character for each different word: equal characters
are equal symbols."""
_USED = "\U0010fffe", "\U0010ffff"  # two characters that Unicode assigns to no text
Row = Mapping[str, Any]
"""A row of a results file: the figures of `copying_score` and the key of its text."""


class Span(NamedTuple):
    """`length` symbols that read the same from both starts; positions count symbols from 0."""

    hypothesis_start: int
    reference_start: int
    length: int


@functools.cache
def installed_metrics() -> dict[str, Callable[[str, str], float]]:
    """The metrics of installed packages, by their recorded names. Raises ValueError for a name that
    is one of `METRICS`, that two packages declare, or of what cannot be imported."""
    return {name: loaded(entry) for name, entry in _entry_points().items()}


def metric_packages() -> dict[str, dict[str, str]]:
    """The packages of installed metrics by name, as an entry of a results file; {} without any."""
    packages = {name: package_of(entry) for name, entry in _entry_points().items()}
    return {"installed_metrics": packages} if packages else {}


def _entry_points() -> dict[str, EntryPoint]:
    entries = {name: entry_point(GROUP, name, builtin=METRICS) for name in sorted(declared(GROUP))}
    return {INSTALLED + name: entry for name, entry in entries.items() if entry is not None}


def installed_in(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a row that are figures of installed metrics."""
    return {name: value for name, value in figures.items() if name.startswith(INSTALLED)}


def _finite(name: str, value: Any) -> float:
    number = real_number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must give a finite number, got {number}")
    return number


def copying_score(hypothesis: str, reference: str) -> dict[str, Any]:
    """The copying of one reference in a generation, as an entry of a results file.

    hypothesis: the generation without its prompt; reference: the protected continuation. An empty
    text scores 0 everywhere. Composed and decomposed accents are the same characters, and invisible
    characters are none.
    Returns: "rouge1_f1" and "rougeL_f1"; "word_lcs" and "char_lcs", the longest common spans;
    "word_acs", words in "word_acs_spans" together; "word_prefix", the words with which both texts
    begin, recitation without a slip (Liang et al. 2022); "minhash", the estimate of "jaccard", the
    similarity of word shingles; each span as [hypothesis_start, reference_start, length], those of
    characters in the normal forms; "copied_characters", `word_acs_spans` as [start, end) characters
    of the hypothesis; then the metrics of installed packages. About 4 ms for 1,000 characters.
    Source: He et al., "Anchored Decoding", appendix "Copyright infringement"; ROUGE-1 and ROUGE-L:
    Lin 2004, by rouge-score 0.1.2.
    """
    normal = normal_form(hypothesis), normal_form(reference)
    rouge = _rouge().score(*reversed(normal))
    both = [words(text, max_words=MAX_WORDS) for text in (hypothesis, reference)]
    text = both[0]
    symbols = word_symbols(*([word.text for word in text] for text in both))
    word_lcs, char_lcs = longest_common_span(*symbols), longest_common_span(*normal)
    acs = disjoint_common_spans(*symbols, min_length=MIN_SPAN_WORDS)
    shared = [shingles([word.text for word in text]) for text in both]
    return {
        "rouge1_f1": rouge["rouge1"].fmeasure,
        "rougeL_f1": rouge["rougeL"].fmeasure,
        "word_lcs": word_lcs.length,
        "char_lcs": char_lcs.length,
        "word_acs": sum(span.length for span in acs),
        "word_prefix": sum(1 for _ in takewhile(bool, map(operator.eq, *symbols))),
        "minhash": minhash_jaccard(*shared),
        "jaccard": jaccard(*shared),
        "word_lcs_span": list(word_lcs),
        "char_lcs_span": list(char_lcs),
        "word_acs_spans": list(map(list, acs)),
        "copied_characters": [
            [text[start].start, text[start + length - 1].end] for start, _, length in acs
        ],
        **{
            name: _finite(name, measure(hypothesis, reference))
            for name, measure in installed_metrics().items()
        },
    }


def copying_summary(rows: Sequence[Row]) -> dict[str, float]:
    """The six metrics of a data set, by the names in `METRICS`, and the means of installed metrics,
    of the rows of its scores. ROUGE: share of examples whose F1 is at least the threshold; the
    others: means over examples. Raises: ValueError if there are no rows."""
    if not rows:
        raise ValueError("a copying summary needs at least one score, got none")
    threshold = ROUGE_THRESHOLD - _ROUNDING
    values = {
        "rouge1_ge_tau": [row["rouge1_f1"] >= threshold for row in rows],
        "rougeL_ge_tau": [row["rougeL_f1"] >= threshold for row in rows],
        **{name: [row[name] for row in rows] for name in (*METRICS[2:], *installed_in(rows[0]))},
    }
    return {name: math.fsum(column) / len(rows) for name, column in values.items()}


def prompt_means(rows: Iterable[Row], prompts: Iterable[str]) -> Array:
    """(P, M): the metrics of each prompt's texts, means over seeds. rows: of scores, with the "id"
    of the prompt. The order is that of `prompts` and `METRICS`."""
    texts = grouped(rows, lambda row: row["id"])
    summaries = [copying_summary(texts[prompt]) for prompt in prompts]
    return np.array([[summary[name] for name in METRICS] for summary in summaries])


_OTHER_LETTER = regex.compile(r"[\p{L}--[\p{Latin}\p{Common}]]", regex.V1)


class _FirstWords(DefaultTokenizer):
    """ROUGE's words, Porter-stemmed, of which the first `MAX_WORDS` are read. Those of rouge-score,
    which reads ASCII alone, so that an accent splits a word; words of other scripts, which it
    drops, are read whole."""

    def __init__(self) -> None:
        super().__init__(use_stemmer=True)
        # A text has few words that another has not.
        self._stemmer.stem = functools.lru_cache(1 << 16)(self._stemmer.stem)

    def tokenize(self, text: str) -> list[str]:
        """The words of a text, in order."""
        if text.isascii():
            return list(super().tokenize(text)[:MAX_WORDS])
        read: list[str] = []
        for word in bare_words(text):
            read += [word] if _OTHER_LETTER.search(word) else super().tokenize(word)
        return read[:MAX_WORDS]


@functools.cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], tokenizer=_FirstWords())


def shingles(words: Sequence[str]) -> frozenset[str]:
    """Every run of `SHINGLE_WORDS` words, joined by spaces; empty if there are fewer words."""
    starts = range(len(words) - SHINGLE_WORDS + 1)
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in starts)


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared share of the union, in [0, 1]; 0 if either set is empty."""
    if not first or not second:
        return 0.0
    return len(first & second) / len(first | second)


def minhash_jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """MinHash estimate of `jaccard`: the share of permutations whose minima agree. Returns 0 if
    either set is empty, where the estimator itself would call two empty sets the same. Source:
    Broder 1997; SHA-1 of UTF-8 cut to 32 bits, permutations ((a*h + b) mod 2**64) mod (2**61 - 1),
    of which the lower 32 bits count."""
    if not first or not second:
        return 0.0
    sketches = _empty_sketch().copy(), _empty_sketch().copy()
    for sketch, shingle_set in zip(sketches, (first, second), strict=True):
        sketch.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingle_set])
    return float(sketches[0].jaccard(sketches[1]))


@functools.cache
def _empty_sketch() -> MinHash:
    # datasketch 2.0 changed its default permutations; "legacy" names the only ones before that.
    has_scheme = "scheme" in inspect.signature(MinHash).parameters
    scheme = {"scheme": "legacy"} if has_scheme else {}
    return MinHash(num_perm=NUM_PERMUTATIONS, seed=MINHASH_SEED, **scheme)


def word_symbols(*texts: Iterable[str]) -> list[Symbols]:
    """Each text's words as one character a word, numbered as they appear first."""
    numbers: dict[str, int] = {}
    return ["".join(chr(numbers.setdefault(word, len(numbers))) for word in text) for text in texts]


def longest_common_span(hypothesis: Symbols, reference: Symbols, *, min_length: int = 1) -> Span:
    """The longest contiguous run of equal symbols; of several, the one with the smallest hypothesis
    start, then the smallest reference start. Length 0 (at 0, 0) if none has `min_length`. Cost:
    runs of about ten lengths are looked up, each in N + M steps of a dictionary; 1 ms for two texts
    of 1,000 characters."""
    # A shared run of n symbols holds one of every smaller length: lengths double, then halve.
    best, too_long, length = Span(0, 0, 0), min(len(hypothesis), len(reference)) + 1, min_length
    while length < too_long:
        if (start := _first_shared(hypothesis, reference, length)) is None:
            too_long = length
        else:
            best = Span(start, reference.find(hypothesis[start : start + length]), length)
        if not best.length:
            break
        length = max(min(2 * best.length, (best.length + too_long) // 2), best.length + 1)
    return best


def _first_shared(hypothesis: Symbols, reference: Symbols, length: int) -> int | None:
    """The first start of a run of this length that the reference has too; None without one."""
    # Hashes, not the runs: of two long texts those would not fit in memory.
    known = {hash(reference[i : i + length]) for i in range(len(reference) - length + 1)}
    for start in range(len(hypothesis) - length + 1):
        run = hypothesis[start : start + length]
        if hash(run) in known and run in reference:
            return start
    return None


def disjoint_common_spans(
    hypothesis: Symbols, reference: Symbols, *, min_length: int
) -> tuple[Span, ...]:
    """Common spans of at least `min_length` symbols, in order of hypothesis start, chosen longest
    first: each is the `longest_common_span` of what is left, so that none overlaps another in
    either text. Source: He et al., "Anchored Decoding", appendix "Copyright infringement",
    word-level ACS."""
    spans = []
    while (span := longest_common_span(hypothesis, reference, min_length=min_length)).length:
        i, j, length = span
        spans.append(span)
        # Two different characters: a used symbol matches nothing, not even a used one.
        hypothesis = hypothesis[:i] + _USED[0] * length + hypothesis[i + length :]
        reference = reference[:j] + _USED[1] * length + reference[j + length :]
    return tuple(sorted(spans))
