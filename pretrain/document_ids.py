"""Where the documents of a training sequence begin."""

from torch import Tensor


def document_ids(token_ids: Tensor, *, bos_id: int) -> Tensor:
    """Which document of its sequence each token belongs to.

    token_ids: (batch_size, seq_len) int64.
    Returns: (batch_size, seq_len) int64, 0 up to the first BOS that does not open the sequence.
    """
    is_start = token_ids == bos_id
    is_start[:, 0] = False
    return is_start.cumsum(dim=1)
