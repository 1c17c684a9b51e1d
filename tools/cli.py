"""The command line: anchored COMMAND --help"""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anchored


@dataclass(frozen=True, slots=True)
class Command:
    """A program: a module with a config class and run(config) -> exit status.

    Without a config class, run gets the words as they are.
    """

    module: str
    config: str
    summary: str


COMMANDS = {
    "quickstart": Command(
        "quickstart.program", "QuickstartConfig", "train a pair, decode, measure: all in one go"
    ),
    "generate": Command("generate", "GenerateConfig", "continue a prompt with a pair"),
    "score": Command("score", "ScoreConfig", "log p* of a given continuation"),
    "ratios": Command("ratios", "RatiosConfig", "what prompts owe, kept in a file for generate"),
    "verify": Command("verify", "VerifyConfig", "replay a ledger against its models"),
    "divergences": Command(
        "divergences", "DivergencesConfig", "how far apart the models were along a ledger"
    ),
    "tokenize": Command("tokenize", "TokenizeConfig", "text to token shards, resumable"),
    "plan": Command("plan", "PlanConfig", "what training reads: epochs, days, documents of a step"),
    "dry-run": Command("dry_run", "DryRunConfig", "a training run's model, memory and time"),
    "export": Command("export", "ExportConfig", "a training checkpoint as a Hugging Face folder"),
    "gpu-check": Command("gpu_check", "", "correctness and speed on this machine's GPU"),
    "lm-eval": Command("lm_eval", "", "lm-evaluation-harness with a pair as its model"),
    "bench kernel": Command("bench_kernel", "BenchKernelConfig", "time the projection on this CPU"),
    "bench decode": Command("bench_decode", "BenchDecodeConfig", "time a pair of random weights"),
    "bench byte": Command("bench_byte", "BenchByteConfig", "time byte level on a small pair"),
    "bench speculate": Command(
        "bench_speculate", "BenchSpeculateConfig", "speculative against plain decoding"
    ),
    "bench tokenize": Command(
        "bench_tokenize", "BenchTokenizeConfig", "token shards beside the bare tokenizer"
    ),
    "bench loader": Command("bench_loader", "BenchLoaderConfig", "batches beside a plain copy"),
    "bench pretrain": Command(
        "bench_pretrain", "BenchPretrainConfig", "training, and what each lever of it is worth"
    ),
    "bench flops": Command("bench_flops", "BenchFlopsConfig", "the cost model beside the clock"),
}
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command; bad input is one line on stderr and status 1 (2 for bad arguments)."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        sys.exit(print(_overview()))
    if words[0] == "--version":
        sys.exit(print(anchored.__version__))
    name, rest = _command_name(words)
    try:
        sys.exit(_run(name, COMMANDS[name], rest))
    except (ValueError, FileNotFoundError, ImportError, RuntimeError) as error:
        sys.exit(f"anchored {name}: {error}")
    except KeyboardInterrupt:
        print(f"anchored {name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_STATUS)


def _command_name(words: list[str]) -> tuple[str, list[str]]:
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, words[length:]
    known = ", ".join(COMMANDS)
    print(f"anchored: unknown command {words[0]!r}; known: {known}", file=sys.stderr)
    sys.exit(USAGE_STATUS)


def _run(name: str, command: Command, arguments: list[str]) -> int:
    # Threads that spin while they wait cost two thirds of the speed where another process runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import tyro  # a second of imports that --help of the overview does not need

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    module = importlib.import_module(f"anchored.tools.{command.module}")
    if not command.config:
        return int(module.run(arguments))
    config: Any = getattr(module, command.config)
    run: Callable[[Any], int] = module.run
    return run(
        tyro.cli(config, prog=f"anchored {name}", description=module.__doc__, args=arguments)
    )


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["Anchored Decoding: anchored COMMAND --help", "", *lines, "", "  anchored quickstart"]
    )


if __name__ == "__main__":
    main()
