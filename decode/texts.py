"""Arguments of a call, in the forms that users have, become requests."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from numbers import Number
from typing import Any

from transformers import BatchEncoding

from ..fields import checked_nats, converted, whole_number
from .engine.prompts import prompts_by_stream
from .engine.request import Request
from .generation import Earlier, Generation
from .ledger import Ledger, ledger_of
from .levels.chat import Conversation, chat_prompt, is_conversation
from .levels.level import Level
from .rules.budget import Budget
from .rules.rule import OpenRule, takes_passage
from .settings import RequestError, checked_text

Prompt = str | Sequence[int] | Any
"""A text or token ids: a list, an array or a tensor of them, or what a tokenizer returns."""


def is_single(value: Any) -> bool:
    """Tell whether a value is one prompt (a text, one row of token ids), conversation or ledger."""
    if isinstance(value, str | Generation | Ledger) or is_conversation(value):
        return True
    return _is_row(_rows(value) if isinstance(value, BatchEncoding) else _as_list(value))


def prompt_items(name: str, values: Any) -> list[Any]:
    """Prompts or continuations one by one, see `_as_prompt`.

    values: a text, a row of token ids, several of either, or what a tokenizer returns, of which the
    attention mask says what is padding. Raises ValueError, with their name, for anything else.
    """
    if is_conversation(values):
        raise ValueError(f"give conversations as messages=, not as {name}s")
    if isinstance(values, str):
        return [values]
    listed = _rows(values) if isinstance(values, BatchEncoding) else _as_list(values)
    if not isinstance(listed, list):
        raise ValueError(
            f"{name}s must be a text, a list of token ids or a list of these, got {values!r}"
        )
    return [listed] if _is_row(listed) else listed


def _as_prompt(name: str, item: Any) -> str | list[int]:
    """A text or token ids as ints; RequestError for anything else."""
    if isinstance(item, str):
        return checked_text(f"the {name}", item)
    row = _rows(item) if isinstance(item, BatchEncoding) else _as_list(item)
    if not isinstance(row, list) or (row and not _is_row(row)):
        hint = "; give conversations as messages=" if is_conversation(item) else ""
        kind = type(item).__name__
        raise RequestError(f"{name} must be a text or a list of token ids, got {kind}{hint}")
    try:
        return [id if type(id) is int else whole_number("a token id", id) for id in row]
    except ValueError as error:
        raise RequestError(str(error)) from None


def _as_list(value: Any) -> Any:
    """An array, a tensor (of one dimension or more) or a sequence as a list; others unchanged."""
    if getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist"):
        return value.tolist()
    is_text = isinstance(value, str | bytes | bytearray)
    return list(value) if isinstance(value, Sequence) and not is_text else value


def _rows(encoding: BatchEncoding) -> Any:
    """The token ids that a tokenizer returned, without padding."""
    ids = _as_list(encoding["input_ids"])
    if "attention_mask" not in encoding or not isinstance(ids, list):
        return ids
    mask = _as_list(encoding["attention_mask"])
    if _is_row(ids):
        return list(compress(ids, mask))
    rows = zip(ids, mask, strict=True)
    return [list(compress(_as_list(row), _as_list(kept))) for row, kept in rows]


def _is_row(listed: Any) -> bool:
    """Tell whether a list holds token ids rather than prompts: numbers, whatever they are worth."""
    is_list = isinstance(listed, list) and len(listed) > 0
    return is_list and all(isinstance(i, Number) or getattr(i, "ndim", 1) == 0 for i in listed)


def conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list; ValueError for what is neither."""
    listed = [messages] if is_conversation(messages) else _as_list(messages)
    if not isinstance(listed, list) or (listed and not any(map(is_conversation, listed))):
        raise ValueError(f"messages must be a list of roles and contents, got {messages!r:.80}")
    return listed


def target_symbols(level: Level, values: Any) -> list[tuple[list[int], str]]:
    """(the symbols of a continuation, why there are none, "" if there are), one by one."""
    targets: list[tuple[list[int], str]] = []
    for item in prompt_items("continuation", values):
        try:
            text = _as_prompt("continuation", item)
            targets.append((level.encode_continuation(text), ""))
        except RequestError as error:
            targets.append(([], str(error)))
    if len(targets) == 1 and targets[0][1]:
        raise ValueError(targets[0][1])
    return targets


