"""Conversations as prompts: by the chat template of each model, or plain text without one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from transformers import PreTrainedTokenizerFast

from ..rules.rule import StreamName
from ..settings import RequestError, checked_text
from .level import Level

Message = Mapping[str, str]
Conversation = Sequence[Message]
"""[{"role": "user", "content": ...}, ...]; where the last role is assistant, its text goes on."""


def chat_prompt(
    level: Level, messages: Conversation
) -> tuple[list[int], dict[StreamName, list[int]]]:
    """The prompts of a conversation: token ids of the safe model, and of the risky one by the name
    of its stream where it reads something else.

    The bound is against the safe model's, and the prefix debt is counted over them. Each model
    reads a conversation by its own chat template; a safe one without one, a base model, as plain
    text, a risky one without one as the safe model does. Raises RequestError for messages that are
    no conversation, or of which a template makes no prompt, ValueError at byte level and where no
    model that could has a template.
    """
    if level.name != "token":
        raise ValueError("messages need the token level: templates hold tokens that are no text")
    tokenizers = level.pair.chat_tokenizers
    # A safe model with other tokens reads text, whatever its template is.
    names = ("safe", "risky") if level.compares_models else ("risky",)
    with_template = [name for name in names if tokenizers[name].chat_template]
    if not with_template:
        raise ValueError(
            "messages need a chat template: "
            f"the tokenizer of the {' and of the '.join(names)} model has none"
        )
    _check(messages)
    prompts = {name: _templated(name, tokenizers[name], messages) for name in with_template}
    prompt = level.encode(prompts["safe"] if "safe" in prompts else plain_text(messages))
    risky = prompts.get("risky", prompt)
    # The risky model may read tokens that the pair does not share, but none that it lacks.
    num_rows = level.pair.risky.config.get_text_config().vocab_size
    if wrong := [token_id for token_id in risky if not 0 <= token_id < num_rows]:
        raise RequestError(f"the chat template holds token {wrong[0]}, the model has {num_rows}")
    return prompt, {} if risky == prompt else {"risky": risky}


def plain_text(messages: Conversation) -> str:
    """The messages without their roles, each followed by an empty line, but for an answer that has
    been begun."""
    text = "".join(message["content"] + "\n\n" for message in messages)
    return text.removesuffix("\n\n") if _is_begun(messages) else text


def is_conversation(prompt: object) -> bool:
    """Whether it is one conversation, by its first message; not several, and no text."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _templated(name: str, tokenizer: PreTrainedTokenizerFast, messages: Conversation) -> list[int]:
    is_begun = _is_begun(messages)
    with template_errors():
        token_ids = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
            return_dict=False,
        )
    if not token_ids:
        raise RequestError(f"the chat template of the {name} model makes no token of the messages")
    return list(token_ids)


@contextmanager
def template_errors() -> Iterator[None]:
    """Turns what a chat template raises into a RequestError of one line.

    A template is a program of the tokenizer's author, which may raise anything.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"the chat template refuses the messages: {reason}") from error


def _is_begun(messages: Conversation) -> bool:
    return messages[-1]["role"] == "assistant"


def _check(messages: Conversation) -> None:
    if not is_conversation(messages):
        raise RequestError(f"messages must be a list of roles and contents, got {messages!r}")
    for message in messages:
        names = message.keys() if isinstance(message, Mapping) else set[str]()
        if more := names - {"role", "content"}:
            raise RequestError(
                f"a message's {min(map(str, more))!r} is not known here: leave it out"
            )
        if len(names) < 2 or not all(isinstance(text, str) for text in message.values()):
            raise RequestError(
                f'a message must have a "role" and a "content", texts, got {message}'
            )
        for name, text in message.items():
            checked_text(f"a message's {name}", text)
