"""What callers give, in the forms that users have, becomes requests and settings."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set, ValuesView
from dataclasses import fields
from itertools import compress
from numbers import Number
from typing import Any, cast

from transformers import BatchEncoding, GenerationConfig

from .beginning import Beginning
from .engine.prompts import StreamPrompts, prompts_by_stream
from .engine.request import Request
from .generation import Generation
from .ledger import Ledger
from .levels.chat import Conversation, chat_prompt, is_conversation
from .levels.level import Level
from .models.model_pair import ModelPair
from .rules.budget import PromptRatios, checked_nats
from .rules.rule import Rule
from .settings import SamplingConfig, UnreadableText, checked_text, checked_texts, whole_number

Prompt = str | Sequence[int] | Any
"""A text or token ids: a list, an array or a tensor of them, or what a tokenizer returns."""
Earlier = Generation | Ledger


def conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list; ValueError for what is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"messages must be a list of roles and contents, got {messages!r}")
    return [messages] if is_conversation(messages) else list(messages)


def is_single(given: Any) -> bool:
    """Whether a prompt (a text, one row of token ids), a conversation or a ledger is given by
    itself."""
    if isinstance(given, str | Generation | Ledger) or is_conversation(given):
        return True
    return _is_row(_rows(given) if isinstance(given, BatchEncoding) else _as_list(given))


def prompt_list(name: str, given: Any) -> list[str | list[int]]:
    """Prompts or continuations as texts and lists of ints.

    given: a text, a row of token ids, several of either, or what a tokenizer returns, of which the
    attention mask says what is padding. Raises ValueError, with their name, for anything else.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping | Set | ValuesView) and not isinstance(given, BatchEncoding):
        why = "pass its token ids" if isinstance(given, Mapping) else "its texts have no order"
        raise ValueError(f"{name}s must not be a {type(given).__name__}: {why}")
    listed = _rows(given) if isinstance(given, BatchEncoding) else _as_list(given)
    if not isinstance(listed, list):
        raise ValueError(
            f"{name}s must be a text, a list of token ids or a list of these, got {given!r}"
        )
    return [_prompt(name, item) for item in ([listed] if _is_row(listed) else listed)]


def _prompt(name: str, item: Any) -> str | list[int]:
    row = _rows(item) if isinstance(item, BatchEncoding) else _as_list(item)
    if isinstance(item, str):
        return item
    if not isinstance(row, list) or (row and not _is_row(row)):
        hint = "; give conversations as messages=" if isinstance(item, Mapping) else ""
        kind = type(item).__name__
        raise ValueError(f"{name} must be a text or a list of token ids, got {kind}{hint}")
    return [id if type(id) is int else whole_number("a token id", id) for id in row]


def _as_list(given: Any) -> Any:
    """An array, a tensor (of one dimension or more) or a sequence as a list; others unchanged."""
    if getattr(given, "ndim", 0) > 0 and hasattr(given, "tolist"):
        return given.tolist()
    is_text = isinstance(given, str | bytes | bytearray)
    return list(given) if isinstance(given, Sequence) and not is_text else given


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
    """Whether a list holds token ids rather than prompts: numbers, whatever they are worth."""
    is_list = isinstance(listed, list) and len(listed) > 0
    return is_list and all(isinstance(i, Number) or getattr(i, "ndim", 1) == 0 for i in listed)


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Texts at which to cut: none for None, one that is given by itself."""
    if stop is None:
        return ()
    return tuple(checked_texts("stop", [stop] if isinstance(stop, str) else stop))


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` prompts, or its values, one a prompt."""
    if value is None or isinstance(value, Number | str) or getattr(value, "ndim", 1) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values


DEFAULT_NEW_TOKENS = 200
NAMES_HERE = {
    **{field.name: field.name for field in fields(SamplingConfig)},
    "max_new_tokens": "max_new_tokens",
    "num_return_sequences": "num_return_sequences",
    "stop_strings": "stop",
}
"""Fields of a GenerationConfig that are honored, and what they are called here."""
WITHOUT_EFFECT = (
    "transformers_version",
    "_from_model_config",
    "bos_token_id",
    "pad_token_id",
    "use_cache",
)
"""Fields that change no token: prompts have begin tokens of their own, padding is not read."""


