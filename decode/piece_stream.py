"""One continuation piece by piece, and its generation at the end."""

from collections.abc import Callable, Iterator

from .. import AnchoredError
from .generation import Generation
from .ledger import Ledger
from .paired_batch import PairedBatch
from .request import Piece, Request, RequestState, warn_of_safe_only


class PieceStream(Iterator[Piece]):
    """Iterates over the pieces of one request as they are drawn; nothing runs before the first.

    `generation` and `ledger` are there once the last piece was drawn. Asking for a piece raises
    AnchoredError when a model's logits are NaN; the ledger is then that of what was drawn before,
    uncertified.
    """

    def __init__(
        self,
        request: Request,
        *,
        open_batch: Callable[[], PairedBatch],
        generation_of: Callable[[RequestState], Generation],
    ) -> None:
        self._request, self._open_batch, self._generation_of = request, open_batch, generation_of
        self._state: RequestState | None = None
        self._pieces = self._drawn_pieces()

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The whole of it; AnchoredError while pieces are to come."""
        if self._state is None or not self._state.is_finished:
            raise AnchoredError("a stream has its ledger after the last piece: iterate to the end")
        return self._generation_of(self._state)

    @property
    def ledger(self) -> Ledger:
        """What was spent, to be saved and verified; AnchoredError while pieces are to come."""
        return self.generation.ledger

    def _drawn_pieces(self) -> Iterator[Piece]:
        batch = self._open_batch()
        (state,) = batch.admit([self._request])
        self._state = state
        warn_of_safe_only([state.budget])
        while not state.is_finished:
            num_pieces = len(state.pieces)
            batch.step()
            yield from state.pieces[num_pieces:]
        if state.error:
            raise AnchoredError(state.error)