def prompt_requests(
    level: Level,
    prompts: Any = None,
    continue_from: Earlier | Sequence[Earlier] | None = None,
    messages: Conversation | Sequence[Conversation] | None = None,
) -> list[Request]:
    """A request for one symbol after each text; what is wrong with one of several is its `error`.

    Raises ValueError for what is wrong with a single one, unless either prompts, messages or
    ledgers are there, and for texts without ratios where the level has those of others.
    """
    listed = [] if prompts is None else prompt_items("prompt", prompts)
    sources = {"prompts": listed or None, "messages": messages, "continue_from": continue_from}
    if len(named := [name for name, source in sources.items() if source is not None]) > 1:
        raise ValueError(f"give {' or '.join(named)}, not both")
    if messages is not None:
        makers = [partial(_of_chat, level, chat) for chat in conversations(messages)]
    elif continue_from is None:
        makers = [partial(_of_prompt, level, prompt) for prompt in listed]
    else:
        earlier = continue_from if isinstance(continue_from, list | tuple) else [continue_from]
        for item in earlier:
            if not isinstance(item, Generation | Ledger):
                raise ValueError(f"continue_from must be generations or ledgers, got {item!r}")
        makers = [partial(continuation, level, ledger_of(item)) for item in earlier]
    requests = [_made(make) for make in makers]
    if len(requests) == 1 and requests[0].error:
        raise ValueError(requests[0].error)
    if (ratios := level.prompt_ratios) is not None:
        ratios.check_prompts([text.prompt_token_ids for text in requests if not text.error])
    return requests


def _made(make: Callable[[], Request]) -> Request:
    """The request that is made, or one with an error where it alone cannot be."""
    try:
        return make()
    except RequestError as error:
        return Request(prompt_token_ids=[], error=str(error))


def _of_prompt(level: Level, item: Any) -> Request:
    return Request(prompt_token_ids=level.encode(_as_prompt("prompt", item)))


def _of_chat(level: Level, messages: Conversation) -> Request:
    token_ids, chat_prompts = chat_prompt(level, messages)
    return Request(prompt_token_ids=token_ids, chat_prompts=chat_prompts)


def continuation(level: Level, ledger: Ledger) -> Request:
    """Goes on from the text of a ledger, with the bound of it and of what came before it.

    A ledger is a file that anyone can edit. Looked at again: all that `contradictions` looks at (so
    k, K and bound are the rule's, and what certifies nothing has no bound), and that the text
    reached its length without an end symbol. NOT looked at, as only `verify` replays the models:
    whether they gave these tokens, the spends, the debt, the rule, how many samples there were and
    what came before the prompt.
    Raises RequestError, in one line, for a text that has ended, is not this level's and pair's or
    whose ledger contradicts itself.
    """
    from .verify.consistency import contradictions  # reads ledgers of every level

    header = ledger.header
    if header.level != level.name:
        raise RequestError(f"a {header.level}-level ledger cannot go on at {level.name} level")
    if failures := contradictions(ledger, level):
        raise RequestError(f"the ledger contradicts itself: {failures[0]}")
    if header.fingerprints.get("safe") != level.pair.fingerprints["safe"]:
        raise RequestError("the ledger's bound is against another safe model, it cannot go on")
    only = "only a generation that reached its length can be continued"
    if ledger.finish_reason != "length":
        raise RequestError(f"{only}, this one ended by {ledger.finish_reason!r}")
    if ends := set(ledger.token_ids) & set(level.stop_token_ids):
        raise RequestError(f"{only}, this one holds the end symbol {min(ends)}")
    chat_prompts = (header.chat_prompts or {}).items()
    call = (*header.prompt_token_ids, header.seed, header.prior_bound, header.k, header.horizon)
    return Request(
        prompt_token_ids=level.encode_continuation(header.prompt_token_ids + ledger.token_ids),
        prior_bound=ledger.total_bound,
        earlier_charge=header.charge if ledger.certified else None,
        left_in_bank=Budget.recorded(header).left_in_bank([step.spend for step in ledger.steps]),
        chat_prompts={name: [*prompt, *ledger.token_ids] for name, prompt in chat_prompts},
        earlier_call=call if header.num_return_sequences > 1 else None,
    )


def with_values(
    texts: Sequence[Request],
    horizon: int | Sequence[int],
    *,
    horizon_name: str = "max_new_tokens",
    seed: int | Sequence[int] | None = None,
    k: float | Sequence[float | None] | None = None,
    passages: str | Sequence[str] | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
) -> list[Request]:
    """The texts with their settings, of values for all of them or one per text.

    horizon_name: of the argument that the caller named. Raises ValueError for a value of another
    type or out of range.
    """
    num_samples = whole_number("num_return_sequences", num_return_sequences)
    if num_samples < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
    count = len(texts)
    seeds = [0 if s is None else whole_number("seed", s) for s in _by_text("seed", seed, count)]
    ks = [None if nats is None else checked_nats("k", nats) for nats in _by_text("k", k, count)]
    stops = converted("stop", [stop] if isinstance(stop, str) else stop or [], list[str])
    horizons = [whole_number(horizon_name, n) for n in _by_text(horizon_name, horizon, count)]
    if min(horizons, default=1) < 1:
        raise ValueError(f"{horizon_name} must be >= 1, got {min(horizons)}")
    columns = (texts, horizons, seeds, ks, _by_text("passages", passages, count))
    return [
        replace(
            text,
            max_new_tokens=steps,
            seed=seed_of_text,
            k=nats,
            passage=passage,
            stop=tuple(stops),
            num_return_sequences=num_samples,
        )
        for text, steps, seed_of_text, nats, passage in zip(*columns, strict=True)
    ]


