"""Rotary embeddings of the positions that a model was asked for so far."""

import torch
from torch import Tensor, nn

# R rows, T columns, H heads, E head size.


class RotaryTable:
    """Cosines and sines by position, from the model's own module; they double when they end."""

    def __init__(self, rotary: nn.Module) -> None:
        """rotary: one whose angles depend on the position alone (see `row_attention.ROTARY`)."""
        self._rotary = rotary
        self._cos = self._sin = torch.empty(0, 0)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, (R, T, 1, E) float32, for `rotated`; positions: (R, T) int64 on the CPU."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            self._extend(max(needed, 2 * len(self._cos)))
        return self._cos[positions], self._sin[positions]

    def _extend(self, length: int) -> None:
        angles = self._rotary(torch.empty(0), torch.arange(length)[None])
        cos, sin = (part[0, :, None] for part in angles)
        sin[..., : sin.shape[-1] // 2].neg_()
        self._cos, self._sin = cos, sin


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (R, T, H, E) turned by the angles of their positions: halves of E are coordinates."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
