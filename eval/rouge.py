"""ROUGE F1 on the first words of two texts, through the public interface of rouge-score."""

import functools

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


class _StemTokenizer(Tokenizer):  # type: ignore[misc]
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
