"""A request's body becomes what a pair decodes: prompts, budgets, warpers, ends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from ..decoder import Decoder
from ..engine.request import Request
from ..rules.anchored import Anchored, Budgeted, NoOpt, Pathwise
from ..rules.claims import opened
from ..rules.rule import OpenRule, Rule, takes_passage
from ..texts import prompt_requests, request_list, with_values
from ..tokenizer.text import special_names
from ..verify.rounding import least_temperature, temperature_error
from .anchored_options import AVAILABLE, Limits, seed_of_text
from .answers import Form
from .body import Body, parsed

DEFAULT_MAX_TOKENS: Final = 16
"""A completion's, as OpenAI and vLLM have it; a chat gets the rest of the context."""


class Reader:
    """Makes requests of bodies, for one pair and its limits."""

    def __init__(
        self,
        decoder: Decoder,
        limits: Limits,
        max_length: int,
        secret: bytes | None = None,
        *,
        exposes: bool = False,
        chat_length: int | None = None,
    ) -> None:
        """max_length: symbols of a prompt and its text. secret: goes into the seeds of texts that
        are charged to accounts, None where none are kept. exposes: log-probabilities are those of
        p*. chat_length: symbols of a chat that names no number, None for all there is room for."""
        self._secret, self._exposes, self._chat_length = secret, exposes, chat_length
        self._level, self._decoder, self.max_length = decoder.level, decoder, max_length
        pair, self.limits, names = decoder.pair, limits, {}
        if decoder.level.name == "token" and decoder.level.compares_models:
            names = special_names(pair.tokenizers.values(), pair.has_token)
        self._special = {token_id: name for name, token_id in names.items()}
        """Names of special tokens."""
        vocabularies = [tokenizer.get_vocab() for tokenizer in pair.tokenizers.values()]
        by_byte = decoder.level.name == "byte"
        self._longest = 1 if by_byte else max(len(token) for v in vocabularies for token in v)
        """Characters that one symbol of a prompt stands for at most."""
        # Clients know the error by these words.
        unit = f"{decoder.level.name}s"
        self._most = f"this model's maximum context length is {max_length} {unit}, prompt included"
        self._least = least_temperature(model.dtype for model in pair.models.values())
        self._opened = cache(partial(opened, level=self._level))

    def requests(
        self, body: Body, form: Form, answer_id: str, available: float = 0.0
    ) -> list[Request]:
        """One `Request` for each text that the body asks for.

        available: nats that are left in the accounts of its client. Raises ValueError, in one line,
        for what cannot be decoded, or not within the limits.
        """
        options, is_chat = body.anchored, form.is_chat
        seed, num_top = options.seed_of(body.seed), body.num_top(is_chat=is_chat)
        # 1. The rule, and what it cannot be asked for.
        if self._secret is None and (options.K == AVAILABLE or options.group is not None):
            raise ValueError(f"anchored: K={AVAILABLE!r} and group need a server with accounts")
        rule = self.limits.rule_of(options)
        open_rule = self._open(rule)
        self._check_values(body, open_rule, num_top, is_chat=is_chat)
        # 2. What the models read, how much may follow, and where it ends.
        texts = self._texts(body, open_rule, is_chat=is_chat)
        # 3. The budget: how many symbols share all that is left is known by now.
        if options.K == AVAILABLE:
            if len(texts) > 1:
                raise ValueError(f"anchored: K={AVAILABLE!r} is of one text, got {len(texts)}")
            rule = self.limits.rule_within(options, available, texts[0].max_new_tokens)
            open_rule = self._open(rule)
        for text in texts:
            self._check(text, rule)
        # 4. Each text with what all share, and a seed.
        return [
            replace(
                text,
                seed=seed_of_text(form.name(answer_id, place), seed, self._secret),
                place=options.sample + text.place,
                rule=open_rule,
                sampling=body.sampling,
                least_debt=options.debt,
                ignores_ends=body.ignore_eos,
                num_top=num_top,
                exposes=self._exposes,
                echoes=body.echo and num_top is not None,
            )
            for place, text in enumerate(texts)
        ]

    def _texts(self, body: Body, rule: OpenRule, *, is_chat: bool) -> list[Request]:
        """Requests of a rule with their prompts, lengths and ends."""
        most = DEFAULT_MAX_TOKENS if body.most_tokens is None and not is_chat else body.most_tokens
        if most is not None:
            self.limits.check_horizon(most)
        texts = prompt_requests(self._level, **self._prompts(body, is_chat=is_chat))
        texts = with_values(
            texts,
            1 if most is None else self._level.horizon(most, None),
            horizon_name="max_tokens",
            stop=self._stops(body),
            passages=body.anchored.passage,
            num_return_sequences=body.n,
        )
        texts = request_list(self._level, rule, texts, is_alone=True)
        if not texts:
            what = "conversation" if is_chat else "prompt"
            raise ValueError(f"the {what} is empty: give at least one text")
        if most is None:
            texts = [replace(text, max_new_tokens=self._rest(text)) for text in texts]
        return texts

    def symbols(self, content: bytes) -> dict[str, Any]:
        """The answer to a body that asks what its prompt, or its messages, are to the models."""
        body = Body.of(parsed(content))
        prompts = self._prompts(body, is_chat=body.messages is not None)
        requests = prompt_requests(self._level, **prompts)
        if len(requests) != 1 or requests[0].error:
            raise ValueError(requests[0].error if requests else "give one prompt")
        token_ids = requests[0].prompt_token_ids
        return {"count": len(token_ids), "max_model_len": self.max_length, "tokens": token_ids}

    def text(self, content: bytes) -> dict[str, Any]:
        """The answer to a body that asks for the text of tokens, or bytes."""
        token_ids = parsed(content).get("tokens")
        if not isinstance(token_ids, list):
            raise ValueError("tokens must be a list of token ids")
        self._check_unread(token_ids)
        stream = self._level.text_stream()
        pieces = [stream.push(token_id) for token_id in self._level.encode(token_ids)]
        return {"prompt": "".join(pieces) + stream.finish()}

    def _check_values(
        self, body: Body, rule: OpenRule, num_top: int | None, *, is_chat: bool
    ) -> None:
        """Raise ValueError for what this rule, or this server, cannot be asked for."""
        error = temperature_error(body.sampling.temperature, self._least)
        if error and rule.is_certified:
            raise ValueError(error)
        if self._secret is not None and body.sampling.is_greedy:
            raise ValueError("anchored: temperature 0 has no bound, so accounts need one > 0")
        if body.anchored.passage is not None and not takes_passage(rule):
            raise ValueError(f"anchored: the rule {rule.name} reads no passage")
        if body.ignore_eos and self._level.name == "byte":
            raise ValueError("ignore_eos is of tokens: nothing follows the end of a text of bytes")
        if body.echo and is_chat:
            raise ValueError("echo is of completions: a chat's prompt is its messages")
        if num_top is None:
            return
        if self._decoder.draft_length:
            raise ValueError("logprobs need a server without --speculate")
        if not self._exposes and "safe" not in rule.streams:
            raise ValueError(f"logprobs are those of p_s, which the rule {rule.name} does not read")
        if body.echo and takes_passage(rule):
            raise ValueError(f"echo with logprobs is of prompts alone, {rule.name} reads a passage")

    def _prompts(self, body: Body, *, is_chat: bool) -> dict[str, Any]:
        """The prompts or the conversation of a body, for its endpoint; ValueError for what is too
        long, whatever it becomes."""
        wanted, other = ("messages", "prompt") if is_chat else ("prompt", "messages")
        if getattr(body, other) is not None:
            raise ValueError(f"{other} belongs to the other endpoint")
        if (value := getattr(body, wanted)) is None:
            raise ValueError(f"{wanted} is missing")
        value = plain_messages(value) if is_chat else value
        for prompt in _lengthy(value):
            self._check_unread(prompt)
        return {"prompts": None, "messages": value} if is_chat else {"prompts": value}

    def _check_unread(self, prompt: str | list[Any]) -> None:
        """Raise ValueError for a text or token ids that are too long, whatever they become: a text
        of megabytes takes seconds to become tokens, for which others would wait."""
        is_text = isinstance(prompt, str)
        if len(prompt) > self.max_length * (self._longest if is_text else 1):
            raise ValueError(
                f"{self._most}, got a prompt of {len(prompt)} "
                f"{'characters' if is_text else 'token ids'}"
            )

    def _check(self, text: Request, rule: Rule) -> None:
        """Raise ValueError for a text that is too long, or may cost too much."""
        if text.max_length > self.max_length:
            raise ValueError(
                f"{self._most}, got a prompt of {len(text.longest_prompt)} and "
                f"max_tokens {text.max_new_tokens}"
            )
        self.limits.check(rule.budget_for(horizon=text.max_new_tokens, k=None))

    def _rest(self, text: Request) -> int:
        """Symbols that a chat without a length may have."""
        rest = self.max_length - len(text.longest_prompt)
        most = [each for each in (self.limits.max_horizon, self._chat_length) if each is not None]
        return max(min(rest, *most) if most else rest, 1)

    def _open(self, rule: Rule) -> OpenRule:
        """The rule at the pair's level. Rows whose rules differ only in k, K or bank share one
        call: the rule sees nats of a step."""
        if isinstance(rule, Budgeted | Pathwise) and type(rule) in (Anchored, NoOpt, Pathwise):
            return replace(self._opened(rule.without_nats), rule=rule)
        return self._decoder.open_rule if rule == self._decoder.rule else opened(rule, self._level)

    def _stops(self, body: Body) -> list[str]:
        """The texts that end a text, with the names of special tokens that do."""
        stop = [body.stop] if isinstance(body.stop, str) else list(body.stop)
        for token_id in body.stop_token_ids:
            if token_id in self._level.stop_token_ids and self._level.name == "token":
                continue  # ends every text
            if token_id not in self._special:
                raise ValueError(
                    f"stop_token_ids: {token_id} is no special token of this pair: give its text "
                    "as stop"
                )
            stop.append(self._special[token_id])
        return stop


def _lengthy(value: Any) -> list[str | list[Any]]:
    """The texts and token ids of a body's prompts or messages, those that are some."""
    are_many = isinstance(value, list) and not all(type(part) is int for part in value)
    parts = value if are_many else [value]
    parts = [part.get("content") if isinstance(part, Mapping) else part for part in parts]
    return [part for part in parts if isinstance(part, str | list)]


def plain_messages(messages: Any) -> Any:
    """Messages whose contents are texts: parts of the type "text" are joined.

    Others are left as they are, to be refused where templates are filled.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages
    return [_plain_message(message) for message in messages]


def _plain_message(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    # Clients append what they were answered, with keys that say nothing.
    needed = ("role", "content")
    message = {k: v for k, v in message.items() if k in needed or v not in (None, "", [], {})}
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    texts = []
    for part in parts:
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise ValueError("a message's content must be text, or parts of the type text")
        texts.append(part["text"])
    return {**message, "content": "".join(texts)}
