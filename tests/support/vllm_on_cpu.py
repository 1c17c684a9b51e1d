"""vLLM's V2 runner on a CPU: its Triton kernels under Triton's interpreter, and as a program
`anchored serve --engine vllm` with it."""

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

from embedded_server import program

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

ARGUMENTS = ("dtype=float32", "enforce_eager=true", "block_size=32", "max_num_seqs=16")
"""Settings of an engine that runs in Triton's interpreter."""


def server(words: list[str], log: Path) -> AbstractContextManager[tuple[str, subprocess.Popen]]:
    """(its address, its process); gone with its engine afterwards."""
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    command = [sys.executable, str(Path(__file__)), "serve", "--engine", "vllm"]
    arguments = ["--engine-args", *ARGUMENTS]
    return program([*words, *arguments], log, command=command, environment=environment)


def interpret() -> None:
    """Before vLLM is imported: a Triton backend by name, its interpreter in place of a compiler."""
    os.environ.update(ENVIRONMENT)
    import triton.backends
    from interpreted_triton import patch_once_a_launch

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    patch_once_a_launch()
    _hasten()
    _find_triton()
    from vllm.v1.sample.ops import topk_topp_sampler

    # Its kernel takes numbers that the interpreter has not; what it truncates here is one-hot.
    topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch


def _hasten() -> None:
    """No check of every sum for overflows, which compiled kernels lack too: a third of the time."""
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )


def _find_triton() -> None:
    """vLLM 0.31 asks for the version of `vllm`, which the CPU build is not called."""
    plain = metadata.version
    metadata.version = lambda name: "0+cpu" if name == "vllm" else plain(name)
    try:
        import vllm.triton_utils  # noqa: F401
    finally:
        metadata.version = plain


if __name__ in ("__main__", "__mp_main__"):  # the server, and its engine's
    interpret()

if __name__ == "__main__":
    from anchored.tools.cli import main

    main()
