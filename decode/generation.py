"""Results of a call: generations, pieces of a stream, their ledgers."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from tqdm.auto import tqdm

from ..errors import AnchoredError
from .ambient import in_plain_torch
from .engine.paired_batch import PairedBatch
from .engine.request import Request, RequestState, random_stream, warn_of_safe_only
from .ledger import Ledger, LedgerHeader
from .levels.level import Level
from .rules.budget import Budget
from .rules.rule import OpenRule
from .settings import SamplingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A continuation with the record of what it spent."""

    prompt: str | list[int]
    text: str
    """The continuation; the end symbol and anything from a stop string on are left out."""
    pieces: list[tuple[str, bool]]
    """The text symbol by symbol, with whether the safe model's draw was kept."""
    ledger: Ledger
    error: str = ""
    """Why this request failed, "" for success; what was drawn before is kept."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the continuation (bytes at byte level), the end included where it was drawn."""
        return self.ledger.token_ids

    @property
    def finish_reason(self) -> str:
        """ "length", "stop_token", "stop_string", "error", or "aborted" where it was broken off."""
        return self.ledger.finish_reason

    def __str__(self) -> str:
        header, spent = self.ledger.header, f"spent={self.ledger.spent:.4g}"
        budget = Budget.recorded(header)
        certified = "certified" if self.ledger.certified else "NOT certified"
        ending = f"{len(self.token_ids)} {header.level}s, {self.finish_reason}, {certified}"
        if math.isinf(header.K):
            return f"no budget under the rule {header.rule}, {spent} nats, {ending}"
        # Bounds add up where other samples or earlier text share the prompt.
        is_one_of_several = header.num_return_sequences > 1 or header.prior_bound > 0.0
        total = f" (in total {self.ledger.total_bound:.4g})" if is_one_of_several else ""
        is_drawn = header.charge == "drawn" and self.ledger.certified
        says = f", {likelier(self.ledger.spent)}" if is_drawn else ""
        return (
            f"{budget} debt={header.debt:.4g} {spent} bound={header.bound:.4g}{total} nats, "
            f"{ending}{says}"
        )


MOST_NATS = 700.0
"""Nats whose exponential is still a float64."""


def likelier(spent: float) -> str:
    """A phrase for what nats of drawn tokens say of a text."""
    return f"{math.exp(min(spent, MOST_NATS)):.3g} times as likely as from the safe model"


Earlier = Generation | Ledger
"""A text that a call goes on from."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one step of a stream added."""

    text: str
    """Whole characters only; "" while a character or a possible stop string is incomplete."""
    spend: float
    """Nats."""
    accepted: bool
    token_id: int


class PieceStream(Iterator[Piece]):
    """Iterates over the pieces of one request as they are drawn; nothing runs before the first.

    `generation` and `ledger` are of what has been drawn, with the finish_reason "aborted" while
    more may come: so a stream that is broken off has them too. The next piece is an AnchoredError
    where a model's logits are NaN; the ledger is then that of what was drawn before, uncertified.
    """

    def __init__(
        self,
        request: Request,
        *,
        open_batch: Callable[[], PairedBatch],
        generation_of: Callable[[RequestState], Generation],
    ) -> None:
        self._request, self._open_batch, self._generation_of = request, open_batch, generation_of
        self._state: RequestState | None = None
        self._pieces = self._drawn_pieces()

    @in_plain_torch
    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Draw no more, and free the models' memories of the text."""
        self._pieces.close()

    @property
    def generation(self) -> Generation:
        """The text drawn so far; AnchoredError before the first piece."""
        if self._state is None or not has_begun(self._state):
            raise AnchoredError("a stream has its ledger from the first piece on: ask for a piece")
        return self._generation_of(self._state)

    @property
    def ledger(self) -> Ledger:
        """The record of spends so far, to save and verify; AnchoredError before the first piece."""
        return self.generation.ledger

    def _drawn_pieces(self) -> Generator[Piece]:
        batch = self._open_batch()
        (state,) = batch.admit([self._request])
        self._state = state
        warn_of_safe_only([state.budget])
        while not state.is_finished:
            first = len(state.steps)
            batch.step()
            for text, step in zip(state.texts[first:], state.steps[first:], strict=True):
                yield Piece(text, step.spend, step.accepted, step.token_id)
        if state.error:
            raise AnchoredError(state.error)


