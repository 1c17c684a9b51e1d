"""The vocabulary projection of a model that is trained: it gives logits, or their loss at once."""

from torch import Tensor, nn

from .chunked_cross_entropy import LogitLoss, chunked_cross_entropy, logit_loss_and_gradient


class LossHead(nn.Linear):
    """A linear layer that takes labels and then returns the summed cross entropy of its logits.

    The loss is computed inside this module's forward because only there FSDP2 has gathered the
    weight; outside it is one shard of vocab_size / num_processes rows.
    """

    def __init__(self, hidden_size: int, vocab_size: int, *, chunk_tokens: int) -> None:
        """chunk_tokens: rows of logits that exist at once when labels are given."""
        super().__init__(hidden_size, vocab_size, bias=False)
        self.chunk_tokens = chunk_tokens
        self.logit_loss: LogitLoss = logit_loss_and_gradient

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """hidden (B, T, D) -> logits (B, T, V); with labels (B, T) a scalar, in nats."""
        if labels is None:
            return super().forward(hidden)
        return chunked_cross_entropy(
            hidden.flatten(0, 1),
            self.weight,
            labels.flatten(),
            chunk_tokens=self.chunk_tokens,
            logit_loss=self.logit_loss,
        )
