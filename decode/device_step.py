"""One decoding step of a batch without the host: warp, walk, record, both models' next column."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..kernels.triton_warping import warped_logits
from ..kernels.triton_workspace import resident_splits, workspace
from ..kernels.walk import Divergence, Walk, walk
from .device_state import DeviceState
from .row_stream import RowStream

# B rows, V vocabulary.


class DeviceStep:
    """Draws a token in every row that is not finished, and feeds it to both models.

    Reads and writes tensors that never move and asks none for its values, so that a CUDA graph may
    capture a call. A row ends with a stop token, its last step, or logits that are no distribution.
    """

    def __init__(
        self,
        state: DeviceState,
        streams: Mapping[str, RowStream],
        *,
        stop_token_ids: Sequence[int],
        divergence: Divergence,
    ) -> None:
        self.state, self.streams, self.divergence = state, dict(streams), divergence
        (num_rows, vocab_size), device = state.seen.shape, state.seen.device
        splits = resident_splits(num_rows, vocab_size, device)
        self._memory = workspace(num_rows, 1, vocab_size, device, splits)
        self._drafts = torch.empty(num_rows, 0, dtype=torch.int64, device=device)
        self._end = min(stop_token_ids, default=-1)
        self._stops = torch.tensor(sorted(stop_token_ids), dtype=torch.int64, device=device)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Advance every row by one token."""
        drawn = self._drawn()
        token_ids = drawn.token_ids[:, 0]
        is_going = ~self.state.is_finished
        self._record(drawn, is_going)
        self._finish(token_ids, is_going)
        self._advance(token_ids)

    def _drawn(self) -> Walk:
        state = self.state
        risky, safe = warped_logits(
            state.logits["risky"],
            state.logits["safe"],
            state.seen,
            state.penalty,
            state.temperature,
        )
        return walk(
            self._with_one_end(risky)[:, None],
            self._with_one_end(safe)[:, None],
            accounts=state.accounts,
            uniform=state.seeds,
            drafts=self._drafts,
            memory=self._memory,
            divergence=self.divergence,
        )

    def _with_one_end(self, logits: Tensor) -> Tensor:
        """Merge all stop tokens into the first, as `Warpers` does; in place."""
        if len(self._stops) > 1:
            merged = logits[:, self._stops].logsumexp(-1)
            logits.index_fill_(1, self._stops, float("-inf"))
            logits[:, self._end] = merged
        return logits

    def _record(self, drawn: Walk, is_going: Tensor) -> None:
        fields = [
            drawn.token_ids.double(),
            drawn.accepted.double(),
            drawn.budget,
            drawn.spend,
            drawn.weight,
            drawn.log_probs,
            drawn.safe_log_probs,
            is_going[:, None].double(),
        ]
        records, cursor = self.state.records, self.state.cursor
        records.index_copy_(0, cursor, torch.cat(fields, dim=1)[None])
        cursor.add_(1).remainder_(len(records))

    def _finish(self, token_ids: Tensor, is_going: Tensor) -> None:
        state = self.state
        state.steps_left.sub_(is_going.long())
        is_last = (token_ids < 0) | (token_ids == self._end) | (state.steps_left <= 0)
        state.is_finished.logical_or_(is_last)

    def _advance(self, token_ids: Tensor) -> None:
        """Both models' logits after the new tokens; finished rows repeat their last forward."""
        state = self.state
        is_repeated = state.is_finished
        state.last_tokens.copy_(torch.where(is_repeated, state.last_tokens, token_ids))
        state.positions.add_((~is_repeated).long())
        state.seen.scatter_(1, state.last_tokens[:, None], True)
        for name, stream in self.streams.items():
            state.logits[name].copy_(stream.feed_at(state.last_tokens, state.positions))