class Generations(Iterator[tuple[int, Generation]]):
    """Iterates over generations, each with its index, as they end.

    What had begun when the iterator was dropped, or interrupted, is in `aborted`.
    """

    def __init__(
        self,
        states: Iterator[RequestState],
        begun: dict[int, RequestState],
        generation_of: Callable[[RequestState], Generation],
        *,
        total: int,
        progress: bool | str,
        symbol: str,
    ) -> None:
        """states: of requests that end, `total` in all. begun: those that models have read and that
        were not taken, by index. progress: the bar's title, True for "generate", False for none.
        symbol: the unit that the bar counts."""
        self._begun, self._generation_of = begun, generation_of
        self._generations = self._ended(states, total, progress, symbol)

    @in_plain_torch
    def __next__(self) -> tuple[int, Generation]:
        return next(self._generations)

    def close(self) -> None:
        """Draw no more."""
        self._generations.close()

    def _ended(
        self, states: Iterator[RequestState], total: int, progress: bool | str, symbol: str
    ) -> Generator[tuple[int, Generation]]:
        """The generations, and one warning of those that could spend nothing."""
        title = progress if isinstance(progress, str) else "generate"
        start, num_symbols, budgets = time.perf_counter(), 0, []
        with tqdm(total=total, desc=title, unit="prompt", disable=not progress) as bar:
            for state in states:
                budgets.append(state.budget)
                num_symbols += len(state.steps)
                symbols_per_s = num_symbols / (time.perf_counter() - start)
                bar.set_postfix_str(f"{symbols_per_s:.0f} {symbol}s/s", refresh=False)
                bar.update()
                self._begun.pop(state.request.index, None)
                yield state.request.index, self._generation_of(state)
        warn_of_safe_only(budgets)

    @property
    def aborted(self) -> list[tuple[int, Generation]]:
        """Generations that tokens were drawn for and that were not taken, in order."""
        return [
            (index, self._generation_of(state))
            for index, state in sorted(self._begun.items())
            if has_begun(state)
        ]


def has_begun(state: RequestState) -> bool:
    """Tell whether there is anything to record: a token that was drawn, or an error."""
    return bool(state.steps) or state.is_finished


def generation_of(
    level: Level, rule: OpenRule, sampling: SamplingConfig, state: RequestState
) -> Generation:
    """The generation that a request has become, finished or not."""
    return Generation(
        prompt=state.request.prompt_token_ids,
        text=state.text.text,
        # An interrupt may come between a text and its step.
        pieces=[(t, s.accepted) for t, s in zip(state.texts, state.steps, strict=False)],
        ledger=request_ledger(level, rule, sampling, state),
        error=f"request {state.request.index}: {state.error}" if state.error else "",
    )


def request_ledger(
    level: Level, rule: OpenRule, sampling: SamplingConfig, state: RequestState
) -> Ledger:
    """The record of a request so far; a failed or greedy one is not certified."""
    num_forwards = _num_forwards(rule, state)
    return Ledger(
        header=ledger_header(level, rule, sampling, state),
        steps=list(state.steps),
        certified=rule.is_certified and not sampling.is_greedy and not state.error,
        finish_reason=state.finish_reason or "aborted",
        safe_forwards=int(num_forwards["safe"]),
        risky_forwards=int(num_forwards["risky"]),
        work=state.work,
        skipped_risky=state.num_skipped,
        drafted=state.num_drafted,
        accepted=state.num_accepted,
    )


def _num_forwards(rule: OpenRule, state: RequestState) -> dict[str, float]:
    """Forwards by model, over all its streams: as streams that count them report, else as made."""
    counted: defaultdict[str, float] = defaultdict(float)
    for name, work in state.work.items():
        if "num_forwards" in work:
            counted[rule.streams[name].model] += work["num_forwards"]
    return {"safe": 0, "risky": 0, **state.num_forwards, **counted}


def ledger_header(
    level: Level, rule: OpenRule, sampling: SamplingConfig, state: RequestState
) -> LedgerHeader:
    """All of a request's record that is known before its first token."""
    pair = level.pair
    return LedgerHeader(
        rule=rule.name,
        rule_settings=rule.rule.settings(),
        sampling=sampling.as_dict(),
        seed=state.request.seed,
        prompt_token_ids=state.request.prompt_token_ids,
        stop_token_ids=[] if state.request.ignores_ends else level.stop_token_ids,
        fingerprints=dict(pair.fingerprints),
        dtype=str(pair.dtype).removeprefix("torch."),
        **state.budget.record(),
        charge=rule.charge,
        quantization=dict(pair.quantization),
        level=level.name,
        level_settings=level.settings(),
        num_return_sequences=state.request.num_return_sequences,
        prior_bound=state.prior_bound,
        least_debt=state.request.least_debt or None,
        passage=state.request.passage,
        chat_prompts=dict(state.request.chat_prompts) or None,
        words=None if rule.used_words is None else dict(rule.used_words),
        stream=random_stream(state.request.prompt_token_ids, place=state.request.place),
    )
