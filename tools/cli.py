"""The command line: anchored COMMAND --help"""

import importlib
import io
import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import anchored
from anchored import AnchoredError


@dataclass(frozen=True, slots=True)
class Command:
    """A program: a module with run(options) -> exit status, and the class of its options.

    That is MODULE.CLASS; the module imports neither torch nor transformers, so that --help and a
    mistyped flag cost nothing. Without a class, `run` gets the words as they are.
    """

    module: str
    options: str
    summary: str


def _commands(module: str, options: str, summaries: dict[str, str]) -> dict[str, Command]:
    """By name; {} in a module is the name's last word, and FooConfig are the options of foo."""
    commands = {}
    for name, summary in summaries.items():
        word = name.split()[-1].replace("-", "_")
        own_class = name.title().replace("-", "").replace(" ", "") + "Config"
        path = options and f"{options.format(word)}.{own_class}"
        commands[name] = Command(module.format(word), path, summary)
    return commands


GROUPS = {
    "start here": _commands(
        "quickstart.program",
        "commands.training.training_options",
        {"quickstart": "train a pair, decode, measure: all in one go"},
    ),
    "decode": _commands(
        "commands.{}",
        "commands.{}",
        {
            "generate": "continue prompts with a pair",
            "score": "log p* of a given continuation",
            "ratios": "what prompts owe, kept in a file for generate",
            "retrieve": "a passage for each prompt, by words or by meaning",
            "verify": "replay a ledger against its models",
            "divergences": "how far apart the models were along a ledger",
        },
    ),
    "serve": {
        "vllm serve": Command("commands.serve", "", "an OpenAI server that answers with p*"),
        **_commands(
            "commands.{}", "commands.{}", {"ledgers": "ledgers of a server's journal, to verify"}
        ),
    },
    "train": {
        **_commands(
            "commands.training.{}",
            "commands.training.training_options",
            {
                "decontaminate": "training text searched for works and benchmarks",
                "tokenize": "text to token shards, resumable",
                "verify-shards": "token shards against their checksums, before GPUs wait",
                "plan": "what training reads: epochs, days, documents of a step",
                "ladder": "small models below a run, and the loss that they predict for it",
                "provenance": "which steps read a document, and under which licence",
                "train": "a training run, started again where it crashes",
                "rollback": "a training run back to an earlier checkpoint",
                "export": "a training checkpoint as a Hugging Face folder",
            },
        ),
        "dry-run": Command(
            "commands.dry_run",
            "commands.training.training_options.DryRunConfig",
            "a training run's model, memory and time",
        ),
    },
    "evaluate": {
        **_commands(
            "commands.evaluation.{}",
            "commands.evaluation.{}",
            {
                "prompts": "texts of a data set in the paper's prompts, for sweep",
                "sweep": "every method of a file on one pair: texts, tables, pictures",
                "compare": "several models on the same benchmarks: table, picture",
                "evaluate": "a recorded run through all measures, judges and analyses to a page",
                "analyse": "a run's ledgers and texts: divergences, debts, spans, budgets",
                "report": "one page on a whole run: tables, pictures, texts token by token",
                "calibrate": "the largest k that keeps copying within a target",
            },
        ),
        **_commands(
            "commands.evaluation.measure",
            "commands.evaluation.measure",
            {
                "measure copying": "what recorded texts copy of their references",
                "measure nonliteral": "characters that recorded texts take over",
            },
        ),
        **_commands(
            "commands.evaluation.judge",
            "commands.evaluation.judge",
            {
                "judge fluency": "grades of recorded texts, by a model",
                "judge factuality": "claims of recorded texts against evidence, by a model",
                "judge win-rate": "texts beside others of the same prompt, by a model",
            },
        ),
        **_commands(
            "commands.evaluation.{}",
            "",
            {"lm-eval": "lm-evaluation-harness with a pair as its model"},
        ),
    },
    "benchmark": {
        "gpu-check": Command(
            "gpu_check.__main__", "", "correctness and speed on this machine's GPU"
        ),
        **_commands(
            "bench.kernel.{}",
            "bench.options",
            {
                "bench kernel": "time the projection on this CPU",
                "bench kernel-compile": "what the walk kernel becomes on a GPU, without one",
            },
        ),
        **_commands(
            "bench.{}",
            "bench.options",
            {
                "bench decode": "time a pair of random weights",
                "bench forward": "a paired step with plain and with packed layers",
                "bench speculate": "speculative against plain decoding",
                "bench lm-eval": "a pair in lm-eval beside lm-eval's own models",
                "bench flops": "the cost model beside the clock",
            },
        ),
        **_commands(
            "bench.byte.{}",
            "bench.options",
            {
                "bench byte": "time byte level on a small pair",
            },
        ),
        **_commands(
            "bench.pretrain.{}",
            "bench.options",
            {
                "bench tokenize": "token shards beside the bare tokenizer",
                "bench loader": "batches beside a plain copy",
                "bench pretrain": "training, and what each lever of it is worth",
            },
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
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"anchored {name}: {first_line}", file=sys.stderr)
        _drop_output()
        return FAILED_STATUS


def _run(name: str, command: Command, arguments: list[str]) -> int:
    # Threads that spin while they wait cost two thirds of the speed where another process runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    options: Any = arguments
    if command.options:
        import tyro  # a tenth of a second that the overview does not need

        module, _, own_class = command.options.rpartition(".")
        kind = getattr(_module(module), own_class)
        options = tyro.cli(kind, prog=f"anchored {name}", args=arguments)
    return int(_module(command.module).run(options))


def _module(name: str) -> Any:
    return importlib.import_module(f"anchored.tools.{name}")


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
