"""vLLM's V2 runner on a CPU: its Triton kernels under Triton's interpreter."""

import os
from importlib import metadata
from types import SimpleNamespace

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


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
