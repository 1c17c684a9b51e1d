"""The draw of a step's rows: p* of every request by its account, where the models are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.project import project
from ...kernels.spend import DEBT, STEP, allowance, charged, empty_accounts
from ...kernels.warp import seen_by_row, warped_rows
from ..engine.request import NUM_COLUMNS, SPEND, TOKEN, ledger_columns
from ..settings import Charge, SamplingConfig
from ..streams.kv_cache import uploaded
from ..warpers import Warpers, merge_ends
from .pair_description import PairFacts

# S slots of the engine, B requests of a step, R rows of logits, G rows of a request, V vocabulary.

NUM_FIELDS = NUM_COLUMNS + 3
"""Fields of a record: `ledger_columns`, whether the token was drawn, whether its request has
failed, and the debt in nats."""

TILE_BYTES = 2**27
"""Bytes of the float32 rows of one model that are walked together. A walk holds up to nine times as
much at its height, which the engine's profile of memory does not see: 1.2 GB."""

DrawSettings = tuple[Charge, SamplingConfig | None]
"""Rows that are walked together share it: the sampling too, where it truncates or is greedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """A step's rows of logits, by request."""

    slots: Tensor
    """(B,) int64."""
    host_slots: Sequence[int]
    """The same, on the host."""
    index: Tensor
    """(B, G) int64: the index of each request's rows among the R; its first where it has fewer."""
    drafts: Tensor
    """(B, G - 1) int64: the tokens that rows after the first assume, -1 where there is none."""
    last_tokens: Tensor
    """(B,) int64: the last one of the text before these rows."""
    lengths: Tensor
    """(B,) int64: tokens of the text that the first row follows."""

    @classmethod
    def of(
        cls,
        *,
        slots: Tensor,
        host_slots: Sequence[int],
        offsets: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        num_rows: int,
    ) -> Rows:
        """Rows that come request by request.

        slots: (B,). offsets: (R,) int, of each row among its request's. token_ids: (R,) read
        by the model at the row, a draft but for the first; -1 for no draft. positions: (R,) of it.
        num_rows: G. Nothing here waits for the device.
        """
        offsets, count = offsets.long(), len(slots)
        request = (offsets == 0).long().cumsum(0) - 1
        index = torch.zeros(count, num_rows, dtype=torch.int64, device=slots.device)
        index[request, offsets] = torch.arange(len(offsets), device=slots.device)
        first = index[:, :1]
        read = torch.full_like(index, -1)
        read[request, offsets] = token_ids.long()
        is_there = torch.zeros_like(index, dtype=torch.bool)
        is_there[request, offsets] = True
        return cls(
            slots=slots.long(),
            host_slots=host_slots,
            index=torch.where(is_there, index, first),
            drafts=read[:, 1:].contiguous(),
            last_tokens=read[:, 0],
            lengths=positions.long()[first[:, 0]] + 1,
        )

    def part(self, chosen: Sequence[int], at: Tensor) -> Rows:
        """The rows of some requests, by their indices on the host and on the device."""
        names = ("slots", "index", "drafts", "last_tokens", "lengths")
        tensors: dict[str, Any] = {name: getattr(self, name)[at] for name in names}
        return Rows(host_slots=[self.host_slots[i] for i in chosen], **tensors)


def walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    *,
    accounts: Tensor,
    is_going: Tensor,
    keys: Tensor | None,
    drafts: Tensor,
    charge: Charge = "mean",
) -> tuple[Tensor, Tensor]:
    """Decide the rows of each request in order until one differs from its draft.

    risky_logits, safe_logits: (B, G, V), warped. Row g follows the prefix of the request and its
    first g drafted tokens.
    accounts: (B, 7) float64 of `opened_accounts`; advanced in place by the rows decided.
    is_going: (B,) bool, the requests that draw; nothing is decided for others.
    keys: (B,) int64, and then row g draws by `uniforms(key, steps taken + g)`; None takes the
    likeliest token of each p*, for which no bound holds.
    drafts: (B, G - 1) int64: tokens the rows after the first assume; -1, which no row decides, ends
    a shorter draft.
    charge: of the requests' rules.
    Returns: `ledger_columns`, (B, G, 7), and which rows were decided, (B, G) bool; others hold
    anything.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand, so that every draft length gives the same tokens.
    """
    walked, rows, was_reached = accounts, [], []
    for g, safe in enumerate(safe_logits.unbind(1)):
        # 1. What the row may spend, after those before it.
        budget = allowance(walked)
        keyed = None if keys is None else (keys, walked[:, STEP].long())
        # 2. Its distribution and its token.
        projection = project(risky_logits[:, g], safe, budget, keyed=keyed, charge=charge)
        columns = ledger_columns(projection, budget, safe)  # (B, 7)
        rows.append(columns)
        was_reached.append(is_going)
        # 3. It is banked if it was reached, and the next one is reached after a draft that is kept.
        is_going = is_going & projection.is_valid
        walked = charged(walked, columns[:, [SPEND]]).where(is_going[:, None], walked)
        if g < drafts.shape[1]:
            is_going = is_going & (drafts[:, g] == columns[:, TOKEN])
    accounts.copy_(walked)
    return torch.stack(rows, dim=1), torch.stack(was_reached, dim=1)


