"""The budget of a request, its prefix debt, and the ratios that the debt follows from."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...durable_files import new_file
from ...fields import checked_nats, field_types
from ...identities import differences
from ...kernels.spend import NUM_FIELDS, SCHEDULES, SPEND_QUANTUM, allowance, charged, missing
from ..ledger import LedgerHeader
from ..settings import DebtMode, Schedule


@dataclass(kw_only=True, slots=True)
class BudgetFigures:
    """A budget as its text's record has it, nats: see `Budget`."""

    k: float
    K: float
    horizon: int
    bound: float
    debt: float
    bank: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The information budget of one generation.

    Invariant: if every spend is a multiple of SPEND_QUANTUM and at most its step's allowance, the
    float64 sum of the spends so far never exceeds `bound`, after any step, exactly and in any order
    of summation: allowances are rounded down to the quantum, so spends and their sums stay exact.
    With a bank the sum over any w consecutive steps never exceeds bank + w k either. Spends may be
    negative, where a token gives nats back.
    """

    per_step: float
    """k, nats a step; infinite for rules without a budget."""
    total: float
    """K, nats for the whole sequence: the bank and k for each step of the horizon."""
    horizon: int
    """Largest number of steps the total is spread over."""
    debt: float = 0.0
    """Prefix debt in nats; infinite when the safe model gives a prompt token no probability."""
    schedule: Schedule = "adaptive"
    bank: float | None = None
    """Nats of a bucket that is full at the start and holds no more; None carries over all that is
    not spent, and starts with nothing."""

    def __post_init__(self) -> None:
        if self.bank is not None and self.schedule != "adaptive":
            raise ValueError(f'a bank is filled by budget="adaptive", got {self.schedule!r}')

    @classmethod
    def of(
        cls,
        *,
        horizon: int,
        k: float | None = None,
        K: float | None = None,
        schedule: Schedule = "adaptive",
        bank: float | None = None,
    ) -> "Budget":
        """The budget of k nats a step, or of K for the whole text, without a debt.

        K = bank + k * horizon, or k * horizon without a bank. Raises ValueError for nats that are
        no number in [0, BUDGET_CAP], for a K below the bank, and for a bank of another schedule
        than "adaptive".
        """
        full = 0.0 if bank is None else checked_nats("bank", bank)
        if K is None:
            assert k is not None  # as one of both is named
            k = checked_nats("k", k)
            sum_of = f"K = k * horizon = {k} * {horizon}"
            if bank is not None:
                sum_of = f"K = bank + k * horizon = {bank} + {k} * {horizon}"
            K = checked_nats(sum_of, full + k * horizon)
        elif full > K:
            raise ValueError(f"K is the bank and what is added to it, got K={K:g} < bank={bank:g}")
        else:
            k = (K - full) / horizon
        return cls(per_step=k, total=K, horizon=horizon, schedule=schedule, bank=bank)

    @property
    def bound(self) -> float:
        """Nats that the spends can never exceed: max(0, K - debt), or K for fixed allowances."""
        if self.schedule == "fixed":
            return self.total
        return max(0.0, self.total - self.debt)

    @property
    def is_safe_only(self) -> bool:
        """No step can ever spend anything: the generation is the safe model's own."""
        return self.bound <= 0.0

    def allowances(self, spends: Iterable[float]) -> Iterator[float]:
        """k_t in nats of each step of a text with these spends: multiples of SPEND_QUANTUM, >= 0.

        The balance b_0 = bank + k - debt becomes b_{t+1} = min(b_t - a_t, bank) + k after a spend
        a_t, and k_t = max(0, b_t). Source: paper, proposition "Global safety of adaptive banking",
        which has no bank and starts with k - debt; corollary "Constant per-step cap" for fixed
        allowances.
        """
        account = opened_accounts([self])
        for spend in spends:
            yield allowance(account).item()
            account = charged(account, torch.tensor([[spend]], dtype=torch.float64))

    def left_in_bank(self, spends: Sequence[float]) -> float:
        """Nats that the bank holds after a text with these spends: at most `bank`, negative while
        a debt is larger than what was there; infinite without a bank."""
        if self.bank is None:
            return math.inf
        account = opened_accounts([self])
        if spends:
            account = charged(account, torch.tensor([spends], dtype=torch.float64))
        return self.bank - missing(account).item()

    def going_on(self, left: float) -> "Budget":
        """The budget of a text that goes on after one which left so many nats in its bank: what is
        missing there is a debt. The same where one of both has no bank."""
        if self.bank is None or left == math.inf:
            return self
        return replace(self, debt=max(0.0, self.bank - left))

    def most_bound(self, least_debt: float) -> float:
        """The bound with no other debt than what is missing in the bank of this least debt."""
        return replace(self, debt=min(least_debt, self.bank or 0.0)).bound

    def carried(self, left: float) -> float:
        """Nats of the bank, among those that the earlier text left in its own."""
        return 0.0 if left == math.inf else max(0.0, min(left, self.bank or 0.0))

    def is_of(self, header: LedgerHeader) -> bool:
        """Whether a ledger's header has these nats."""
        return (self.per_step, self.total, self.bank) == (header.k, header.K, header.bank)

    @classmethod
    def recorded(cls, header: LedgerHeader) -> "Budget":
        """The budget that a ledger's header has."""
        return cls(
            per_step=header.k,
            total=header.K,
            horizon=header.horizon,
            debt=header.debt,
            schedule=header.rule_settings.get("budget", "adaptive"),
            bank=header.bank,
        )

    def record(self) -> dict[str, Any]:
        """The figures of a ledger's header and of a score, by the names of their fields."""
        names = {"k": "per_step", "K": "total"}
        return {name: getattr(self, names.get(name, name)) for name in field_types(BudgetFigures)}

    def __str__(self) -> str:
        full = "" if self.bank is None else f"{self.bank:.4g} + "
        return f"K={self.total:.4g} ({full}k={self.per_step:.4g} x {self.horizon})"


