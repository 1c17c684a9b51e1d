"""Values in the forms that users have become requests: texts, conversations, earlier ledgers."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import replace
from functools import partial
from itertools import compress
from numbers import Number
from typing import Any, cast

from transformers import BatchEncoding

from ..fields import checked_nats, converted, whole_number
from .engine.prompts import StreamPrompts, prompts_by_stream
from .engine.request import Request
from .generate_options import Earlier
from .generation import Generation
from .ledger import Ledger
from .levels.chat import Conversation, chat_prompt, is_conversation
from .levels.level import Level
from .pair.model_pair import ModelPair
from .rules.budget import Budget
from .rules.rule import OpenRule, Rule, takes_passage
from .settings import RequestError, checked_text

Prompt = str | Sequence[int] | Any
"""A text or token ids: a list, an array or a tensor of them, or what a tokenizer returns."""


def conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list; ValueError for what is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"messages must be a list of roles and contents, got {messages!r}")
    listed = [messages] if is_conversation(messages) else list(messages)
    if listed and not any(map(is_conversation, listed)):
        raise ValueError(f"messages must be a list of roles and contents, got {listed[0]!r}")
    return listed


def is_single(value: Any) -> bool:
    """Tell whether a value is one prompt (a text, one row of token ids), conversation or ledger."""
    if isinstance(value, str | Generation | Ledger) or is_conversation(value):
        return True
    return _is_row(_rows(value) if isinstance(value, BatchEncoding) else _as_list(value))


def prompt_list(name: str, values: Any) -> list[str | list[int] | RequestError]:
    """Prompts or continuations as texts and lists of ints, or what is wrong with one of several.

    values: a text, a row of token ids, several of either, or what a tokenizer returns, of which the
    attention mask says what is padding. Raises ValueError, with their name, for anything else.
    """
    if isinstance(values, str):
        return [values]
    if isinstance(values, Mapping | Set | ValuesView) and not isinstance(values, BatchEncoding):
        why = "pass its token ids" if isinstance(values, Mapping) else "its texts have no order"
        raise ValueError(f"{name}s must not be a {type(values).__name__}: {why}")
    listed = _rows(values) if isinstance(values, BatchEncoding) else _as_list(values)
    if not isinstance(listed, list):
        raise ValueError(
            f"{name}s must be a text, a list of token ids or a list of these, got {values!r}"
        )
    items = [_prompt(name, item) for item in ([listed] if _is_row(listed) else listed)]
    errors = [item for item in items if isinstance(item, RequestError)]
    if errors and len(errors) == len(items):  # of another kind altogether
        raise errors[0]
    return items


def _prompt(name: str, item: Any) -> str | list[int] | RequestError:
    row = _rows(item) if isinstance(item, BatchEncoding) else _as_list(item)
    if isinstance(item, str):
        return item
    if not isinstance(row, list) or (row and not _is_row(row)):
        is_chat = isinstance(item, Mapping) or is_conversation(item)
        hint = "; give conversations as messages=" if is_chat else ""
        kind = type(item).__name__
        return RequestError(f"{name} must be a text or a list of token ids, got {kind}{hint}")
    try:
        return [id if type(id) is int else whole_number("a token id", id) for id in row]
    except ValueError as error:
        return RequestError(str(error))


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


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Texts at which to cut: none for None, one that is a text itself."""
    if stop is None:
        return ()
    return tuple(converted("stop", [stop] if isinstance(stop, str) else stop, list[str]))


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` prompts, or its values, one a prompt."""
    if value is None or isinstance(value, Number | str) or getattr(value, "ndim", 1) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values


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
    sources = {"prompts": bool(listed), "messages": messages is not None}
    sources["continue_from"] = continue_from is not None
    if sum(sources.values()) > 1:
        raise ValueError(f"give {' or '.join(name for name in sources if sources[name])}, not both")
    if messages is not None:
        makers = [partial(_of_chat, level, chat) for chat in conversations(messages)]
    elif continue_from is None:
        makers = [partial(_of_prompt, level, prompt) for prompt in listed]
    else:
        is_list = isinstance(continue_from, list | tuple)
        earlier: list[Any] = list(cast(Any, continue_from)) if is_list else [continue_from]
        for item in earlier:
            if not isinstance(item, Generation | Ledger):
                raise ValueError(f"continue_from must be generations or ledgers, got {item!r}")
        ledgers = [item if isinstance(item, Ledger) else item.ledger for item in earlier]
        makers = [partial(continuation, level, ledger) for ledger in ledgers]
    requests = [_made(make) for make in makers]
    if len(requests) == 1 and requests[0].error:
        raise ValueError(requests[0].error)
    if (ratios := level.prompt_ratios) is not None:
        ratios.check_prompts(
            [request.prompt_token_ids for request in requests if not request.error]
        )
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
    budget = Budget(
        per_step=header.k,
        total=header.K,
        horizon=header.horizon,
        debt=header.debt,
        bank=header.bank,
    )
    return Request(
        prompt_token_ids=level.encode_continuation(header.prompt_token_ids + ledger.token_ids),
        prior_bound=ledger.total_bound,
        earlier_charge=header.charge if ledger.certified else None,
        left_in_bank=budget.left_in_bank([step.spend for step in ledger.steps]),
        chat_prompts={name: [*prompt, *ledger.token_ids] for name, prompt in chat_prompts},
        earlier_call=call if header.num_return_sequences > 1 else None,
    )


def request_list(
    level: Level,
    rule: OpenRule,
    prompts: Any,
    horizon: int | Sequence[int],
    *,
    continue_from: Earlier | Sequence[Earlier] | None = None,
    messages: Conversation | Sequence[Conversation] | None = None,
    seed: int | Sequence[int] | None = None,
    k: float | Sequence[float | None] | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
    passages: str | Sequence[str] | None = None,
    num_unread: int = 0,
    is_alone: bool = False,
    horizon_name: str = "max_new_tokens",
) -> list[Request]:
    """`num_return_sequences` requests for each text, in order, with its seed.

    Those with one prompt and one seed are counted 0, 1, ... and so have other uniforms.
    num_unread: symbols at the end of each that no model reads. horizon_name: of the argument that
    the caller. What is wrong with a prompt, a passage, a conversation or a ledger is the
    `error` of its requests, a ValueError where `is_alone`. What is wrong with a setting, one of
    several too (a seed, a k or a horizon out of range, a budget that the rule cannot have, passages
    for a rule that reads none), is a ValueError of the call, before anything is drawn.
    """
    # 1. The texts, and a value of each setting for each of them.
    texts = prompt_requests(level, prompts, continue_from, messages)
    num_samples = whole_number("num_return_sequences", num_return_sequences)
    if num_samples < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
    seeds = one_each("seed", seed, len(texts))
    seeds = [0 if value is None else whole_number("seed", value) for value in seeds]
    ks = [None if v is None else checked_nats("k", v) for v in one_each("k", k, len(texts))]
    passage_each, stops = one_each("passages", passages, len(texts)), stop_strings(stop)
    level.stop_symbols(stops)
    if takes_passage(rule) != (passages is not None):
        needs = "needs a passage a prompt, got none" if passages is None else "reads no passages"
        raise ValueError(f"the rule {rule.name} {needs}")
    lengths = [whole_number(horizon_name, n) for n in one_each(horizon_name, horizon, len(texts))]
    if min(lengths, default=1) < 1:
        raise ValueError(f"{horizon_name} must be >= 1, got {min(lengths)}")
    # 2. What each may spend at most: ValueError for a k that the rule cannot have. A bank goes on
    #    as the earlier text left it.
    budgets = [
        rule.budget_for(horizon=n, k=value).going_on(text.left_in_bank)
        for text, n, value in zip(texts, lengths, ks, strict=True)
    ]
    earlier: Counter[tuple[tuple[int, ...], int]] = Counter()
    requests: list[Request] = []
    for i, text in enumerate(texts):
        # 3. What the streams of the rule read, and whether it fits. A score may end after the
        #    models' context, where its last symbol is not read.
        stream_prompts, error = _stream_prompts(level, rule, text, passage_each[i])
        error = error or _of_another_kind(rule, text)
        longest = max([text.prompt_token_ids, *stream_prompts.values()], key=len)
        error = error or (
            level.too_long(longest, lengths[i] - num_unread) and level.too_long(longest, lengths[i])
        )
        if is_alone and error:
            raise ValueError(error)
        # 4. What came before may have spent its bound, less what is in the bank, which this text
        #    counts. Samples of one earlier call that go on together: the prior bound of each holds
        #    for what the others may spend now, without the debts of their prompts, which are not
        #    known yet.
        has_carried = text.left_in_bank < math.inf
        carried = max(0.0, min(text.left_in_bank, budgets[i].bank or 0.0)) if has_carried else 0.0
        prior_bound = max(0.0, text.prior_bound - carried)
        if text.earlier_call is not None:  # else this would look at each text for each
            prior_bound += num_samples * sum(
                budget.bound
                for j, (other, budget) in enumerate(zip(texts, budgets, strict=True))
                if j != i and other.earlier_call == text.earlier_call
            )
        for _ in range(num_samples):
            prompt_and_seed = (tuple(text.prompt_token_ids), seeds[i])
            request = replace(
                text,
                max_new_tokens=lengths[i],
                seed=seeds[i],
                k=ks[i],
                stop=stops,
                index=len(requests),
                place=earlier[prompt_and_seed],
                num_return_sequences=num_samples,
                prior_bound=prior_bound,
                least_debt=budgets[i].debt,
                passage=passage_each[i],
                chat_prompts={n: p for n, p in stream_prompts.items() if n in text.chat_prompts},
                stream_prompts=stream_prompts,
                error=error,
            )
            earlier[prompt_and_seed] += 1
            requests.append(request)
    return requests


def _of_another_kind(rule: OpenRule, text: Request) -> str:
    """Why a rule cannot go on with a text, "" if it can: one bound for both is of one kind."""
    before = text.earlier_charge
    if before is None or rule.charge in (before, None):
        return ""
    return (
        f"the text was charged the {before} log-ratio of each step, and the rule {rule.name} "
        f"charges the {rule.charge} one: no bound would hold for both together"
    )


def _stream_prompts(
    level: Level, rule: OpenRule, text: Request, passage: str | None
) -> tuple[StreamPrompts, str]:
    """(what streams of the rule read in place of a prompt, why they cannot, "" if they can)."""
    try:
        if passage is not None:
            checked_text("the passage", passage)
        chat_prompts, prompt = text.chat_prompts, text.prompt_token_ids
        return prompts_by_stream(level, rule, prompt, passage, chat_prompts), text.error
    except RequestError as error:
        return {}, text.error or str(error)


def target_symbols(level: Level, values: Any) -> list[tuple[list[int], str]]:
    """(the symbols of a continuation, why there are none, "" if there are), one by one."""
    targets: list[tuple[list[int], str]] = []
    for text in prompt_list("continuation", values):
        try:
            if isinstance(text, RequestError):
                raise text
            if isinstance(text, str):
                checked_text("the continuation", text)
            targets.append((level.encode_continuation(text), ""))
        except RequestError as error:
            targets.append(([], str(error)))
    if len(targets) == 1 and targets[0][1]:
        raise ValueError(targets[0][1])
    return targets


def check_parts(pair: Any, rule: Any) -> None:
    """Raise ValueError, naming the right spelling, for what is no pair or no rule."""
    if isinstance(rule, type):
        raise ValueError(f"rule is the class {rule.__name__}: give a rule, {rule.__name__}(...)")
    if not isinstance(pair, ModelPair):
        kind = type(pair).__name__
        raise ValueError(f"pair must be a ModelPair, got {kind}: write Decoder(pair, rule)")
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must be a rule such as Anchored(k=1.5), got {rule!r}")
