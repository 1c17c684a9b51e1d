"""A ledger's text read by both models again, and what its rule gives at every step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...kernels.sampler import uniforms
from ..byte.byte_level import ByteLevel
from ..byte.byte_stream import ByteStream
from ..engine.prompts import asks_for_ratios, prompts_by_stream, read_prompts
from ..engine.request import recorded_key
from ..engine.score import forced_columns
from ..ledger import Ledger, LedgerHeader
from ..levels.level import Level, TokenLevel
from ..levels.retokenized import RetokenizedLevel
from ..pair.model_pair import ModelPair
from ..rules.budget import Budget
from ..rules.claims import opened, warn_of_left_out
from ..rules.registry import make_rule
from ..rules.rule import BOTH, NextToken, OpenRule, StepInputs
from ..settings import SamplingConfig
from ..warpers import largest_logit

# V symbols.


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """p* of one recorded step, whose token is given."""

    inputs: StepInputs
    """Inputs with the risky model's logits even where nothing may be spent."""
    drawn: NextToken
    seen: Tensor
    """(1, V) bool: symbols before this step."""


class Replay:
    """A ledger whose prompt both models have just read, to be walked once."""

    def __init__(self, ledger: Ledger, pair: ModelPair, *, scores_prompt: bool = False) -> None:
        """scores_prompt: with the prompt's ratios though neither rule nor ledger asks for them.

        Raises ValueError for a level, a rule, a sampler or a stream that the header cannot have.
        """
        header = ledger.header
        self.ledger, self.sampling = ledger, SamplingConfig.of(header.sampling)
        self.level = recorded_level(pair, header.level, header.level_settings)
        self.rule = opened(make_rule(header.rule, header.rule_settings), self.level)
        warn_of_left_out(self.rule)
        prompt = header.prompt_token_ids
        stream_prompts = prompts_by_stream(
            self.level, self.rule, prompt, header.passage, header.chat_prompts
        )
        is_whole = scores_prompt or header.prompt_ratios is not None
        self._streams = self.level.open_streams(
            1,
            max(map(len, [prompt, *stream_prompts.values()])) + len(ledger.steps),
            self.sampling,
            scores_prompts=is_whole or asks_for_ratios(self.level, self.rule),
            specs={**(BOTH if self.level.compares_models else {}), **self.rule.streams},
        )
        for stream in self._streams.values():
            if isinstance(stream, ByteStream):
                stream.records_sizes = True
        self.prompt = read_prompts(self.level, self._streams, [prompt], [0], [stream_prompts])

    @torch.inference_mode()
    def steps(self) -> Iterator[ForcedStep]:
        """p* at every step under the budget that the ledger records for it."""
        uniform, warpers = self._uniforms(), self.level.warpers(self.sampling)
        columns = forced_columns(
            self._streams, self.prompt, [self.ledger.token_ids], looks_back=self.rule.looks_back
        )
        for column, recorded in zip(columns, self.ledger.steps, strict=True):
            numbers = None if uniform is None else uniform[:, recorded.step]
            inputs = column.inputs(warpers, [recorded.budget], numbers)
            yield ForcedStep(inputs, self.rule.next_token(inputs), column.seen)

    def largest_logit(
        self, name: str, logits: Tensor, matters: Tensor | None = None, *, step: int | None = None
    ) -> float:
        """The size of the token logits that a model's symbols follow from: of one step, or of the
        prompt. logits, matters: (V,) of the symbols, which are the tokens unless they are bytes."""
        stream = self._streams[name]
        if isinstance(stream, ByteStream):
            return stream.prompt_size if step is None else stream.sizes[step]
        return largest_logit(logits, matters).item()

    def _uniforms(self) -> Tensor | None:
        """(1, steps, 3) float64 by which the recorded tokens were drawn; None draws nothing."""
        if self.sampling.is_greedy:
            return None
        steps = torch.arange(len(self.ledger.steps))[None]
        key = torch.tensor([recorded_key(self.ledger.header)])
        return uniforms(key, steps).to(self.prompt.seen.device)


def recorded_budget(header: LedgerHeader, rule: OpenRule) -> Budget:
    """The budget that a ledger records: the rule's, or that of a call which gave a k.

    Raises ValueError for figures that are neither.
    """
    for k in (None, header.k):
        try:
            budget = rule.budget_for(horizon=header.horizon, k=k)
        except ValueError:
            break  # a call that asks for this k is refused
        budget = replace(budget, debt=header.debt)
        if budget.is_of(header):
            return budget
    raise ValueError(
        f"k {header.k}, K {header.K} and bank {header.bank} over {header.horizon} steps are not "
        f"those of {header.rule} with {header.rule_settings}"
    )


def recorded_level(pair: ModelPair, name: str, settings: dict[str, Any]) -> Level:
    """The level that a ledger records; ValueError if the pair cannot be decoded like that."""
    if name == "token":
        return RetokenizedLevel(pair) if "tokens_of" in settings else TokenLevel(pair)
    if name != "byte":
        raise ValueError(f'level must be "token" or "byte", got {name!r}')
    level = ByteLevel(pair)
    if level.settings() != settings:
        raise ValueError("the tokenizers, or their stop tokens, are not the recorded ones")
    return level
