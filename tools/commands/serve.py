"""The command that serves a pair inside vLLM."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """Serve a pair by vLLM: anchored vllm serve --safe A --risky B --ledgers DIR --port 8000

    An OpenAI server; all other options are those of vllm serve, --tensor-parallel-size 8 for one.
    Needs the extra of that name: pip install 'anchored[vllm]'. docs/serving.md says what a request
    may ask for and what an answer says.
    """

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    ledgers: Path | None = None
    """Folder of the journal, which anchored ledgers makes ledgers of; unless given, one that is
    removed when the server ends."""
    default_k: float = 1.5
    """Nats a token of requests that ask for nothing; K = k * max_tokens."""
    max_k: float | None = None
    """Most nats a token that a request may ask for."""
    max_total: float | None = None
    """Most nats a text, K."""
    max_horizon: int | None = None
    """Most tokens of a text."""
    divergence: str = "kl"
    """kl or max, unless a request asks for the other."""
    debt: str = "top"
    """What prompts owe: top, average or none."""
    debt_window: int = 5
    """Prompt tokens that make the debt."""
    budget: str = "adaptive"
    """adaptive, global or fixed allowances."""
    allow_quantized_safe: bool = False
    """Take a quantised safe model: the bound then holds against that one."""


def run(words: list[str]) -> int:
    """Serve until a signal ends it; the words that are not ours go to vLLM."""
    config, others = tyro.cli(
        ServeConfig, prog="anchored vllm serve", args=words, return_unknown_args=True
    )
    from anchored.decode.vllm.engine import prepare
    from anchored.decode.vllm.settings import Limits

    given = {own.name: getattr(config, own.name) for own in dataclasses.fields(Limits)}
    settings = prepare(
        config.safe,
        config.risky,
        Limits(**given),
        config.ledgers,
        allow_quantized_safe=config.allow_quantized_safe,
    )
    from anchored.decode.vllm.server import serve

    serve(settings, others)
    return 0