def opened_accounts(budgets: Sequence[Budget]) -> Tensor:
    """(A, 7) float64 on the CPU: the accounts of budgets before the first step, see `spend`."""
    rows = []
    for budget in budgets:
        bank, schedule = budget.bank, SCHEDULES[budget.schedule]
        full = math.inf if bank is None else math.floor(bank / SPEND_QUANTUM) * SPEND_QUANTUM
        rows.append([budget.per_step, budget.total, budget.debt, schedule, full, 0.0, 0.0])
    return torch.tensor(rows, dtype=torch.float64).view(-1, NUM_FIELDS)


def log_likelihood_ratios(risky_log_probs: Tensor, safe_log_probs: Tensor) -> Tensor:
    """log p_r(x_i) - log p_s(x_i) of prompt tokens, in nats, any shape, float64.

    A token that the safe model gives no probability has ratio +inf, whatever the risky model says.
    """
    ratios = risky_log_probs.double() - safe_log_probs.double()
    return ratios.masked_fill(safe_log_probs == float("-inf"), float("inf"))


def prefix_debt(ratios: Tensor, *, mode: DebtMode = "top", window: int = 5) -> float:
    """Nats of debt of a prompt.

    ratios: (num_positions,) log-likelihood ratios of the prompt's non-special tokens but the first.
    mode: "top" is the mean of the `window` largest positive parts (all of them if there are fewer),
    "average" the positive part of the mean, "none" zero. Without positions the debt is 0.
    A ratio of +inf makes the debt infinite, whatever the others are. Raises ValueError for NaN.
    Source: paper, section "Prefix debt" and algorithm PrefixDebt; special tokens and padding do not
    count as positions here, so the debt of a prompt does not depend on its batch.
    """
    debt = debt_nats(ratios, mode=mode, window=window).item()
    if math.isnan(debt):
        raise ValueError("the prompt's log-likelihood ratios hold NaN, of which no debt follows")
    return debt


def debt_nats(ratios: Tensor, *, mode: DebtMode, window: int) -> Tensor:
    """`prefix_debt` as a tensor (), without waiting for the device of the ratios; NaN for NaN."""
    if ratios.numel() == 0:
        return ratios.new_zeros(())
    if mode == "top":
        nats = torch.topk(ratios.clamp(min=0.0), min(window, ratios.numel())).values.mean()
    else:
        nats = ratios.mean().clamp(min=0.0)
    if mode == "none":
        nats = torch.zeros_like(nats)
    # A mean with a token that the risky model never writes would be NaN.
    nats = nats.masked_fill(ratios.isposinf().any() & (mode != "none"), math.inf)
    return nats.masked_fill(ratios.isnan().any(), math.nan)


SCHEMA = "anchored-prompt-ratios/1"


@dataclass(frozen=True, slots=True)
class PromptRatios:
    """The ratios behind the prefix debts of some prompts: for any k, seed, rule and warpers.

    They are never used for other models, settings or prompts than those they were computed with.
    """

    source: dict[str, Any]
    """The settings that decide them, as plain JSON values: see `ratio_source`."""
    by_prompt: dict[str, Tensor] = field(default_factory=dict)
    """Ratios by `prompt_digest`: (num_positions,) float64 log p_r - log p_s, in nats of a token."""

    def __len__(self) -> int:
        return len(self.by_prompt)

    def of(self, prompt: list[int]) -> Tensor:
        """The ratios of a prompt, given by its symbols."""
        return self.by_prompt[prompt_digest(prompt)]

    def check_prompts(self, prompts: list[list[int]]) -> None:
        """Raise ValueError, in one line, for a prompt that is not among these."""
        for prompt in prompts:
            if (digest := prompt_digest(prompt)) not in self.by_prompt:
                raise ValueError(
                    f"no ratios are given for the prompt of {len(prompt)} symbols with sha256 "
                    f"{digest[:12]}: they are for {len(self)} other prompts"
                )

    def check(self, source: dict[str, Any]) -> None:
        """Raise ValueError, in one line, if they were computed with anything else than `source`."""
        if differing := differences(self.source, source):
            raise ValueError(
                f"the prompts' ratios were computed with another setting: {differing[0]}"
            )

    def save(self, path: Path | str, *, overwrite: bool = True) -> None:
        """Write a safetensors file in one step: one tensor a prompt, the source as metadata.

        Without `overwrite` as `Ledger.save`.
        """
        metadata = {"schema": SCHEMA, "source": json.dumps(self.source)}
        with new_file(Path(path), overwrite=overwrite) as partial:
            save_file(self.by_prompt, partial, metadata)

    @classmethod
    def load(cls, path: Path | str) -> "PromptRatios":
        """Read what `save` wrote; ValueError for a file of another kind."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                by_prompt = {digest: file.get_tensor(digest) for digest in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from None
        if metadata.get("schema") != SCHEMA:
            raise ValueError(f"{path} holds no {SCHEMA}: its schema is {metadata.get('schema')}")
        return cls(json.loads(metadata["source"]), by_prompt)


def prompt_digest(prompt: list[int]) -> str:
    """sha256 (hex) of a prompt's symbols as little-endian int64."""
    return hashlib.sha256(np.array(prompt, dtype="<i8").tobytes()).hexdigest()
