"""What a step on the device reads and writes: buffers that stay where they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.triton_layout import NUM_ACCOUNT_FIELDS
from .sampling_config import SamplingConfig

# B rows, V vocabulary, N steps that are kept until the host looks, G tokens of a step at most.

NUM_KEPT = 8
"""Steps between two looks of the host. A request that has ended wastes half as many on average."""

NO_TOKEN = -1

NUM_FIELDS = 9
"""Of a record: token, accepted, budget, spend, weight, log p*, log p_s, the draft (NO_TOKEN where
there was none), whether the token was drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceState:
    """B rows, each with a request or finished; a finished row reads its last token again.

    Reading it changes nothing: the same token at the same column gives the same keys and logits.
    """

    logits: dict[str, Tensor]
    """By "safe" and "risky": (B, V), raw, after the last token at the newest step."""
    seen: Tensor
    """(B, V) bool: tokens of the prompt and the output."""
    last_tokens: Tensor
    """(B,) int64, the end of the text, which the step to come reads."""
    positions: Tensor
    """(B,) int64, its column: those before it count in both caches, those behind are stale."""
    steps_left: Tensor
    """(B,) int64, tokens that may still be drawn."""
    is_finished: Tensor
    """(B,) bool."""
    is_alone: Tensor
    """(B,) bool: the step to come drafts nothing in this row, see `DeviceStep`."""
    keys: Tensor
    """(B,) int64, of the uniforms of each row's request, see `random_key`."""
    accounts: Tensor
    """(B, 6) float64, budgets of `kernels.walk.new_accounts`."""
    penalty: Tensor
    """(B,) float32, the repetition penalty."""
    temperature: Tensor
    """(B,) float32."""
    records: Tensor
    """(N, B, G, NUM_FIELDS) float64, of the steps since `rewind`."""
    cursor: Tensor
    """(1,) int64, where the next record goes."""

    @classmethod
    def empty(cls, logits: dict[str, Tensor], seen: Tensor, *, num_drafts: int) -> "DeviceState":
        """All rows finished; `logits` and `seen` are shared with the caller.

        num_drafts: most drafts of a step.
        """
        num_rows, device = len(seen), seen.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            logits=logits,
            seen=seen,
            last_tokens=zeros(num_rows),
            positions=zeros(num_rows),
            steps_left=zeros(num_rows),
            is_finished=torch.ones(num_rows, dtype=torch.bool, device=device),
            is_alone=zeros(num_rows, dtype=torch.bool),
            keys=zeros(num_rows),
            accounts=zeros(num_rows, NUM_ACCOUNT_FIELDS.value, dtype=torch.float64),
            penalty=torch.ones(num_rows, device=device),
            temperature=torch.ones(num_rows, device=device),
            records=zeros(NUM_KEPT, num_rows, num_drafts + 1, NUM_FIELDS, dtype=torch.float64),
            cursor=zeros(1),
        )

    def warp_by(self, sampling: SamplingConfig) -> None:
        """Take penalty and temperature of every row from `sampling`."""
        self.penalty.fill_(sampling.repetition_penalty)
        self.temperature.fill_(sampling.temperature)

    def join(
        self,
        rows: list[int],
        prompts: Sequence[Sequence[int]],
        keys: list[int],
        steps: list[int],
        accounts: Tensor,
    ) -> None:
        """Begin requests in rows whose prompts have just been read; `steps`: most tokens of each.

        accounts: (len(rows), 6) float64.
        """
        device = self.keys.device
        places = torch.tensor(rows, device=device)
        self.last_tokens[places] = torch.tensor([p[-1] for p in prompts], device=device)
        self.positions[places] = torch.tensor([len(p) - 1 for p in prompts], device=device)
        self.keys[places] = torch.tensor(keys, device=device)
        self.steps_left[places] = torch.tensor(steps, device=device)
        self.accounts[places] = accounts
        self.is_finished[places] = False
        self.is_alone[places] = False

    def leave(self, row: int) -> None:
        """Finish a row and send what it reads to the first columns, where the next prompt goes."""
        self.is_finished[row] = True
        self.positions[row] = 0

    def rewind(self) -> None:
        """Forget the records of earlier steps."""
        self.cursor.zero_()
