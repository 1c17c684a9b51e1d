"""Evidence for or against a claim: of a web search, of a corpus, or of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...inputs import json_objects
from ..paid_requests import Answer, PaidRequests, RequestFailed, service_client

if TYPE_CHECKING:
    from .passages import WordIndex

SERPER_URL: Final = "https://google.serper.dev/search"
SEARCH_TIMEOUT_S: Final = 60.0
NUM_RESULTS: Final = 5
"""Largest number of texts for a claim (paper)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One text by which a claim is judged."""

    title: str
    link: str
    text: str


class Retriever(Protocol):
    """Finds evidence for a claim, the best first; RequestFailed if the search fails."""

    def evidence(self, claim: str) -> list[Evidence]: ...

    def record(self) -> dict[str, Any]:
        """Entries of the results file about the source, without secrets."""
        ...


class SerperSearch:
    """Results of a Google search by serper.dev, each paid for once. Source: Song et al. 2024,
    "VeriScore": the query is the claim, the evidence are the snippets."""

    def __init__(
        self, requests: PaidRequests, *, api_key: str, url: str = SERPER_URL, max_retries: int = 6
    ) -> None:
        """max_retries: further attempts of a search without an answer."""
        import openai

        self._requests, self._url = requests, url
        # For its retries: a search is a POST of JSON, as a completion is.
        self._client = service_client(
            api_key="none", timeout=SEARCH_TIMEOUT_S, max_retries=max_retries
        )
        self._headers = {"X-API-KEY": api_key, "Authorization": openai.Omit()}

    def evidence(self, claim: str) -> list[Evidence]:
        body = {"q": claim, "num": NUM_RESULTS}

        def send() -> str:
            options: Any = {"headers": self._headers}
            return self._client.post(self._url, body=body, cast_to=str, options=options)

        answer = self._requests.answer({"url": self._url, "body": body}, send, _read_results)
        return [Evidence(**result) for result in answer["results"][:NUM_RESULTS]]

    def record(self) -> dict[str, Any]:
        return {"evidence": "serper", "url": self._url, "count": NUM_RESULTS}


class CorpusSearch:
    """The passages of a corpus that share words with a claim."""

    def __init__(self, index: "WordIndex", *, name: str) -> None:
        """name: of the corpus, for results."""
        self._index, self._name = index, name

    def evidence(self, claim: str) -> list[Evidence]:
        (passages,) = self._index.best([claim], NUM_RESULTS)
        return [Evidence(str(passage.id), "", passage.text) for passage in passages]

    def record(self) -> dict[str, Any]:
        return {"evidence": "bm25", "corpus": self._name, "count": NUM_RESULTS}


class RecordedEvidence:
    """Results of an earlier search by claim, in a file, so that figures can be reproduced."""

    def __init__(self, path: Path) -> None:
        """path: JSON objects {"claim": ..., "results": [{"title", "link", "text"}]}, of which title
        and link may be missing. Raises: ValueError that names the line."""
        self._path, self._results = path, dict[str, list[Evidence]]()
        for number, row in json_objects(path):
            line, claim, results = f"{path}, row {number}", row.get("claim"), row.get("results")
            if not isinstance(claim, str):
                raise ValueError(f'{line} must have a "claim"')
            if not isinstance(results, list):
                raise ValueError(f'{line} must have a list of "results"')
            self._results[claim] = []
            for result in results:
                if not isinstance(result, dict) or not isinstance(result.get("text"), str):
                    raise ValueError(f'{line}: a result must have a "text", got {result!r}')
                parts = (str(result.get(name, "")) for name in ("title", "link", "text"))
                self._results[claim].append(Evidence(*parts))

    def evidence(self, claim: str) -> list[Evidence]:
        if claim not in self._results:
            raise RequestFailed(f"{self._path} has no evidence for this claim")
        return self._results[claim][:NUM_RESULTS]

    def record(self) -> dict[str, Any]:
        return {"evidence": "file", "file": self._path.name, "count": NUM_RESULTS}


def _read_results(reply: Any) -> Answer:
    """Title, link and snippet of the results, possibly none; an error is no search."""
    organic = reply.get("organic", []) if "searchParameters" in reply else reply["organic"]
    return {
        "results": [
            {"title": result["title"], "link": result["link"], "text": result.get("snippet", "")}
            for result in organic
        ]
    }
