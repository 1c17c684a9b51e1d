"""Correctness and speed on this machine's GPU: anchored gpu-check --part correctness

Every check runs in a process of its own: what fails, crashes or does not end is a row of the
results. A part takes nine minutes at most: "correctness" of kernels and decoding, "speed" of the
kernels, bytes and drafts, "decode" of a pair of 8B and 1.8B with random weights, "vllm" of pairs
inside vLLM, where it is installed.

Needs torch, triton, transformers and numpy only, so it runs from a bare checkout too:
`mkdir -p P && ln -s "$PWD" P/anchored && PYTHONPATH=P python -m anchored.tools.gpu_check`
"""

import argparse
import sys
from pathlib import Path

from anchored.tools.commands.files import check_outputs

from .parts import PARTS


def run(arguments: list[str]) -> int:
    """Run the parts that were asked for; 1 if something failed, or without a GPU."""
    options = _options(arguments)
    check_outputs(options.output, overwrite=options.overwrite)
    import torch  # as help need not

    if not torch.cuda.is_available():
        print("gpu-check: there is no CUDA device here", file=sys.stderr)
        return 1
    from .program import check_gpu

    return check_gpu(PARTS if options.part == "all" else (options.part,), options.output)


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
    sys.exit(run(sys.argv[1:]))