def _by_text(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` texts, or its values, one a text."""
    if value is None or isinstance(value, Number | str) or getattr(value, "ndim", 1) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values


def request_list(
    level: Level,
    rule: OpenRule,
    texts: Sequence[Request],
    *,
    num_unread: int = 0,
    is_alone: bool = False,
) -> list[Request]:
    """The requests for each text, in order, as many as it has samples.

    Those with one prompt and one seed are counted 0, 1, ... and so have other uniforms. texts: with
    their values. num_unread: symbols at the end of each that no model reads. An error of a prompt,
    a passage, a conversation or a ledger is the `error` of its requests, a ValueError where
    `is_alone`; that of a setting, of one of several too, is a ValueError before anything is drawn.
    """
    # 1. Settings that the level or the rule does not take.
    for stop in {text.stop for text in texts}:
        level.stop_symbols(stop)
    has_passages = any(text.passage is not None for text in texts)
    if texts and takes_passage(rule) != has_passages:
        needs = "reads no passages" if has_passages else "needs a passage a prompt, got none"
        raise ValueError(f"the rule {rule.name} {needs}")
    # 2. The most that each may spend, with what the earlier text left it.
    budgets = [
        rule.budget_for(horizon=text.max_new_tokens, k=text.k).going_on(text.left_in_bank)
        for text in texts
    ]
    counted: Counter[tuple[int, ...]] = Counter()
    requests: list[Request] = []
    for text, budget, nats in zip(texts, budgets, _prior_bounds(texts, budgets), strict=True):
        # 3. The prompts of the rule's streams, and whether they fit.
        try:
            text = _with_streams(level, rule, text, num_unread)
        except RequestError as error:
            if is_alone:
                raise
            text = replace(text, chat_prompts={}, error=str(error))
        # 4. A request for each sample.
        key = (*text.prompt_token_ids, text.seed)
        for _ in range(text.num_return_sequences):
            request = replace(
                text,
                index=len(requests),
                place=counted[key],
                prior_bound=nats,
                least_debt=budget.debt,
            )
            requests.append(request)
            counted[key] += 1
    return requests


def _prior_bounds(texts: Sequence[Request], budgets: Sequence[Budget]) -> list[float]:
    """Nats that may have been spent, or may be by other texts, before each text.

    The earlier text may have spent its bound, less what it has left, which this text counts.
    Samples of one earlier call that go on together: the prior bound of each holds for what the
    others may spend now, without the debts of their prompts, which follow when they are read.
    """
    bounds = []
    for i, (text, budget) in enumerate(zip(texts, budgets, strict=True)):
        others = [] if text.earlier_call is None else budgets  # else each would look at all
        together = sum(
            other.bound
            for j, other in enumerate(others)
            if j != i and texts[j].earlier_call == text.earlier_call
        )
        nats = max(0.0, text.prior_bound - budget.carried(text.left_in_bank))
        bounds.append(nats + text.num_return_sequences * together)
    return bounds


def _with_streams(level: Level, rule: OpenRule, text: Request, num_unread: int) -> Request:
    """The text with what the rule's streams read in its place; RequestError where it cannot be."""
    if text.error:
        raise RequestError(text.error)
    if text.passage is not None:
        checked_text("the passage", text.passage)
    stream_prompts = prompts_by_stream(
        level, rule, text.prompt_token_ids, text.passage, text.chat_prompts
    )
    before = text.earlier_charge
    if before is not None and rule.charge not in (before, None):
        raise RequestError(
            f"the text was charged the {before} log-ratio of each step, and the rule {rule.name} "
            f"charges the {rule.charge} one: no bound would hold for both together"
        )
    longest = max([text.prompt_token_ids, *stream_prompts.values()], key=len)
    # A score may end after the models' context, where its last symbol is not read.
    if level.too_long(longest, text.max_new_tokens - num_unread):
        raise RequestError(level.too_long(longest, text.max_new_tokens))
    return replace(
        text,
        chat_prompts={n: ids for n, ids in stream_prompts.items() if n in text.chat_prompts},
        stream_prompts=stream_prompts,
    )