class SlotAccounts:
    """Budgets, spends and keys of the requests in an engine's slots, on its device.

    A slot whose request has failed draws the end of the text and spends nothing.
    """

    def __init__(self, num_slots: int, facts: PairFacts, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.accounts = empty_accounts(num_slots, device)
        """(S, 7) float64."""
        self.is_failed = zeros(num_slots, dtype=torch.bool)
        self.prompt_lens = zeros(num_slots)
        self.text_lens = zeros(num_slots)
        """(S,) tokens of prompt and output when the request joined: none is drawn before."""
        self._keys = zeros(num_slots)
        self._seen = zeros(num_slots, facts.vocab_size, dtype=torch.bool)
        self._temperature = torch.ones(num_slots, dtype=torch.float32, device=device)
        self._penalty = torch.ones(num_slots, dtype=torch.float32, device=device)
        self._draw_settings: dict[int, DrawSettings] = {}
        self._warpers: dict[int, Warpers] = {}
        """Warpers of slots that truncate or are greedy; they hold tensors on the device."""
        self._device, self._facts = device, facts
        self._banned = torch.tensor(facts.banned_token_ids, dtype=torch.int64, device=device)
        self._stops = torch.tensor(sorted(facts.stop_token_ids), device=device)
        self.end = min(facts.stop_token_ids)

    def join(
        self,
        slot: int,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        account: Tensor,
        debt: Tensor,
        spends: Sequence[float],
        key: int,
        sampling: SamplingConfig,
        charge: Charge,
        is_failed: bool,
    ) -> None:
        """A request takes a slot; token_ids: its prompt and what it has drawn before.

        account: (7,) float64, at the first step. debt: () float64 nats. spends: those of the steps
        that it has drawn before.
        """
        shares = not (sampling.is_truncating or sampling.is_greedy)
        self._draw_settings[slot] = (charge, None if shares else sampling)
        if not shares:
            facts = self._facts
            self._warpers[slot] = Warpers(sampling, facts.stop_token_ids, facts.banned_token_ids)
        self.accounts[slot] = uploaded(account, self._device)
        self.set_debt(slot, debt)
        if spends:
            nats = uploaded(torch.tensor([spends], dtype=torch.float64), self._device)
            self.accounts[slot] = charged(self.accounts[[slot]], nats)[0]
        self.is_failed[slot] = is_failed
        for field, number in (
            (self._keys, key),
            (self.prompt_lens, prompt_len),
            (self.text_lens, len(token_ids)),
            (self._temperature, sampling.temperature or 1.0),
            (self._penalty, sampling.repetition_penalty),
        ):
            field[slot] = number
        self._seen[slot] = False
        seen = [token for token in token_ids if 0 <= token < self._facts.vocab_size]
        self._seen[slot, uploaded(torch.tensor(seen), self._device)] = True

    def set_debt(self, slot: int, debt: Tensor) -> None:
        """Charge the debt of the prompt, () float64 nats; NaN fails the request, which then records
        an infinite debt: a journal has no NaN."""
        debt = debt.to(self._device)
        self.is_failed[slot] |= debt.isnan()
        self.accounts[slot, DEBT] = debt.nan_to_num(math.inf, posinf=math.inf)

    def leave(self, slot: int) -> None:
        """Its request is gone; what it held is overwritten by the next one."""
        self._draw_settings.pop(slot, None)
        self._warpers.pop(slot, None)

    def decide(self, rows: Rows, risky: Tensor, safe: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the next tokens of all requests and charge their accounts.

        risky, safe: (R, V) raw logits, any float dtype.
        Returns: (B, G) int64 tokens to emit, the end of the text for a request that has failed and
        in rows that are not read; (B, G, NUM_FIELDS) float64 records. Nothing waits for the device.
        """
        shape = tuple(rows.index.shape)
        emitted = torch.full(shape, self.end, dtype=torch.int64, device=self._device)
        records = torch.zeros(*shape, NUM_FIELDS, dtype=torch.float64, device=self._device)
        groups: dict[DrawSettings, list[int]] = {}
        for i, slot in enumerate(rows.host_slots):
            groups.setdefault(self._draw_settings[slot], []).append(i)
        size = max(1, TILE_BYTES // (4 * self._facts.vocab_size * shape[1]))
        for settings, chosen in groups.items():
            for first in range(0, len(chosen), size):
                tile = chosen[first : first + size]
                at = uploaded(torch.tensor(tile), self._device)
                emitted[at], records[at] = self._decide(settings, rows.part(tile, at), risky, safe)
        return emitted, records

    def _decide(
        self, settings: DrawSettings, rows: Rows, risky: Tensor, safe: Tensor
    ) -> tuple[Tensor, Tensor]:
        charge, sampling = settings
        # 1. All rows are solved, drawn from or not: to look which are would be to wait for the
        #    device, so what follows chooses from tensors.
        accounts = self.accounts[rows.slots]
        warped = self._warped if sampling is None else self._warped_by_group
        columns, was_reached = walk(
            *warped(rows, risky, safe),
            accounts=accounts,
            is_going=self._is_drawing(rows, accounts),
            keys=None if sampling is not None and sampling.is_greedy else self._keys[rows.slots],
            drafts=rows.drafts,
            charge=charge,
        )
        self.accounts[rows.slots] = accounts
        # 2. A request that reached a row without a distribution to draw from has failed.
        token_ids = columns[..., TOKEN].long()  # (B, G)
        is_drawn = was_reached & (token_ids >= 0)
        self.is_failed[rows.slots] |= (was_reached & ~is_drawn).any(1)
        # 3. Drawn tokens are seen from here on; where none was drawn, one that was seen before.
        now_seen = token_ids.where(is_drawn, rows.last_tokens[:, None])
        self._seen.index_put_((rows.slots[:, None], now_seen), torch.ones_like(is_drawn))
        # 4. The records for the host.
        failed = self.is_failed[rows.slots, None].expand_as(is_drawn)
        debts = accounts[:, DEBT, None].expand_as(is_drawn)
        facts = torch.stack([is_drawn.double(), failed.double(), debts], dim=-1)
        records = torch.cat([columns, facts], dim=-1)  # (B, G, NUM_FIELDS)
        return token_ids.where(is_drawn, self.end), records

    def _is_drawing(self, rows: Rows, accounts: Tensor) -> Tensor:
        """(B,) bool: the prompt is read, the request has not failed, and the account is where
        the text is; one that does not fails."""
        is_read = rows.lengths >= self.text_lens[rows.slots]
        at_step = accounts[:, STEP].long() == rows.lengths - self.prompt_lens[rows.slots]
        self.is_failed[rows.slots] |= is_read & ~at_step
        return is_read & ~self.is_failed[rows.slots]

    def _warped(self, rows: Rows, *both: Tensor) -> list[Tensor]:
        """(B, G, V) warped logits of each model, of requests that truncate nothing."""
        settings = {"penalty": self._penalty, "temperature": self._temperature}
        texts = {"slots": rows.slots, "drafts": rows.drafts, "seen": self._seen}
        warped = [warped_rows(logits, rows.index, **texts, **settings) for logits in both]
        for scores in warped:
            scores.index_fill_(-1, self._banned, float("-inf"))
            if len(self._stops) > 1:
                merge_ends(scores, self._stops)
        return warped

    def _warped_by_group(self, rows: Rows, *both: Tensor) -> list[Tensor]:
        """The same of requests that share their settings, and truncate or are greedy."""
        seen = seen_by_row(self._seen, rows.slots, rows.drafts).flatten(0, 1)
        warp, shape = self._warpers[rows.host_slots[0]].after(seen), tuple(rows.index.shape)
        shared = [logits[:, : self._facts.vocab_size][rows.index] for logits in both]
        return [warp(logits.flatten(0, 1)).unflatten(0, shape) for logits in shared]
