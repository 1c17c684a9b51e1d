"""The command that continues prompts, its options and what it prints."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tqdm import tqdm

import anchored
from anchored import AnchoredError
from anchored.decode.pair_options import PairOptions
from anchored.decode.settings import FLAT, REPEATED, SamplingConfig
from anchored.durable_files import appended, json_value, named_errors
from anchored.fields import check_least, checked_seed
from anchored.inputs import PromptLine, read_prompts, text_of, unescaped
from anchored.wrong_words import Refused

from .files import check_outputs, numbered
from .option_types import OutputFile

if TYPE_CHECKING:
    from anchored.decode.generation import PieceStream
    from anchored.decode.rules.rule import Rule

MAX_TEXTS = 1_000_000
"""Most texts of a call, which plans all of them before the first: about a GB of requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(PairOptions):
    """Continue prompts: anchored generate --safe A --risky B --prompt "The keeper" --rule pathwise

    Texts go to stdout as they end, a single one piece by piece on a terminal; a line on stderr says
    what each text spent. With --prompt-file, every result is one line of JSON on stdout.

    anchored generate --safe A --risky B --prompt-file prompts.jsonl --output results.jsonl

    An instruct model takes --chat or --messages, with which the safe model may be a base model.
    """

    prompt: Annotated[tuple[str, ...], REPEATED] = ()
    """Text to continue, or - for stdin, or @FILE for a file's text, each without its last line
    break (@@ begins a text with @); give it again for more."""
    prompt_file: Path | None = None
    """File of prompts, or - for stdin: JSON lines {"prompt": ..., optional "id", "seed", "k",
    "passage"}, as anchored prompts and retrieve write them. Their other keys, "reference", "title",
    "domain" and so on, travel along into the results; implies --json."""
    messages: Path | None = None
    """File of conversations, JSON lines {"messages": [{"role": ..., "content": ...}, ...]} with the
    same other keys as in --prompt-file, or - for stdin; implies --json."""
    continue_from: Path | None = None
    """Ledger of a generation that reached its length, which goes on in place of a prompt."""
    chat: bool = False
    """Take each prompt as a user's turn. Each model reads it by its tokenizer's chat template; a
    safe model without one reads the text, a risky one without one what the safe model reads."""
    num_return_sequences: int = 1
    """Samples of each prompt, drawn independently; their bounds add up."""
    max_new_tokens: int = 200
    """Most tokens of a text, and the horizon of its budget: K = k * max_new_tokens."""
    max_new_bytes: int | None = None
    """Most bytes of a text at byte level, and the horizon there; 4 * max_new_tokens unless
    given."""
    seed: int = 0
    """Seed of the draws: the same one gives the same text."""
    stop: tuple[str, ...] = ()
    """Texts at which a generation ends, without them; \\n, \\t, \\r and \\\\ stand for a line
    break, a tab, a carriage return and a backslash."""
    sampling: Annotated[SamplingConfig, FLAT] = field(default_factory=SamplingConfig)
    """Warpers, which act on both models alike."""
    json: bool = False
    """Print one line of JSON for every result, in place of its text."""
    output: OutputFile | None = None
    """File for what would be printed to stdout, written as texts end."""
    ledger: OutputFile | None = None
    """File for the ledger (JSON lines), which anchored verify checks; those of several texts are
    NAME-0.jsonl, NAME-1.jsonl and so on."""
    overwrite: bool = False
    """Replace files that exist."""

    def __post_init__(self) -> None:
        files = (self.prompt_file, self.messages, self.continue_from)
        if bool(self.prompt) + sum(file is not None for file in files) != 1:
            raise ValueError("give either --prompt, --prompt-file, --messages or --continue-from")
        if self.chat and self.continue_from is not None:
            raise ValueError("--chat begins a text: it cannot go with --continue-from")
        for option in ("prompt", "stop"):
            if "" in getattr(self, option):
                raise ValueError(f"--{option} must not be empty")
        object.__setattr__(self, "stop", tuple(map(unescaped, self.stop)))
        check_least(self, 1, "num_return_sequences", "max_new_tokens", "max_new_bytes")
        checked_seed(self.seed)
        if self.max_new_bytes is not None and self.level == "token":
            raise ValueError("--max-new-bytes is for --level byte, got --level token")
        PairOptions.__post_init__(self)

    @property
    def writes_json(self) -> bool:
        return self.json or self.prompt_file is not None or self.messages is not None

    @property
    def is_chat(self) -> bool:
        return self.chat or self.messages is not None

    @property
    def is_streamed(self) -> bool:
        """One text for a reader, who sees it grow."""
        is_one_text = len(self.prompt) == 1 and self.num_return_sequences == 1
        is_read = not self.writes_json and self.output is None and sys.stdout.isatty()
        return is_one_text and is_read


