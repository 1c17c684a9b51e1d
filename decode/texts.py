"""Prompts, conversations and earlier ledgers become requests."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .arguments import TextValues, conversations, prompt_list
from .engine.prompts import StreamPrompts, prompts_by_stream
from .engine.request import Request
from .generation import Earlier, Generation
from .ledger import Ledger, ledger_of
from .levels.chat import Conversation, chat_prompt
from .levels.level import Level
from .rules.budget import Budget
from .rules.rule import OpenRule, takes_passage
from .settings import RequestError, checked_text


def prompt_requests(
    level: Level,
    prompts: Any = None,
    continue_from: Earlier | Sequence[Earlier] | None = None,
    messages: Conversation | Sequence[Conversation] | None = None,
) -> list[Request]:
    """A request for one symbol after each text; what is wrong with one of several is its `error`.

    Raises ValueError for what is wrong with a single one, unless either prompts, messages or
    ledgers are given, and for texts whose ratios the level does not know though it has those of
    others.
    """
    listed = [] if prompts is None else prompt_list("prompt", prompts)
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


def _of_prompt(level: Level, prompt: str | list[int] | RequestError) -> Request:
    if isinstance(prompt, RequestError):
        raise prompt
    if isinstance(prompt, str):
        checked_text("the prompt", prompt)
    return Request(prompt_token_ids=level.encode(prompt))


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


def request_list(
    level: Level,
    rule: OpenRule,
    texts: Sequence[Request],
    values: Sequence[TextValues],
    *,
    num_unread: int = 0,
    is_alone: bool = False,
) -> list[Request]:
    """The requests for each text, in order, as many as it has samples.

    Those with one prompt and one seed are counted 0, 1, ... and so have other uniforms. values: of
    the texts. num_unread: symbols at the end of each that no model reads. An error of a prompt, a
    passage, a conversation or a ledger is the `error` of its requests, a ValueError where
    `is_alone`; that of a setting, of one of several too, is a ValueError before anything is drawn.
    """
    # 1. Settings that the level or the rule does not take.
    for stop in {value.stop for value in values}:
        level.stop_symbols(stop)
    has_passages = any(value.passage is not None for value in values)
    if values and takes_passage(rule) != has_passages:
        needs = "reads no passages" if has_passages else "needs a passage a prompt, got none"
        raise ValueError(f"the rule {rule.name} {needs}")
    # 2. The most that each may spend, with what the earlier text left it.
    budgets = [
        rule.budget_for(horizon=value.horizon, k=value.k).going_on(text.left_in_bank)
        for text, value in zip(texts, values, strict=True)
    ]
    prior_bounds = _prior_bounds(texts, budgets, [value.num_samples for value in values])
    counted: Counter[tuple[int, ...]] = Counter()
    requests: list[Request] = []
    for text, value, budget, nats in zip(texts, values, budgets, prior_bounds, strict=True):
        # 3. The prompts of the rule's streams, and whether they fit.
        text = _with_streams(level, rule, text, value, num_unread)
        if is_alone and text.error:
            raise ValueError(text.error)
        # 4. A request for each sample.
        for _ in range(value.num_samples):
            request = replace(
                text,
                max_new_tokens=value.horizon,
                seed=value.seed,
                k=value.k,
                stop=value.stop,
                index=len(requests),
                place=counted[*text.prompt_token_ids, value.seed],
                num_return_sequences=value.num_samples,
                prior_bound=nats,
                least_debt=budget.debt,
            )
            counted[*text.prompt_token_ids, value.seed] += 1
            requests.append(request)
    return requests


def _prior_bounds(
    texts: Sequence[Request], budgets: Sequence[Budget], num_samples: Sequence[int]
) -> list[float]:
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
        bounds.append(nats + num_samples[i] * together)
    return bounds


def _with_streams(
    level: Level, rule: OpenRule, text: Request, value: TextValues, num_unread: int
) -> Request:
    """The text with what the rule's streams read in its place, or with an error."""
    if text.error:
        return replace(text, passage=value.passage)
    stream_prompts: StreamPrompts = {}
    error = ""
    try:
        if value.passage is not None:
            checked_text("the passage", value.passage)
        stream_prompts = prompts_by_stream(
            level, rule, text.prompt_token_ids, value.passage, text.chat_prompts
        )
    except RequestError as fault:
        error = str(fault)
    before = text.earlier_charge
    if not error and before is not None and rule.charge not in (before, None):
        error = (
            f"the text was charged the {before} log-ratio of each step, and the rule {rule.name} "
            f"charges the {rule.charge} one: no bound would hold for both together"
        )
    longest = max([text.prompt_token_ids, *stream_prompts.values()], key=len)
    # A score may end after the models' context, where its last symbol is not read.
    if not error and level.too_long(longest, value.horizon - num_unread):
        error = level.too_long(longest, value.horizon)
    return replace(
        text,
        passage=value.passage,
        chat_prompts={n: ids for n, ids in stream_prompts.items() if n in text.chat_prompts},
        stream_prompts=stream_prompts,
        error=error,
    )
