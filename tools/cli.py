"""The command line: anchored COMMAND --help"""

import importlib
import io
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anchored
from anchored import AnchoredError


@dataclass(frozen=True, slots=True)
class Command:
    """A program: options, and a module with run(options) -> exit status.

    The options are MODULE.CLASS; that module imports neither torch nor transformers, so that --help
    and a mistyped flag cost nothing. Without a class, `run` gets the words as they are.
    """

    module: str
    options: str
    summary: str


TRAINING, BENCH = "commands.training_options", "bench.options"
GROUPS = {
    "start here": {
        "quickstart": Command(
            "quickstart.program",
            f"{TRAINING}.QuickstartConfig",
            "train a pair, decode, measure: all in one go",
        ),
    },
    "decode": {
        "generate": Command(
            "commands.generate", "commands.generate.GenerateConfig", "continue prompts with a pair"
        ),
        "score": Command(
            "commands.score", "commands.score.ScoreConfig", "log p* of a given continuation"
        ),
        "ratios": Command(
            "commands.ratios",
            "commands.ratios.RatiosConfig",
            "what prompts owe, kept in a file for generate",
        ),
        "retrieve": Command(
            "commands.retrieve",
            "commands.retrieve.RetrieveConfig",
            "a passage for each prompt, by BM25",
        ),
        "verify": Command(
            "commands.verify", "commands.verify.VerifyConfig", "replay a ledger against its models"
        ),
        "divergences": Command(
            "commands.divergences",
            "commands.divergences.DivergencesConfig",
            "how far apart the models were along a ledger",
        ),
    },
    "train": {
        "tokenize": Command(
            "commands.tokenize", f"{TRAINING}.TokenizeConfig", "text to token shards, resumable"
        ),
        "plan": Command(
            "commands.plan",
            f"{TRAINING}.PlanConfig",
            "what training reads: epochs, days, documents of a step",
        ),
        "dry-run": Command(
            "commands.dry_run",
            f"{TRAINING}.DryRunConfig",
            "a training run's model, memory and time",
        ),
        "export": Command(
            "commands.export",
            f"{TRAINING}.ExportConfig",
            "a training checkpoint as a Hugging Face folder",
        ),
    },
    "evaluate": {
        "lm-eval": Command(
            "commands.lm_eval", "", "lm-evaluation-harness with a pair as its model"
        ),
    },
    "benchmark": {
        "gpu-check": Command(
            "gpu_check.__main__", "", "correctness and speed on this machine's GPU"
        ),
        "bench kernel": Command(
            "bench.kernel", f"{BENCH}.BenchKernelConfig", "time the projection on this CPU"
        ),
        "bench decode": Command(
            "bench.decode", f"{BENCH}.BenchDecodeConfig", "time a pair of random weights"
        ),
        "bench byte": Command(
            "bench.byte", f"{BENCH}.BenchByteConfig", "time byte level on a small pair"
        ),
        "bench speculate": Command(
            "bench.speculate", f"{BENCH}.BenchSpeculateConfig", "speculative against plain decoding"
        ),
        "bench tokenize": Command(
            "bench.tokenize",
            f"{BENCH}.BenchTokenizeConfig",
            "token shards beside the bare tokenizer",
        ),
        "bench loader": Command(
            "bench.loader", f"{BENCH}.BenchLoaderConfig", "batches beside a plain copy"
        ),
        "bench pretrain": Command(
            "bench.pretrain",
            f"{BENCH}.BenchPretrainConfig",
            "training, and what each lever of it is worth",
        ),
        "bench flops": Command(
            "bench.flops", f"{BENCH}.BenchFlopsConfig", "the cost model beside the clock"
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
DEBUG_FLAG = "--debug"
FAILED_STATUS = 1
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
"""128 + SIGINT, as shells have it."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: with 1 and one line on stderr for bad input, 2 for bad arguments.

    With --debug among the words, the line is a traceback.
    """
    if sys.stdout is None:  # closed by the caller: whoever prints need not care
        sys.stdout = io.StringIO()
    words = sys.argv[1:] if arguments is None else arguments
    named = [word for word in words if word != DEBUG_FLAG]
    if not named or named[0] in ("-h", "--help"):
        sys.exit(print(_overview()))
    if named[0] == "--version":
        sys.exit(print(anchored.__version__))
    name, rest = _command_name(named)
    sys.exit(_status(name, rest, has_traceback=DEBUG_FLAG in words))


def _command_name(words: list[str]) -> tuple[str, list[str]]:
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, words[length:]
    known = ", ".join(COMMANDS)
    print(f"anchored: unknown command {words[0]!r}; known: {known}", file=sys.stderr)
    sys.exit(USAGE_STATUS)


def _status(name: str, arguments: list[str], *, has_traceback: bool) -> int:
    try:
        status = _run(name, COMMANDS[name], arguments)
        sys.stdout.flush()  # a full disk or a closed pipe must show while it can be reported
        return status
    except KeyboardInterrupt:
        print(f"anchored {name}: interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS
    except (AnchoredError, ValueError, OSError, ImportError) as error:
        # ImportError: what was asked for needs a library that is not installed.
        if has_traceback:
            raise
        print(f"anchored {name}: {_first_line(error)}", file=sys.stderr)
        _drop_output()
        return FAILED_STATUS


def _run(name: str, command: Command, arguments: list[str]) -> int:
    # Threads that spin while they wait cost two thirds of the speed where another process runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    options: Any = _parsed(name, command, arguments) if command.options else arguments
    run: Callable[[Any], int] = _module(command.module).run
    return run(options)


def _parsed(name: str, command: Command, arguments: list[str]) -> Any:
    import tyro  # a tenth of a second that the overview does not need

    module_name, _, class_name = command.options.rpartition(".")
    options = getattr(_module(module_name), class_name)
    return tyro.cli(options, prog=f"anchored {name}", args=arguments)


def _module(name: str) -> Any:
    return importlib.import_module(f"anchored.tools.{name}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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
    lines += ["", f"{DEBUG_FLAG}, anywhere: the traceback of an error instead of its one line"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
