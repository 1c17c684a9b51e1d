"""Which implementation of a kernel runs."""

BACKENDS = ("auto", "torch")


def check_backend(backend: str) -> None:
    """Raise ValueError unless `backend` can run here; "auto" is the fastest of the others."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