def with_generation_config(
    pair: ModelPair,
    config: GenerationConfig | None,
    *,
    sampling: Mapping[str, Any],
    max_new_tokens: int | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
) -> tuple[SamplingConfig, dict[str, Any]]:
    """(the warpers of a call, its max_new_tokens, stop and num_return_sequences by name).

    A field that a config leaves at its default says nothing. Raises ValueError, with its name, for
    one that is given beside the config too, and for one that would not be honored.
    """
    given: dict[str, Any] = dict(sampling)
    if max_new_tokens is not None:
        given["max_new_tokens"] = max_new_tokens
    if stop is not None and stop != ():
        given["stop"] = stop
    if num_return_sequences != 1:
        given["num_return_sequences"] = num_return_sequences
    for name, value in ({} if config is None else _set_fields(pair, config)).items():
        if name in given:
            raise ValueError(f"{name} is given as an argument and in generation_config, not both")
        given[name] = value
    asked: dict[str, Any] = {"max_new_tokens": DEFAULT_NEW_TOKENS, "stop": ()}
    asked["num_return_sequences"] = num_return_sequences
    asked |= {name: given.pop(name) for name in asked.keys() & given.keys()}
    return SamplingConfig.of(given), asked


def _set_fields(pair: ModelPair, config: GenerationConfig) -> dict[str, Any]:
    """The fields that a config sets, by the names of this library."""
    if not isinstance(config, GenerationConfig):
        kind = type(config).__name__
        raise ValueError(f"generation_config must be a GenerationConfig, got {kind}")
    values = {n: v for n, v in config.to_diff_dict().items() if v is not None}
    if values.pop("do_sample", True) is False:
        values["temperature"] = 0.0  # transformers reads no temperature then
    ends = values.pop("eos_token_id", [])
    known = {token for name in pair.models for token in pair.stop_tokens_of(name)}
    if not {*([ends] if isinstance(ends, int) else ends)} <= known:
        raise ValueError(
            f"generation_config: eos_token_id={ends} holds more than the models' end of text: "
            "give stop= for other ends"
        )
    for name, value in values.items():
        is_off = value is False  # as where nothing is asked for
        if name not in NAMES_HERE and name not in WITHOUT_EFFECT and not is_off:
            raise ValueError(
                f"generation_config: {name}={value!r} is not supported, only "
                f"{', '.join(NAMES_HERE)} are"
            )
    return {NAMES_HERE[name]: value for name, value in values.items() if name in NAMES_HERE}


def beginnings(
    level: Level,
    prompts: Any = (),
    continue_from: Earlier | Sequence[Earlier] | None = None,
    messages: Conversation | Sequence[Conversation] | None = None,
) -> list[Beginning]:
    """Where each continuation begins.

    Raises ValueError unless either prompts, messages or ledgers are given, and for texts whose
    ratios the level does not know though it was given those of others.
    """
    listed = prompt_list("prompt", prompts)
    given = {"prompts": bool(listed), "messages": messages is not None}
    given["continue_from"] = continue_from is not None
    if sum(given.values()) > 1:
        raise ValueError(f"give {' or '.join(name for name in given if given[name])}, not both")
    if messages is not None:
        begun = [_begun(level, messages=chat) for chat in conversations(messages)]
    elif continue_from is None:
        begun = [_begun(level, prompt) for prompt in listed]
    else:
        is_list = isinstance(continue_from, list | tuple)
        earlier: list[Any] = list(cast(Any, continue_from)) if is_list else [continue_from]
        for item in earlier:
            if not isinstance(item, Generation | Ledger):
                raise ValueError(f"continue_from must be generations or ledgers, got {item!r}")
        ledgers = [item if isinstance(item, Ledger) else item.ledger for item in earlier]
        begun = [Beginning.of(level, ledger) for ledger in ledgers]
    if (ratios := level.prompt_ratios) is not None:
        ratios.check_prompts([own.token_ids for own in begun if not own.error])
    return begun


def _begun(
    level: Level, prompt: str | list[int] = "", messages: Conversation | None = None
) -> Beginning:
    """That of a prompt or a conversation, with an error where no tokenizer reads its text."""
    try:
        if messages is not None:
            token_ids, chat_prompts = chat_prompt(level, messages)
            return Beginning(token_ids, chat_prompts=chat_prompts)
        if isinstance(prompt, str):
            checked_text("the prompt", prompt)
        return Beginning(level.encode(prompt))
    except UnreadableText as error:
        return Beginning([], error=str(error))


