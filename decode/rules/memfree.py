"""MemFree: the risky model, never completing an n-gram of a blocklist."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .blocklist import Blocklist, corpus_ngrams, corpus_sha256, passage_ngrams
from .rule import StepInputs, Symbols
from .unbounded import Unbounded


@dataclass(frozen=True, kw_only=True, slots=True)
class MemFree(Unbounded):
    """p_r without the symbols that would complete an n-gram of the passages; not certified.

    N-grams are of generated symbols, the prompt left out, blocked behind all warpers. Where every
    symbol that is left would complete one, p_r stands as it is: `blocked` texts then hold one.
    Source: Ippolito et al. 2023; paper, appendix "Baseline details".
    """

    passages: list[str] | None = None
    """The texts whose n-grams are blocked: those retrieved for all prompts of a run."""
    n: int = 5
    """Tokens of an n-gram, at least 1; at byte level 4 n bytes (`Level.symbols_per_token`)."""
    corpus: str | None = None
    """JSONL file, {"text": ...} a line, of which every n-gram is blocked: in Bloom filters, which
    block a few others too."""
    corpus_sha256: str | None = None
    """Of that file, which must have it; found unless given."""
    false_positives: float = 1e-6
    """Largest probability that a symbol behind the beginning of one of the corpus's n-grams is
    blocked though it completes none; in [1e-15, 1)."""
    _blocklists: tuple[Blocklist, ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    name = "memfree"
    looks_back = True

    def __post_init__(self) -> None:
        if isinstance(self.passages, str):
            raise ValueError("passages must be a list of texts, got one text")
        if self.passages is None and self.corpus is None:
            raise ValueError("MemFree needs passages, a corpus or both")
        if type(self.n) is not int or self.n < 1:
            raise ValueError(f"n must be a whole number >= 1, got {self.n!r}")
        if type(self.false_positives) is not float or not 1e-15 <= self.false_positives < 1.0:
            raise ValueError(f"false_positives must be in [1e-15, 1), got {self.false_positives!r}")
        if self.passages is not None:
            object.__setattr__(self, "passages", list(self.passages))
        self._check_corpus()

    def _check_corpus(self) -> None:
        if self.corpus is None:
            if self.corpus_sha256 is not None:
                raise ValueError("corpus_sha256 is that of a corpus, got none")
            return
        path = Path(self.corpus)
        if not path.is_file():
            raise ValueError(f"corpus must be a file of texts, there is none at {path}")
        found = corpus_sha256(path)
        if self.corpus_sha256 not in (None, found):
            raise ValueError(f"{path} is not the corpus that was recorded: its sha256 is {found}")
        object.__setattr__(self, "corpus", str(path))
        object.__setattr__(self, "corpus_sha256", found)

    def for_symbols(self, symbols: Symbols) -> Self:
        n = self.n * symbols.symbols_per_token
        found: list[Blocklist] = []
        if self.passages is not None:
            found.append(passage_ngrams(self.passages, symbols, n))
        if self.corpus is not None:
            assert self.corpus_sha256 is not None
            corpus = Path(self.corpus), self.corpus_sha256
            found.append(corpus_ngrams(*corpus, symbols, n, self.false_positives))
        rule = replace(self)
        object.__setattr__(rule, "_blocklists", tuple(found))
        return rule

    def settings(self) -> dict[str, Any]:
        """Those that were given, and of a corpus what its filters need; older ledgers have no
        more."""
        own: dict[str, Any] = {"n": self.n}
        if self.passages is not None:
            own["passages"] = self.passages
        if self.corpus is not None:
            own |= {"corpus": self.corpus, "corpus_sha256": self.corpus_sha256}
            own["false_positives"] = self.false_positives
        return own if self.compared else {**own, "compared": False}

    def logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        warped = inputs.warped("risky").clone()
        for row, text in enumerate(inputs.past.texts):
            if blocked := self.blocked(text, warped[row]):
                index = torch.tensor(blocked, device=warped.device)
                left = warped[row].index_fill(0, index, -torch.inf)
                warped[row] = torch.where(left.isfinite().any(), left, warped[row])
        return warped

    def blocked(self, text: Sequence[int], logits: Tensor) -> Sequence[int]:
        """Symbols that would complete a blocked n-gram behind a generated text.

        logits: (vocab_size,), -inf for symbols of which it does not matter. Raises ValueError for
        a rule that was not opened for a level, see `for_symbols`.
        """
        if self._blocklists is None:
            raise ValueError("MemFree blocks symbols of a level: use a Decoder, or `for_symbols`")
        knowing = [own for own in self._blocklists if own.knows(text)]
        candidates = (logits > -torch.inf).nonzero()[:, 0].tolist() if knowing else []
        return sorted({symbol for own in knowing for symbol in own.blocked(text, candidates)})
