"""Teacher forcing under a rule: given continuations walked step by step with their budgets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.uniforms import uniforms
from ..byte.byte_level import ByteLevel
from ..byte.settings import ByteSettings
from ..engine.prompts import PromptReading, prefaced_prompt, read_prompts
from ..engine.request import recorded_key
from ..ledger import Ledger, LedgerHeader, field_error
from ..levels.level import Level
from ..levels.token_level import TokenLevel
from ..models.model_pair import ModelPair
from ..models.stream import Stream, feed_in_chunks
from ..rules.budget import Budget
from ..rules.rule import BOTH, NextToken, PastRows, Rule, StepInputs
from ..settings import SamplingConfig
from ..warpers import Warpers


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """p* of one step over the batch, beside the tokens that were forced."""

    step: int
    inputs: StepInputs
    drawn: NextToken
    token_ids: Tensor
    """(batch,) int64; token 0 in rows whose continuation has ended."""
    rows: list[int]
    """Rows that still have a token at this step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Continuations of prompts that both streams have just read; a reading serves one replay."""

    rule: Rule
    warpers: Warpers
    streams: Mapping[str, Stream]
    reading: PromptReading
    continuations: list[list[int]]
    uniforms: Tensor | None = None
    """(batch, steps, 3) float64 to draw tokens beside the forced ones; None draws nothing."""

    @torch.inference_mode()
    def steps(self, allowances: Callable[[int], list[float]]) -> Iterator[ForcedStep]:
        """p* at every step; `allowances(step)` is asked for each row's budget in nats, in order."""
        token_ids, mask = _right_padded(self.continuations)
        if not mask.numel():
            return
        seen = self.reading.seen
        token_ids = token_ids.to(seen.device)
        past = PastRows(len(token_ids), self.rule.streams)
        every = range(len(token_ids))
        for step, logits in enumerate(self._logits(token_ids, mask)):
            inputs = StepInputs(
                logits={name: own.to(seen.device) for name, own in logits.items()},
                warp=self.warpers.after(seen),
                budget=torch.tensor(allowances(step), dtype=torch.float64, device=seen.device),
                uniform=None if self.uniforms is None else self.uniforms[:, step],
                past=past.of(every) if self.rule.looks_back else None,
            )
            rows = [row for row, tokens in enumerate(self.continuations) if step < len(tokens)]
            drawn = self.rule.next_token(inputs)
            yield ForcedStep(step, inputs, drawn, token_ids[:, step], rows)
            seen.scatter_(1, token_ids[:, step : step + 1], True)
            if self.rule.looks_back:
                past.append(every, inputs.logits, token_ids[:, step].tolist())

    def recorded_steps(self, ledger: Ledger) -> Iterator[ForcedStep]:
        """The same under the budgets that the only continuation's ledger records."""
        return self.steps(lambda step: [ledger.steps[step].budget])

    def _logits(self, token_ids: Tensor, mask: Tensor) -> Iterator[dict[str, Tensor]]:
        """By stream, logits (batch, vocab_size) before each token; the last one is never fed."""
        yield self.reading.logits
        fed = {
            name: feed_in_chunks(stream, token_ids[:, :-1], mask[:, :-1])
            for name, stream in self.streams.items()
        }
        for logits in zip(*fed.values(), strict=True):
            yield dict(zip(fed, logits, strict=True))


def _right_padded(continuations: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(len(tokens) for tokens in continuations)
    token_ids = torch.zeros(len(continuations), width, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    for row, tokens in enumerate(continuations):
        token_ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        mask[row, : len(tokens)] = 1
    return token_ids, mask


def open_replay(ledger: Ledger, level: Level, rule: Rule, *, scores_prompt: bool) -> Replay:
    """A replay of one continuation, its prompt read; scores_prompt: with the prompt's ratios.

    Raises ValueError for a sampler or a stream that the header cannot have, see `recorded_key`.
    """
    header = ledger.header
    sampling = SamplingConfig.of(header.sampling)
    prompt = header.prompt_token_ids
    prefaced = prefaced_prompt(level, rule, prompt, header.passage)
    num_tokens = max(map(len, [prompt, *prefaced.values()])) + len(ledger.steps)
    readings = {**BOTH, **rule.streams}
    streams = level.open_streams(
        1, num_tokens, sampling, scores_prompts=scores_prompt, readings=readings
    )
    reading = read_prompts(level, streams, [prompt], [0], [prefaced])
    return Replay(
        rule=rule.for_symbols(level),
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


def recorded_level(pair: ModelPair, name: str, settings: dict[str, Any]) -> Level:
    """The level that a ledger records; ValueError if the pair cannot be decoded like that."""
    if name == "token":
        return TokenLevel(pair)
    if name != "byte":
        raise ValueError(f'level must be "token" or "byte", got {name!r}')
    own = {key: value for key, value in settings.items() if key != "tokenizers"}
    if error := field_error(ByteSettings, own):
        raise ValueError(f"level_settings: {error}")
    level = ByteLevel(pair, ByteSettings(**own))
    if level.settings()["tokenizers"] != settings.get("tokenizers"):
        raise ValueError("the tokenizers, or their stop tokens, are not the recorded ones")
    return level
