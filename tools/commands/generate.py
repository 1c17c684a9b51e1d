"""The command that continues prompts, its options and what it prints."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tyro.conf import OmitArgPrefixes, UseAppendAction

import anchored
from anchored import AnchoredError
from anchored.decode.settings import SamplingConfig

from .files import PromptLine, check_outputs, json_nats, numbered, read_prompts
from .options import PairOptions, is_first_process

MAX_TEXTS = 1_000_000
"""Of one call, which plans all of them before the first: about a GB of requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(PairOptions):
    """Continue prompts: anchored generate --safe A --risky B --prompt "Once" --k 1.5

    Texts go to stdout as they end, a single one piece by piece on a terminal; what each spent is
    a line on stderr. With --prompt-file, every result is one line of JSON on stdout:
    anchored generate --safe A --risky B --prompt-file prompts.jsonl > results.jsonl
    Of an instruct model, --chat or --messages: the safe model may be a base model.
    """

    prompt: UseAppendAction[tuple[str, ...]] = ()
    """Text to continue; give it again for more."""
    prompt_file: Path | None = None
    """JSON lines, {"prompt": ..., optional "id", "seed", "k", "passage"}, or - for stdin; implies
    --json."""
    messages: Path | None = None
    """JSON lines of conversations, {"messages": [{"role": ..., "content": ...}, ...], ...} as
    --prompt-file, or - for stdin; implies --json."""
    continue_from: Path | None = None
    """Ledger of a generation that reached its length, to go on from in place of a prompt."""
    chat: bool = False
    """Each prompt is a user's turn. Each model reads it by its tokenizer's chat template; a safe
    model without one reads the text, a risky one without one what the safe model reads."""
    num_return_sequences: int = 1
    """Samples of each prompt, drawn independently; their bounds add up."""
    max_new_tokens: int = 200
    """Horizon of the budget: K = k * max_new_tokens."""
    max_new_bytes: int | None = None
    """Horizon at byte level; 4 * max_new_tokens unless given."""
    seed: int = 0
    """The same seed gives the same text."""
    stop: tuple[str, ...] = ()
    """Texts at which to cut."""
    sampling: OmitArgPrefixes[SamplingConfig] = field(default_factory=SamplingConfig)
    """Warpers of both models."""
    json: bool = False
    """One line of JSON a result, in place of text."""
    ledger: Path | None = None
    """File for the ledger (JSON lines), to be checked by anchored verify; of several texts,
    NAME-0.jsonl and so on."""
    overwrite: bool = False
    """Replace ledgers that exist."""

    def __post_init__(self) -> None:
        PairOptions.__post_init__(self)
        files = (self.prompt_file, self.messages, self.continue_from)
        if bool(self.prompt) + sum(file is not None for file in files) != 1:
            raise ValueError("give either --prompt, --prompt-file, --messages or --continue-from")
        if self.chat and self.continue_from is not None:
            raise ValueError("--chat begins a text: it cannot go with --continue-from")
        if self.num_return_sequences < 1:
            raise ValueError(f"num_return_sequences must be >= 1, got {self.num_return_sequences}")

    @property
    def writes_json(self) -> bool:
        return self.json or self.prompt_file is not None or self.messages is not None

    @property
    def is_streamed(self) -> bool:
        """One text for a reader, who sees it grow."""
        is_one_text = len(self.prompt) == 1 and self.num_return_sequences == 1 and self.tp_size == 1
        return is_one_text and not self.writes_json and sys.stdout.isatty()


