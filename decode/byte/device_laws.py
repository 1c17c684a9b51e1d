"""What follows one node, as `NodeLaw`, where nothing leaves the device that computed it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..upload import uploaded
from .byte_evaluation import Mode
from .byte_trie import ByteTrie
from .byte_vocabulary import ByteVocabulary
from .viability import Standing

# N nodes, V tokens of the vocabulary, T rows of the trie.


@dataclass(frozen=True, slots=True)
class DeviceLaw:
    """Log-probabilities that sum to one, in nats, as tensors of one device.

    scores: (T + 1,) by row of the trie and for the end, the logits or -inf where not allowed;
    log_total: () float64, log of their sum, 0.0 for a dead end. masked_mass: () float64, the share
    of the model's own mass that is not among them, 0.0 where that is none.
    """

    trie: ByteTrie
    scores: Tensor
    log_total: Tensor
    masked_mass: Tensor

    def of_token(self, token: int) -> Tensor:
        """Log-probability of one token: () float64."""
        return self.scores[int(self.trie.row_of[token])].double() - self.log_total


class DeviceLaws:
    """Makes the laws of nodes from their logits; what a vocabulary needs for it is sent once."""

    def __init__(self, vocabulary: ByteVocabulary, device: torch.device, mode: Mode) -> None:
        self.vocabulary, self.device, self.mode = vocabulary, device, mode
        self._tokens = torch.from_numpy(vocabulary.trie.tokens.astype(np.int64)).to(device)
        self._stops = torch.from_numpy(vocabulary.stop_token_ids).to(device)

    def __call__(self, standings: Sequence[Standing], logits: Tensor) -> list[DeviceLaw]:
        """logits: (N, at least V) on the device, any float dtype, -inf = banned; sums are float64.

        All stop tokens count as one end. A row with NaN or +inf gives a law of NaN.
        """
        is_double = logits.dtype == torch.float64
        own = (logits if is_double else logits.float())[:, : self.vocabulary.vocab_size]
        viability = self.vocabulary.viability
        is_masked = self.mode == "masked"
        rule = viability.allowed if is_masked else viability.well_formed
        allowed = self._sent([np.asarray(rule(standing)) for standing in standings])
        may_end = self._sent([np.array([viability.may_end(standing)]) for standing in standings])
        tokens = own.index_select(-1, self._tokens).masked_fill(~allowed, -torch.inf)
        end = own.index_select(-1, self._stops).double().logsumexp(-1, keepdim=True)
        scores = torch.cat([tokens, end.masked_fill(~may_end, -torch.inf).to(own.dtype)], dim=1)
        log_total = scores.double().logsumexp(-1)
        is_dead = log_total == -torch.inf
        masked_mass = -(log_total - own.double().logsumexp(-1)).expm1()
        masked_mass = masked_mass.masked_fill(is_dead, 0.0).nan_to_num(0.0)
        log_total = log_total.masked_fill(is_dead, 0.0)
        columns = (scores.unbind(), log_total.unbind(), masked_mass.unbind())
        return [DeviceLaw(self.vocabulary.trie, *law) for law in zip(*columns, strict=True)]

    def _sent(self, rows: Sequence[NDArray[np.bool_]]) -> Tensor:
        return uploaded(torch.from_numpy(np.stack(rows)), self.device)
