"""What passed through the tokenizer: the counts that a manifest reports."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .document import Document, Verdict


@dataclass(kw_only=True, slots=True)
class DocumentTally:
    """Counts over documents; tallies of pieces add up to the tally of the whole."""

    verdicts: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)
    """UTF-8 bytes kept, by split."""
    licences: dict[str, Counter[str]] = field(default_factory=dict)
    """Documents by verdict (train, heldout, refused) and licence."""
    problems: Counter[str] = field(default_factory=Counter)
    """Invalid documents by what is wrong with them."""

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "DocumentTally":
        """The tally whose `to_table` gave `table`."""
        licences = {verdict: Counter(counts) for verdict, counts in table["licences"].items()}
        return cls(
            verdicts=Counter(table["verdicts"]),
            num_bytes=Counter(table["num_bytes"]),
            licences=licences,
            problems=Counter(table["problems"]),
        )

    @classmethod
    def total(cls, tallies: Iterable["DocumentTally"]) -> "DocumentTally":
        """The tally of all pieces together."""
        whole = cls()
        for tally in tallies:
            whole += tally
        return whole

    def to_table(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "verdicts": dict(self.verdicts),
            "num_bytes": dict(self.num_bytes),
            "licences": {verdict: dict(counts) for verdict, counts in self.licences.items()},
            "problems": dict(self.problems),
        }

    def add(self, document: Document, verdict: Verdict) -> None:
        self.verdicts[verdict.value] += 1
        if verdict.is_kept:
            self.num_bytes[verdict.value] += len(document.text or b"")
        if verdict.is_kept or verdict is Verdict.REFUSED:
            self.licences.setdefault(verdict.value, Counter())[document.licence] += 1
        if document.problem:
            self.problems[document.problem.value] += 1

    def __iadd__(self, other: "DocumentTally") -> "DocumentTally":
        self.verdicts += other.verdicts
        self.num_bytes += other.num_bytes
        self.problems += other.problems
        for verdict, counts in other.licences.items():
            self.licences.setdefault(verdict, Counter()).update(counts)
        return self

    def histogram(self, verdict: Verdict) -> dict[str, int]:
        """Documents by licence, the most frequent first, then by name."""
        counts = self.licences.get(verdict.value, Counter())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
