"""Correctness and speed on this machine's GPU: anchored gpu-check --part correctness

Needs torch, triton, transformers and numpy only, so it runs from a bare checkout too:
`mkdir -p P && ln -s "$PWD" P/anchored && PYTHONPATH=P python -m anchored.tools.gpu_check`
"""

import argparse
from pathlib import Path

from anchored.tools.commands.files import check_outputs

PARTS = ("correctness", "speed")


def run(arguments: list[str]) -> int:
    """Run the parts that were asked for; 1 if a check failed."""
    options = _options(arguments)
    check_outputs(options.output, overwrite=options.overwrite)
    from .program import check_gpu  # imports torch, as help need not

    parts = PARTS if options.part == "all" else (options.part,)
    return check_gpu(parts, options.output)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="anchored gpu-check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="what to run")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/gpu-check.json"), help="results, as they come"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results that exist")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    import sys

    sys.exit(run(sys.argv[1:]))
