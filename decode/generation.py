"""What a call gives back: generations, pieces of a stream, their ledgers."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tqdm.auto import tqdm

from .. import AnchoredError
from .engine.paired_batch import PairedBatch
from .engine.request import Request, RequestState, random_stream, warn_of_safe_only
from .ledger import Ledger, LedgerHeader
from .levels.level import Level
from .rules.rule import Rule
from .settings import SamplingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A continuation with the record of what it spent."""

    prompt: str | list[int]
    text: str
    """The continuation; the end symbol and anything from a stop string on are left out."""
    pieces: list[tuple[str, bool]]
    """The text symbol by symbol, with whether the safe model's own draw was kept."""
    ledger: Ledger
    error: str = ""
    """Why this request failed, "" for success; what was drawn before is kept."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the continuation (bytes at byte level), the end included where it was drawn."""
        return self.ledger.token_ids

    @property
    def finish_reason(self) -> str:
        """ "length", "stop_token", "stop_string" or "error"."""
        return self.ledger.finish_reason

    def __str__(self) -> str:
        header = self.ledger.header
        certified = "certified" if self.ledger.certified else "NOT certified"
        # Bounds add up where other samples or earlier text share the prompt.
        is_one_of_several = header.num_return_sequences > 1 or header.prior_bound > 0.0
        total = f" (in total {self.ledger.total_bound:.4g})" if is_one_of_several else ""
        return (
            f"K={header.K:.4g} (k={header.k:.4g} x {header.horizon}) debt={header.debt:.4g} "
            f"spent={self.ledger.spent:.4g} bound={header.bound:.4g}{total} nats, "
            f"{len(self.token_ids)} {header.level}s, {self.finish_reason}, {certified}"
        )


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

    `generation` and `ledger` are there once the last piece was drawn. Asking for a piece raises
    AnchoredError when a model's logits are NaN; the ledger is then that of what was drawn before,
    uncertified.
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

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The whole of it; AnchoredError while pieces are to come."""
        if self._state is None or not self._state.is_finished:
            raise AnchoredError("a stream has its ledger after the last piece: iterate to the end")
        return self._generation_of(self._state)

    @property
    def ledger(self) -> Ledger:
        """The record of spends, to save and verify; AnchoredError while pieces are to come."""
        return self.generation.ledger

    def _drawn_pieces(self) -> Iterator[Piece]:
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


def generation_of(
    level: Level, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> Generation:
    """The generation that a request has become, finished or not."""
    return Generation(
        prompt=state.request.prompt_token_ids,
        text=state.text.text,
        pieces=[(t, s.accepted) for t, s in zip(state.texts, state.steps, strict=True)],
        ledger=request_ledger(level, rule, sampling, state),
        error=f"request {state.request.index}: {state.error}" if state.error else "",
    )


def request_ledger(
    level: Level, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> Ledger:
    """The record of a request so far; a failed or greedy one is not certified."""
    num_forwards = _num_forwards(rule, state)
    return Ledger(
        header=_header(level, rule, sampling, state),
        steps=list(state.steps),
        certified=rule.is_certified and not sampling.is_greedy and not state.error,
        finish_reason=state.finish_reason,
        safe_forwards=int(num_forwards["safe"]),
        risky_forwards=int(num_forwards["risky"]),
        work=state.work,
        skipped_risky=state.num_skipped,
        drafted=state.num_drafted,
        accepted=state.num_accepted,
    )


def _num_forwards(rule: Rule, state: RequestState) -> dict[str, float]:
    """Forwards by model, over all its streams: as streams that count them tell, else as made."""
    told: defaultdict[str, float] = defaultdict(float)
    for name, own in state.work.items():
        if "num_forwards" in own:
            told[rule.streams[name].model] += own["num_forwards"]
    return {"safe": 0, "risky": 0, **state.num_forwards, **told}


def _header(
    level: Level, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> LedgerHeader:
    pair = level.pair
    return LedgerHeader(
        rule=rule.name,
        rule_settings=rule.settings(),
        sampling=sampling.as_dict(),
        seed=state.request.seed,
        prompt_token_ids=state.request.prompt_token_ids,
        stop_token_ids=level.stop_token_ids,
        fingerprints=dict(pair.fingerprints),
        dtype=str(pair.dtype).removeprefix("torch."),
        debt=state.budget.debt,
        k=state.budget.per_step,
        K=state.budget.total,
        horizon=state.budget.horizon,
        bound=state.budget.bound,
        quantization=dict(pair.quantization),
        level=level.name,
        level_settings=level.settings(),
        num_return_sequences=state.request.num_return_sequences,
        prior_bound=state.request.prior_bound,
        passage=state.request.passage,
        chat_prompts=dict(state.request.chat_prompts) or None,
        words=None if rule.used_words is None else dict(rule.used_words),
        stream=random_stream(state.request.prompt_token_ids, place=state.request.place),
    )


def with_bar(
    states: Iterator[RequestState], total: int, progress: bool | str, symbol: str
) -> Iterator[RequestState]:
    """Pass the states through.

    progress: the bar's title, True for "generate", False for none. symbol: what is counted.
    """
    title = progress if isinstance(progress, str) else "generate"
    start, num_symbols = time.perf_counter(), 0
    with tqdm(total=total, desc=title, unit="prompt", disable=not progress) as bar:
        for state in states:
            num_symbols += len(state.steps)
            symbols_per_s = num_symbols / (time.perf_counter() - start)
            bar.set_postfix_str(f"{symbols_per_s:.0f} {symbol}s/s", refresh=False)
            bar.update()
            yield state
