"""The requests in the slots of an engine, and the debts of their prompts."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from typing import Any, get_args

import torch
from torch import Tensor
from vllm.distributed import get_tp_group
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from ...kernels.project import agree, project
from ...kernels.spend import DEBT
from ...kernels.token_log_probs import token_log_probs
from ..engine.request import random_key
from ..rules.budget import debt_nats, log_likelihood_ratios, opened_accounts
from ..serving.journal import UNWRITTEN, JournalWriter
from ..settings import Charge
from ..streams.kv_cache import uploaded
from . import processor
from .admission import SlotRequest
from .fusion import Rows, SlotAccounts
from .pair_description import EngineSettings
from .recorder import Recorder

logger = logging.getLogger(__name__)

NUM_PARKED = 8_192
"""Requests without a slot that are remembered: preempted ones come back first of all, and the
engine does not say which have ended. One that was forgotten and comes back draws nothing more: the
journal says that it has ended."""

TILE = 256
"""Rows of logits at once, of both models, where a prompt is scored."""

NOTHING_SPENT = torch.tensor(float("inf"), dtype=torch.float64)
"""The debt while a prompt is read, and of one that was not read here."""


class PairState(DefaultModelState):
    """Knows requests by the engine's ids; holds their accounts, by slot."""

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: Any) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        settings = EngineSettings.of(vllm_config.additional_config)
        self.facts, self.settings = settings.facts, settings
        dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
        _warm_up(self.facts.vocab_size, torch.device(device))
        if vllm_config.parallel_config.tensor_parallel_size > 1:
            agree(torch.device(device), get_tp_group().cpu_group)
        self.slots = SlotAccounts(self.max_num_reqs, self.facts, torch.device(device))
        speculative = vllm_config.speculative_config
        self.num_rows = 1 + (speculative.num_speculative_tokens if speculative else 0)
        self._requests: dict[int, SlotRequest] = {}
        self._slot_of: dict[str, int] = {}
        self._parked: OrderedDict[str, SlotRequest] = OrderedDict()
        journal = None
        if vllm_config.parallel_config.rank == 0:  # the first process
            size, is_synced = settings.max_bytes, settings.is_synced
            journal = JournalWriter(settings.journal, max_bytes=size, is_synced=is_synced)
        self.recorder = Recorder(journal, self.facts, dtype)
        self._batch: Any = None

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """A request takes a slot, for the first time or after it was preempted."""
        super().add_request(req_index, new_req_data)
        tokens = list(new_req_data.prefill_token_ids)
        length = new_req_data.prompt_len
        request = self._parked.pop(new_req_data.req_id, None)
        if request is None:
            request = self._new_request(new_req_data, tokens[:length])
        else:
            self.recorder.drain()
        if not request.rewound(tokens[length:]):
            request.error = request.error or "tokens that were not drawn here came back"
        charge = request.rule.charge
        assert charge is not None, "each rule that draws here has bounds"
        self._requests[req_index] = request
        self._slot_of[request.engine_id] = req_index
        self.slots.join(
            req_index,
            tokens,
            prompt_len=length,
            account=opened_accounts([request.budget])[0],
            debt=NOTHING_SPENT if request.debt is None else request.debt,
            spends=[spend for _, spend in request.steps],
            key=random_key(request.seed, request.prompt, level="token", place=request.sample),
            sampling=request.sampling,
            charge=charge,
            is_failed=bool(request.error),
        )

    def remove_request(self, req_id: str) -> None:
        """It was preempted or has ended: the engine does not say which."""
        super().remove_request(req_id)
        slot = self._slot_of.pop(req_id, None)
        if slot is None:
            return
        request = self._requests.pop(slot)
        self.slots.leave(slot)
        if not self.recorder.has_end(request):
            self._parked[req_id] = request
            while len(self._parked) > NUM_PARKED:
                self.recorder.forget(self._parked.popitem(last=False)[1])

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        """Before each forward; the draw that follows reads what is noted here."""
        processor.current = weakref.ref(self)
        self._batch, self.model.hidden = input_batch, None
        inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)
        return inputs

    def draw(self, ctx: Any, num_rows: int) -> Tensor:
        """(R,) int64, the token of each of the next R rows of logits that were computed last.

        They are all rows of the step, or those of some requests where drafts make many.
        """
        computed, first = self.model.rows, self.model.num_drawn
        if computed is None or first + num_rows > len(computed[0]):
            raise RuntimeError(f"{num_rows} rows to sample, others were computed")
        safe, risky = (rows[first : first + num_rows] for rows in computed)
        self.model.num_drawn += num_rows
        for i, slot in enumerate(self._batch.idx_mapping_np.tolist() if first == 0 else ()):
            request = self._requests[slot]
            if request.debt is None:  # score what this step read of its prompt
                self._score(slot, request, i)
        host_slots = ctx.idx_mapping_np.tolist()
        rows = Rows.of(
            slots=ctx.idx_mapping,
            host_slots=host_slots,
            offsets=ctx.expanded_local_pos,
            token_ids=ctx.input_ids,
            positions=ctx.pos,
            num_rows=self.num_rows if num_rows > len(host_slots) else 1,
        )
        tokens, records = self.slots.decide(rows, risky, safe)
        requests = [self._requests[slot] for slot in host_slots]
        self.recorder.keep(requests, records)
        if unwritten := [i for i, one in enumerate(requests) if one.error == UNWRITTEN.reason]:
            # Ends with this step; on a device, where the journal is late, with a later one.
            self.slots.is_failed[[host_slots[i] for i in unwritten]] = True
            tokens[unwritten] = self.slots.end
        offsets = ctx.expanded_local_pos.long()
        request = (offsets == 0).long().cumsum(0) - 1
        return tokens[request, offsets]

    def _new_request(self, data: Any, prompt: list[int]) -> SlotRequest:
        size, missing = self.facts.vocab_size, self.facts.missing_token_ids
        is_shared = all(0 <= token < size and token not in missing for token in prompt)
        request = SlotRequest.of(data.req_id, prompt, data.sampling_params)
        request.error = "" if is_shared else "a token of the prompt is not shared"
        if not request.rule.charges_debt:
            request.debt = torch.tensor(request.least_debt, dtype=torch.float64)
        return request

    def _score(self, slot: int, request: SlotRequest, index: int) -> None:
        start = int(self._batch.num_computed_tokens_np[index])
        count = int(self._batch.num_scheduled_tokens[index])
        if start == 0:  # preempted while its prompt was read, it begins again
            request.num_scored, request.ratios = 0, []
        last = len(request.prompt) - 1  # nothing of the prompt follows its last token
        end = min(start + count, last)
        hidden = self._hidden(index, count)
        if start > request.num_scored or hidden is None:
            request.error = "a part of the prompt was not read here, so its debt is not known"
            logger.error("%s: %s", request.name, request.error)
            self.slots.is_failed[slot] = True
            request.debt = NOTHING_SPENT
        else:
            request.ratios += self._ratios(hidden, request.prompt[start + 1 : end + 1])
            request.num_scored = max(end, start)
            if start + count < len(request.prompt):
                return
            rule, least = request.rule, request.least_debt
            ratios = torch.cat([self.slots.accounts[:0, DEBT], *request.ratios])
            debt = debt_nats(ratios, mode=rule.debt, window=rule.debt_window)
            request.debt = debt.clamp(min=least)
        request.ratios = []
        self.slots.set_debt(slot, request.debt)

    def _hidden(self, index: int, count: int) -> Tensor | None:
        """(count, H_s + H_r) of a request's tokens of this step; None where they are not known."""
        first = int(self._batch.query_start_loc_np[index])
        if self.model.hidden is not None:
            hidden: Tensor = self.model.hidden[first : first + count]
            return hidden
        # A CUDA graph was replayed: it reads one token a request, whose row the sampler got.
        rows = self.model.last_hidden
        is_one_each = count == 1 and len(rows) == self._batch.num_reqs
        return rows[index : index + 1] if is_one_each else None

    def _ratios(self, hidden: Tensor, targets: list[int]) -> list[Tensor]:
        """Per tile, log p_r - log p_s in nats of the targets, special ones left out."""
        special, ratios = self.facts.special_token_ids, []
        counted = [i for i, token in enumerate(targets) if token not in special]
        for at in range(0, len(counted), TILE):
            tile = counted[at : at + TILE]
            rows = hidden[uploaded(torch.tensor(tile), hidden.device)]
            token_ids = uploaded(torch.tensor([targets[i] for i in tile]), hidden.device)
            safe, risky = (
                token_log_probs(logits[:, : self.facts.vocab_size], token_ids)
                for logits in self.model.both_logits(rows)
            )
            ratios.append(log_likelihood_ratios(risky, safe))
        return ratios


def _warm_up(vocab_size: int, device: torch.device) -> None:
    """Draw one row before the first request comes: compile the kernels and compare them with the
    CPU's solver. Warped logits are float32, whatever the models are."""
    logits = torch.zeros(1, vocab_size, dtype=torch.float32, device=device)
    key = torch.zeros(1, dtype=torch.int64, device=device)
    budget = torch.zeros(1, dtype=torch.float64, device=device)
    for charge in get_args(Charge):
        project(logits, logits, budget, keyed=(key, key), charge=charge)