def run(config: GenerateConfig) -> int:
    """Generate, save and print each text as it ends; returns the exit status."""
    lines = [PromptLine(prompt=prompt) for prompt in config.prompt]
    if config.prompt_file is not None:
        lines = read_prompts(config.prompt_file)
    if config.messages is not None:
        lines = read_prompts(config.messages, holds="messages")
    num_texts = max(len(lines), 1) * config.num_return_sequences
    if num_texts > MAX_TEXTS:
        raise ValueError(f"at most {MAX_TEXTS:,} texts are generated in one call, got {num_texts}")
    earlier = anchored.Ledger.load(config.continue_from) if config.continue_from else None
    ledgers = numbered(config.ledger, num_texts)
    check_outputs(*ledgers, overwrite=config.overwrite)
    errors = []
    for index, result in _results(config, lines, earlier, num_texts):
        if result.error:
            errors.append(result.error)
        if is_first_process():
            line = lines[index // config.num_return_sequences] if lines else None
            _report(config, line, index, result, ledgers)
    if errors:
        count = f"{len(errors)} of {num_texts} texts failed: " if num_texts > 1 else ""
        raise AnchoredError(count + errors[0])
    return 0


def _results(
    config: GenerateConfig,
    lines: list[PromptLine],
    earlier: "anchored.Ledger | None",
    num_texts: int,
) -> Iterable[tuple[int, "anchored.Generation"]]:
    """Each generation with its index, as it ends."""
    from anchored.decode.rules.rule import takes_passage

    decoder = config.decoder()
    asked: dict[str, Any] = {
        "max_new_tokens": config.max_new_tokens,
        "max_new_bytes": config.max_new_bytes,
        "stop": config.stop,
        **config.sampling.as_dict(),
    }
    if earlier is not None:
        asked |= {"continue_from": earlier, "seed": config.seed}
        prompts: Any = ()
    else:
        prompts = [line.prompt for line in lines]
        if config.chat or config.messages is not None:
            chats = [line.messages or _user_turn(line.prompt) for line in lines]
            asked["messages"], prompts = chats[0] if len(chats) == 1 else chats, []
        asked["seed"] = [config.seed if line.seed is None else line.seed for line in lines]
        asked["k"] = [line.k for line in lines]
        if takes_passage(decoder.rule):
            asked["passages"] = [line.passage for line in lines]
    if config.is_streamed:
        asked |= {name: asked[name][0] for name in ("seed", "k")}
        asked["passage"] = asked.pop("passages", [None])[0]
        pieces = decoder.stream(*prompts, **asked)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        return [(0, pieces.generation)]
    return decoder.generate_each(
        prompts[0] if len(prompts) == 1 else prompts,
        num_return_sequences=config.num_return_sequences,
        progress=num_texts > 1 and sys.stderr.isatty(),
        **asked,
    )


def _user_turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _report(
    config: GenerateConfig,
    line: PromptLine | None,
    index: int,
    result: "anchored.Generation",
    ledgers: list[Path | None],
) -> None:
    ledger, saved = ledgers[index], None
    try:
        if ledger is not None and not result.error:
            ledger.parent.mkdir(parents=True, exist_ok=True)
            result.ledger.save(ledger)
            saved = ledger
    finally:  # a disk that is full must not take the text too
        if config.writes_json:
            _print(json.dumps(_record(line, index, result, saved)))
        elif not result.error:
            if len(ledgers) > 1:
                _print(f"==> {index + 1} of {len(ledgers)} <==")
            _print("" if config.is_streamed else result.text)
            tqdm.write(str(result), file=sys.stderr)


def _record(
    line: PromptLine | None, index: int, result: "anchored.Generation", ledger: Path | None
) -> dict[str, Any]:
    """A result as JSON values; infinite nats are strings, as in ledgers."""
    header = result.ledger.header
    nats = {"k": header.k, "K": header.K, "bound": header.bound}
    nats |= {"spent": result.ledger.spent, "debt": header.debt}
    return {
        "id": line.id if line else None,
        "index": index,
        "prompt": line.prompt or None if line else None,
        **({"messages": line.messages} if line and line.messages else {}),
        "text": result.text,
        "finish_reason": result.finish_reason,
        "error": result.error,
        "seed": header.seed,
        **{name: json_nats(value) for name, value in nats.items()},
        "certified": result.ledger.certified,
        "ledger": str(ledger) if ledger else None,
    }


def _print(text: str) -> None:
    """To stdout and at once, above a progress bar where there is one."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()