def request_list(
    level: Level,
    rule: Rule,
    begun: Sequence[Beginning],
    horizon: int | Sequence[int],
    *,
    seed: int | Sequence[int] = 0,
    k: float | Sequence[float | None] | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
    passages: str | Sequence[str] | None = None,
    num_unread: int = 0,
    is_alone: bool = False,
    horizon_name: str = "max_new_tokens",
) -> list[Request]:
    """`num_return_sequences` requests for each beginning, in order, with its seed.

    Those with one prompt and one seed are counted 0, 1, ... and so have uniforms of their own.
    num_unread: symbols at the end of each that no model reads. horizon_name: of the argument that
    a caller gives it by. A request that cannot be decoded,
    as its text is too long for the pair or unreadable, has an `error`. Raises ValueError for values
    out of range, for budgets that the rule cannot have, and where `is_alone` for such an error.
    """
    num_samples = whole_number("num_return_sequences", num_return_sequences)
    if num_samples < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
    seeds = [whole_number("seed", value) for value in one_each("seed", seed, len(begun))]
    ks = [None if v is None else checked_nats("k", v) for v in one_each("k", k, len(begun))]
    passage_each, stops = one_each("passages", passages, len(begun)), stop_strings(stop)
    given_lengths = one_each(horizon_name, horizon, len(begun))
    lengths = [whole_number(horizon_name, length) for length in given_lengths]
    if min(lengths, default=1) < 1:
        raise ValueError(f"{horizon_name} must be >= 1, got {min(lengths)}")
    # What each may spend at most: ValueError for a k that the rule cannot have.
    totals = [
        rule.budget_for(horizon=n, k=value).total for n, value in zip(lengths, ks, strict=True)
    ]
    earlier: Counter[tuple[tuple[int, ...], int]] = Counter()
    requests: list[Request] = []
    for i, beginning in enumerate(begun):
        length = lengths[i]
        stream_prompts, error = _stream_prompts(level, rule, beginning, passage_each[i])
        longest = max([beginning.token_ids, *stream_prompts.values()], key=len)
        # A score may end behind the models' context, where its last symbol is not read.
        error = error or (
            level.too_long(longest, length - num_unread) and level.too_long(longest, length)
        )
        if is_alone and error:
            raise ValueError(error)
        # Samples of one earlier call that go on together: the prior bound of each holds for what
        # the others may spend now, all of their K, as their debts are not known yet.
        call, others = beginning.call, 0.0
        if call is not None:
            others = sum(totals[j] for j, own in enumerate(begun) if j != i and own.call == call)
        prior_bound = beginning.prior_bound + num_samples * others
        for _ in range(num_samples):
            prompt_and_seed = (tuple(beginning.token_ids), seeds[i])
            request = Request(
                prompt_token_ids=beginning.token_ids,
                max_new_tokens=length,
                seed=seeds[i],
                k=ks[i],
                stop=stops,
                index=len(requests),
                place=earlier[prompt_and_seed],
                num_return_sequences=num_samples,
                prior_bound=prior_bound,
                passage=passage_each[i],
                chat_prompts={
                    n: ids for n, ids in stream_prompts.items() if n in beginning.chat_prompts
                },
                stream_prompts=stream_prompts,
                error=error,
            )
            earlier[prompt_and_seed] += 1
            requests.append(request)
    return requests


def _stream_prompts(
    level: Level, rule: Rule, begun: Beginning, passage: str | None
) -> tuple[StreamPrompts, str]:
    """(what streams of the rule read in place of a prompt, why they cannot, "" if they can)."""
    try:
        if passage is not None:
            checked_text("the passage", passage)
        stream_prompts = prompts_by_stream(
            level, rule, begun.token_ids, passage, begun.chat_prompts
        )
    except UnreadableText as error:
        return {}, str(error)
    return stream_prompts, begun.error


def target_symbols(level: Level, given: Any) -> list[tuple[list[int], str]]:
    """(the symbols of a continuation, why there are none, "" if there are), one by one."""
    targets: list[tuple[list[int], str]] = []
    for text in prompt_list("continuation", given):
        try:
            if isinstance(text, str):
                checked_text("the continuation", text)
            targets.append((level.encode_continuation(text), ""))
        except UnreadableText as error:
            targets.append(([], str(error)))
    return targets


def check_parts(pair: Any, rule: Any, prompt_ratios: Any) -> None:
    """Raise ValueError, naming the right spelling, for what is no pair, no rule or no ratios."""
    if isinstance(rule, type):
        raise ValueError(f"rule is the class {rule.__name__}: give a rule, {rule.__name__}(...)")
    if not isinstance(pair, ModelPair):
        kind = type(pair).__name__
        raise ValueError(f"pair must be a ModelPair, got {kind}: write Decoder(pair, rule)")
    if not hasattr(rule, "next_token"):
        raise ValueError(f"rule must be a rule such as Anchored(k=1.5), got {rule!r}")
    if not isinstance(prompt_ratios, PromptRatios | None):
        kind = type(prompt_ratios).__name__
        raise ValueError(
            f"prompt_ratios must be PromptRatios, got {kind}: read a file by their load"
        )