def run(config: GenerateConfig) -> int:
    """Generate, save and print each text as it ends; returns the exit status."""
    lines = _lines(config)
    num_texts = max(len(lines), 1) * config.num_return_sequences
    if num_texts > MAX_TEXTS:
        raise Refused(f"at most {MAX_TEXTS:,} texts are generated in one call, got {num_texts}")
    earlier = anchored.Ledger.load(config.continue_from) if config.continue_from else None
    ledgers = numbered(config.ledger, num_texts)
    check_outputs(config, config.output, *ledgers)
    rule = config.rule.make()
    check_passages(rule, lines)
    results, errors = _results(config, rule, lines, earlier, num_texts), []
    if config.output is not None:  # FileExistsError where one has appeared meanwhile
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.open("w" if config.overwrite else "x").close()
    for index, result in results:
        line = lines[index // config.num_return_sequences] if lines else PromptLine()
        error = result.error or _save(result, ledgers[index], overwrite=config.overwrite)
        if config.writes_json:
            saved = None if error else ledgers[index]
            _print(config, json.dumps(_record(line, index, result, saved)))
        elif not result.error:
            title = f"==> {index + 1} of {num_texts} <==\n" if num_texts > 1 else ""
            _print(config, title + ("" if config.is_streamed else result.text))
            tqdm.write(str(result), file=sys.stderr)
        if error:
            errors.append(error if line.id is None else f"{line.id}: {error}")
    raise_first(errors, num_texts)
    return 0


def _lines(config: GenerateConfig) -> list[PromptLine]:
    """The prompts or conversations of the options; none of a text that goes on."""
    if config.prompt_file is not None:
        return read_prompts(config.prompt_file)
    if config.messages is not None:
        return read_prompts(config.messages, holds="messages")
    return [PromptLine(prompt=text_of(prompt)) for prompt in config.prompt]


def raise_first(errors: list[str], num_texts: int) -> None:
    """Raise AnchoredError, with the first error of texts that failed, where there is one."""
    if errors:
        count = f"{len(errors)} of {num_texts} texts failed: " if num_texts > 1 else ""
        raise AnchoredError(count + errors[0])


def check_passages(rule: "Rule", lines: list[PromptLine]) -> None:
    """Raise ValueError for a prompt without the passage that the rule reads."""
    from anchored.decode.rules.rule import takes_passage

    if not takes_passage(rule):
        return
    for number, line in enumerate(lines, 1):
        if not line.passage:
            named = f"prompt {number}" if line.id is None else f"prompt {number}, {line.id!r},"
            raise ValueError(
                f'{named} has no "passage", which the rule {rule.name} reads: take the output of '
                "anchored retrieve as --prompt-file"
            )


def _results(
    config: GenerateConfig,
    rule: "Rule",
    lines: list[PromptLine],
    earlier: "anchored.Ledger | None",
    num_texts: int,
) -> Iterable[tuple[int, "anchored.Generation"]]:
    """Each generation with its index, as it ends."""
    from anchored.decode.rules.rule import takes_passage

    decoder = config.decoder(rule)
    settings: dict[str, Any] = {
        "max_new_tokens": config.max_new_tokens,
        "max_new_bytes": config.max_new_bytes,
        "stop": config.stop,
        **config.sampling.as_dict(),
    }
    prompts: Any = [] if config.is_chat else [line.prompt for line in lines]
    if earlier is not None:
        settings |= {"continue_from": earlier, "seed": config.seed}
    else:
        settings["seed"] = [config.seed if line.seed is None else line.seed for line in lines]
        settings["k"] = [line.k for line in lines]
        if takes_passage(decoder.rule):
            settings["passages"] = [line.passage for line in lines]
    if config.is_chat:
        chats = [line.messages or [{"role": "user", "content": line.prompt}] for line in lines]
        settings["messages"] = chats[0] if len(chats) == 1 else chats
    if config.is_streamed:
        settings |= {name: settings[name][0] for name in ("seed", "k")}
        settings["passage"] = settings.pop("passages", [None])[0]
        pieces = decoder.stream(*prompts, **settings)
        try:
            for piece in pieces:
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:  # what was read has been spent
            if error := _save_broken_off(config, pieces):
                print(error, file=sys.stderr)
            raise
        return [(0, pieces.generation)]
    return decoder.generate_each(
        prompts[0] if len(prompts) == 1 else prompts,
        num_return_sequences=config.num_return_sequences,
        progress=num_texts > 1 and sys.stderr.isatty(),
        **settings,
    )


def _save_broken_off(config: GenerateConfig, pieces: "PieceStream") -> str:
    """Save the ledger of a text that a reader has seen the beginning of; as `_save`."""
    try:
        result = pieces.generation
    except AnchoredError:
        return ""  # nothing was drawn
    return _save(result, config.ledger, overwrite=config.overwrite)


def _save(result: "anchored.Generation", ledger: Path | None, *, overwrite: bool) -> str:
    """Save the ledger; why it could not be saved, or "". The texts of a call are printed even so:
    a full disk, or another command that wrote a file of that name meanwhile, must not take them.
    """
    if ledger is None:
        return ""
    try:
        result.ledger.save(ledger, overwrite=overwrite)
    except OSError as error:
        return f"the ledger was not saved: {error}"
    return ""


def _record(
    line: PromptLine, index: int, result: "anchored.Generation", ledger: Path | None
) -> dict[str, Any]:
    """A result as JSON values; infinite nats are strings, as in ledgers."""
    header, written = result.ledger.header, result.ledger
    nats = {name: getattr(header, name) for name in ("k", "K", "bound")}
    nats |= {"total_bound": written.total_bound, "spent": written.spent, "debt": header.debt}
    return {
        **{"id": None, "index": index, "prompt": None},
        **line.record(),
        **{"text": result.text, "finish_reason": result.finish_reason, "error": result.error},
        "seed": header.seed,
        **json_value(nats),
        "certified": written.certified,
        "ledger": str(ledger) if ledger else None,
    }


def _print(config: GenerateConfig, text: str) -> None:
    """Print at once, to --output, or to stdout above a progress bar where there is one."""
    if config.output is None:
        with named_errors(Path("stdout")):
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()
        return
    with appended(config.output) as file:
        file.write(f"{text}\n".encode())
