"""The command line: anchored COMMAND --help"""

from anchored.tools import interrupts  # noqa: F401  # first: it handles Ctrl-C in what follows

# isort: split
import codecs
import importlib
import inspect
import io
import json
import logging
import os
import re
import select
import sys
import textwrap
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from traceback import clear_frames
from typing import Any, NamedTuple, TextIO, cast

import anchored
from anchored import AnchoredError
from anchored.durable_files import named_errors
from anchored.tools.commands.words import parse
from anchored.wrong_words import Refused


class Command(NamedTuple):
    """A program: a function of its options that returns an exit status.

    The options are the dataclass that its `config` is; without one it gets the words as they are.
    """

    function: str
    """MODULE.FUNCTION in `tools`."""
    summary: str


GROUPS = {
    "start here": {
        "look": Command("quickstart.program.look", "a story by both models and by a pair"),
        "quickstart": Command("quickstart.program.run", "a real pair: decode, measure, see"),
        "demo": Command("demo.run", "a page where one sees a pair decode"),
    },
    "decode": {
        "generate": Command("commands.generate.run", "continue prompts with a pair"),
        "score": Command("commands.decoding.score", "log p* of a given text"),
        "verify": Command("commands.decoding.verify", "replay a ledger against its models"),
        "retrieve": Command("commands.decoding.retrieve", "find a passage for each prompt"),
    },
    "serve": {
        "serve": Command("commands.serving.serve", "an OpenAI server, by the decoder or vLLM"),
        "ledgers": Command("commands.serving.ledgers", "make ledgers of a server's journal"),
        "accounts": Command("commands.accounts.accounts", "show what clients have left of nats"),
        "accounts apply": Command("commands.accounts.apply", "have the accounts of a file"),
        "accounts settle": Command("commands.accounts.settle", "charge what a lost server left"),
    },
    "train": {
        "decontaminate": Command(
            "commands.training.decontaminate.run", "search training text for works"
        ),
        "tokenize": Command("commands.training.tokenize.run", "write text as token shards"),
        "plan": Command("commands.training.plan.run", "show epochs, steps and documents"),
        "pretrain": Command("commands.training.pretrain.run", "train, or estimate memory and time"),
        "export": Command("commands.training.pretrain.export", "write a Hugging Face folder"),
    },
    "evaluate": {
        "prompts": Command("commands.evaluation.prompts.run", "put texts into the paper's prompts"),
        "sweep": Command("commands.evaluation.sweep.sweep", "run every method on one pair"),
        "compare": Command("commands.evaluation.compare.run", "run benchmarks on several models"),
        "evaluate": Command("commands.evaluation.evaluate.run", "measure and judge texts"),
        "paper": Command("commands.evaluation.sweep.paper", "hold a rerun against the paper"),
        "calibrate": Command("commands.evaluation.calibrate.calibrate", "find k by what is copied"),
        "certify": Command("commands.evaluation.calibrate.certify", "find k by what is proved"),
        "lm-eval": Command("commands.evaluation.sweep.lm_eval", "lm-eval with a pair as its model"),
    },
    "benchmark": {
        "bench kernel": Command("bench.kernel.run", "time the projection on this CPU"),
        "bench decode": Command("bench.decode.run", "time methods next to transformers"),
        "bench pretrain": Command("bench.pretrain.run", "time training and its levers"),
    },
}
OPTIONS = {
    "look": "quickstart.options.LookConfig",
    "quickstart": "quickstart.options.QuickstartConfig",
    "demo": "commands.serving.DemoConfig",
    "bench kernel": "bench.options.BenchKernelConfig",
    "bench decode": "bench.options.BenchDecodeConfig",
    "bench pretrain": "bench.options.BenchPretrainConfig",
}
"""Options of functions whose modules import torch, which --help and a mistyped flag do not wait
for."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
DEBUG_FLAG = "--debug"
FAILED_STATUS = 1
"""Work that failed: a file, a model, a machine, data."""
USAGE_STATUS = 2
"""Wrong words: options, and values that are wrong whatever is on the disk."""
INTERRUPTED_STATUS = 130
"""128 + SIGINT, as shells have it."""
UNREAD_STATUS = 141
"""128 + SIGPIPE, that of cat where the next command of a pipe reads no more."""
_LONGEST_MESSAGE = 400
"""Characters: five lines of a terminal."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: with 2 and one line on stderr for wrong words, 1 and one line for
    work that failed.

    With --debug among the words, the line of failed work is a traceback.
    """
    if sys.stdout is None:  # closed by the caller: whoever prints need not care
        sys.stdout = io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error(_escaped.__name__, _escaped)
        sys.stdout.reconfigure(errors=_escaped.__name__)
    words = sys.argv[1:] if arguments is None else arguments
    plain = [word for word in words if word != DEBUG_FLAG]
    command = next((name for n in (2, 1) if (name := " ".join(plain[:n])) in COMMANDS), "")
    name = f"anchored {command}".strip()
    try:
        status = _status(name, partial(_run, command, plain), has_traceback=DEBUG_FLAG in words)
    except KeyboardInterrupt as error:
        clear_frames(error.__traceback__)
        print(f"{name}: interrupted", file=sys.stderr)
        status = INTERRUPTED_STATUS
    sys.exit(status)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Escape, as JSON does, the characters that an encoding lacks, so that no text is lost."""
    assert isinstance(error, UnicodeEncodeError), "stdout is written"
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _status(name: str, work: Callable[[], int], *, has_traceback: bool) -> int:
    try:
        try:
            status = work()
        except SystemExit as end:  # of a command that has printed its help
            if isinstance(end.code, str):
                raise
            status = end.code or 0
        with named_errors(Path("stdout")):  # a full disk or a closed pipe
            sys.stdout.flush()  # while it can be reported
        return status
    except Refused as error:
        print(f"{name}: {error}", file=sys.stderr)
        return USAGE_STATUS
    except (AnchoredError, ValueError, OSError, ImportError) as error:
        # ImportError: what was asked for needs a library that is not installed.
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            _drop_output()
            return UNREAD_STATUS
        if has_traceback:
            raise
        clear_frames(error.__traceback__)  # progress bars in them end before the line, not after it
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        _drop_output()
        return FAILED_STATUS


