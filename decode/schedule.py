"""Many requests through one batch: rows join as others leave."""

from collections import deque
from collections.abc import Iterable, Iterator

from .paired_batch import PairedBatch
from .request import Request, RequestState


def decode_all(batch: PairedBatch, requests: Iterable[Request]) -> Iterator[RequestState]:
    """Every request as it ends, in the order of ending; the batch is kept full."""
    waiting = deque(requests)
    while waiting or not batch.is_empty:
        joining = [waiting.popleft() for _ in batch.free_rows if waiting]
        if joining:
            yield from (state for state in batch.admit(joining) if state.is_finished)
        yield from batch.step()
