"""What an engine checks of its device before it serves: a walk against the plain projection."""

import torch

from ...kernels.accounts import SPENT, new_accounts
from ...kernels.projection import project_kl
from ...kernels.uniforms import uniforms
from ...kernels.walk import walk

NUM_ROWS = 64
SHORTFALL = 1e-5
"""Of a budget that binds, which two solvers of the same row may differ by; and 1e-6 nats."""


def check_walk(vocab_size: int, device: torch.device) -> None:
    """Draw 64 rows as the engine will, and by `project_kl` on the CPU.

    Raises RuntimeError, in one line, where a token, a spend or an account differs by more than both
    solvers may.
    """
    generator = torch.Generator().manual_seed(0)
    risky, safe = 3.0 * torch.randn(2, NUM_ROWS, vocab_size, generator=generator)
    nats = [0.05 * row for row in range(NUM_ROWS)]
    keys = torch.arange(NUM_ROWS)
    accounts = new_accounts(nats, nats, [0.0] * NUM_ROWS, "adaptive", device)
    no_drafts = torch.empty(NUM_ROWS, 0, dtype=torch.int64, device=device)
    drawn = walk(
        risky[:, None].to(device),
        safe[:, None].to(device),
        accounts=accounts,
        uniform=keys.to(device),
        drafts=no_drafts,
    )
    budget = drawn.budget[:, 0].cpu()
    own = project_kl(risky, safe, budget, uniforms(keys, torch.zeros_like(keys)), backend="torch")
    spend, tolerance = drawn.spend[:, 0].cpu(), SHORTFALL * budget + 1e-6
    assert own.token_ids is not None
    for name, is_right in {
        "token": drawn.token_ids[:, 0].cpu() == own.token_ids,
        "spend": ((spend - own.spend).abs() <= tolerance) & (spend <= budget),
        "account": accounts[:, SPENT].cpu() == spend,
    }.items():
        if not bool(is_right.all()):
            row = int((~is_right).nonzero()[0])
            raise RuntimeError(f"self-test: the {name} of row {row} is not that of project_kl")