def _run(command: str, words: list[str]) -> int:
    """Do what the words ask for, which begin with the name of the command; the exit status."""
    if not command:
        return _without_command(words)
    # Threads that spin long while they wait halve the speed where another process runs; threads
    # that sleep at once lose a third on an idle machine. 2,000 turns are a few microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"  # without a line of source
    kind, arguments = options_class(command), words[len(command.split()) :]
    options: Any = parse(kind, command, arguments) if kind else arguments
    return int(_named(COMMANDS[command].function)(options))


def _without_command(words: list[str]) -> int:
    """Print help or the version; Refused for a word that is no command."""
    if words and words[0] not in ("-h", "--help", "--version"):
        if longer := [name for name in COMMANDS if name.split()[0] == words[0]]:
            names = ", ".join(longer)
            raise Refused(f"{words[0]!r} is the first word of {names}: give the whole name")
        raise Refused(f"unknown command {words[0]!r}; anchored --help lists all")
    print(anchored.__version__ if words[:1] == ["--version"] else _overview())
    return 0


def options_class(name: str) -> type | None:
    """The class of a command's options; None if it takes words, a list[str]."""
    if name in OPTIONS:
        return cast(type, _named(OPTIONS[name]))
    (config,) = inspect.signature(_named(COMMANDS[name].function)).parameters.values()
    return config.annotation if isinstance(config.annotation, type) else None


def _named(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"anchored.tools.{module}"), function)


def _one_line(error: Exception) -> str:
    """The message; of one with several lines as much as a screen's few lines hold, because the
    reason is often after a first line that only says what failed. The system's errors name the
    file first and have no number."""
    text = str(error).strip() or type(error).__name__
    if (extra := _missing_extra(error)) and "pip install" not in text:
        text += f": pip install 'anchored[{extra}]'"
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return textwrap.shorten(text, _LONGEST_MESSAGE) if "\n" in text else text


def _missing_extra(error: Exception) -> str | None:
    """The extra of this package that brings what could not be imported, if one does."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0].replace("_", "-")
    brings = re.compile(rf"{re.escape(package)}\b(?!-).*; extra == ['\"](\w+)")
    matches = map(brings.match, metadata.requires("anchored") or ())
    return next((match[1] for match in matches if match), None)


def _is_unread(file: TextIO) -> bool:
    """Whether it is a pipe that nobody reads any more, as after `| head`."""
    poll = select.poll()
    poll.register(file, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _drop_output() -> None:
    """Forget what a broken stdout still holds, or Python would try, and complain, at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = ["Anchored Decoding: anchored COMMAND --help"]
    for title, group in GROUPS.items():
        lines += ["", title]
        lines += [f"  {name:<{width}}  {command.summary}" for name, command in group.items()]
    lines += ["", f"{DEBUG_FLAG}, anywhere: the traceback of failed work instead of its one line"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
