"""Both models over the tokens of a ledger, under the rule and the allowances that it records."""

import torch
from torch import Tensor

from ..kernels.uniforms import uniforms
from .budget import Budget
from .ledger import Ledger, LedgerHeader
from .level import Level
from .prompt_reading import read_prompts
from .random_key import recorded_key
from .replay import Replay
from .rules.rule import Rule
from .sampling_config import SamplingConfig


def open_replay(ledger: Ledger, level: Level, rule: Rule, *, scores_prompt: bool) -> Replay:
    """A replay of one continuation, its prompt read; scores_prompt: with the prompt's ratios.

    Raises ValueError for a sampler or a stream that the header cannot have, see `recorded_key`.
    """
    header = ledger.header
    sampling = SamplingConfig.of(header.sampling)
    num_tokens = len(header.prompt_token_ids) + len(ledger.steps)
    streams = level.open_streams(1, num_tokens, sampling, scores_prompts=scores_prompt)
    reading = read_prompts(level, streams, [header.prompt_token_ids], [0])
    return Replay(
        rule=rule,
        warpers=level.warpers(sampling),
        streams=streams,
        reading=reading,
        continuations=[ledger.token_ids],
        uniforms=_uniforms(ledger, sampling, reading.seen.device),
    )


def recorded_budget(header: LedgerHeader) -> Budget:
    """The budget that the header's figures give, whatever bound stands beside them."""
    return Budget(
        per_step=header.k,
        total=header.K,
        horizon=header.horizon,
        debt=header.debt,
        schedule=header.rule_settings.get("budget", "adaptive"),
    )


def _uniforms(ledger: Ledger, sampling: SamplingConfig, device: torch.device) -> Tensor | None:
    if sampling.is_greedy:
        return None
    steps = torch.arange(len(ledger.steps))[None]
    return uniforms(torch.tensor([recorded_key(ledger.header)]), steps).to(device)
