"""Given texts under a rule: read by both models in blocks, and a ledger's own step by step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...kernels.uniforms import uniforms
from ..byte.byte_level import ByteLevel
from ..byte.settings import ByteSettings
from ..engine.prompts import PromptReading, asks_for_ratios, prefaced_prompt, read_prompts
from ..engine.request import recorded_key
from ..ledger import Ledger, LedgerHeader, field_error
from ..levels.level import Level, TokenLevel
from ..levels.retokenized import RetokenizedLevel
from ..models.model_pair import ModelPair
from ..models.stream import Stream, chunks
from ..rules.budget import Budget
from ..rules.registry import make_rule
from ..rules.rule import BOTH, NextToken, Past, PastRows, StepInputs, opened
from ..settings import SamplingConfig
from .rounding import MeasuredRounding

# B continuations, C columns and N positions of one block, V symbols.


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenBlock:
    """Some columns of the continuations: the tokens given there, and what the models say."""

    positions: list[range]
    """By continuation: its positions in this block, in order."""
    token_ids: Tensor
    """(N,) int64."""
    logits: dict[str, Tensor]
    """By stream (N, V), raw, before each token."""
    seen: Tensor
    """(N, V) bool: tokens of the prompt and of the continuation before."""
    past: Past | None
    """Of N rows, the continuations before; where asked for."""


def given_blocks(
    streams: Mapping[str, Stream],
    reading: PromptReading,
    continuations: Sequence[Sequence[int]],
    *,
    looks_back: bool,
) -> Iterator[GivenBlock]:
    """Continuations of prompts that the streams have just read, some columns at a time.

    looks_back: with the past of every position.
    """
    lengths = [len(tokens) for tokens in continuations]
    token_ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, tokens in zip(token_ids, continuations, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    is_given = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    seen = reading.seen
    past_rows = PastRows(len(lengths), streams)
    for columns in _columns(seen.shape[1], *token_ids.shape):
        here = is_given[:, columns]
        before = _seen_before(seen, token_ids[:, columns].to(seen.device))
        logits = {
            name: _logits(stream, reading.logits[name], columns, token_ids, is_given)
            for name, stream in streams.items()
        }
        logits = {name: _given(own, here).to(seen.device) for name, own in logits.items()}
        ends = here.sum(1).cumsum(0).tolist()
        past = _past(past_rows, continuations, columns, logits) if looks_back else None
        yield GivenBlock(
            positions=[range(*span) for span in zip([0, *ends], ends, strict=False)],
            token_ids=token_ids[:, columns][here].to(seen.device),
            logits=logits,
            seen=_given(before[:, :-1], here),
            past=past,
        )
        seen = before[:, -1]


def _columns(vocab_size: int, batch_size: int, num_columns: int) -> Iterator[slice]:
    """The first by itself, as it was read with the prompts: to join it would copy the others."""
    yield slice(0, 1)
    for columns in chunks(vocab_size, batch_size, num_columns - 1):
        yield slice(columns.start + 1, columns.stop + 1)


def _given(values: Tensor, here: Tensor) -> Tensor:
    """(N, V) of (B, C, V) where `here` (B, C) says so; not copied where that is everywhere."""
    return values.flatten(0, 1) if bool(here.all()) else values[here.to(values.device)]


def _past(
    rows: PastRows,
    continuations: Sequence[Sequence[int]],
    columns: slice,
    logits: Mapping[str, Tensor],
) -> Past:
    """Of the positions of a block, whose tokens the rows hold then."""
    found, place = [], 0
    for row, tokens in enumerate(continuations):
        for token_id in tokens[columns]:
            found.append(rows.of([row]))
            own = {name: of_all[place : place + 1] for name, of_all in logits.items()}
            rows.append([row], own, [token_id])
            place += 1
    names = found[0].log_probs
    return Past(
        texts=[text for past in found for text in past.texts],
        log_probs={name: torch.cat([past.log_probs[name] for past in found]) for name in names},
    )


def _logits(
    stream: Stream, first: Tensor, columns: slice, token_ids: Tensor, is_given: Tensor
) -> Tensor:
    """(B, C, V) before each token of these columns; `first` (B, V) before those of column 0."""
    if columns.start == 0:
        return first[:, None]
    fed = slice(columns.start - 1, columns.stop - 1)
    # A token that none follows is not fed, nor is padding: the next column says which.
    return stream.feed(token_ids[:, fed], is_given[:, columns].long())


def _seen_before(seen: Tensor, token_ids: Tensor) -> Tensor:
    """(B, C + 1, V) bool before each token (B, C), and behind the last; seen: (B, V) at first."""
    before = [seen]
    for tokens in token_ids.T:
        before.append(before[-1].scatter(1, tokens[:, None], True))
    return torch.stack(before, dim=1)


@dataclass(frozen=True, slots=True)
class ForcedStep:
    """p* of one recorded step, whose token is given."""

    step: int
    inputs: StepInputs
    drawn: NextToken
    seen: Tensor
    """(1, V) bool: symbols before this step."""
    rounding: Mapping[str, float] = field(default_factory=dict)
    """By stream, where it was measured: nats by which a warped logit may be off, see `rounding`."""


class Replay:
    """A ledger whose prompt both models have just read, to be walked once."""

    def __init__(
        self,
        ledger: Ledger,
        pair: ModelPair,
        *,
        scores_prompt: bool = False,
        measures_rounding: bool = False,
    ) -> None:
        """scores_prompt: with the prompt's ratios though neither rule nor ledger asks for them.

        measures_rounding: by reading the text a second time, symbol by symbol.
        Raises ValueError for a level, a rule, a sampler or a stream that the header cannot have.
        """
        header = ledger.header
        self.ledger, self.sampling = ledger, SamplingConfig.of(header.sampling)
        self.level = recorded_level(pair, header.level, header.level_settings)
        self.rule = opened(make_rule(header.rule, header.rule_settings), self.level)
        prompt = header.prompt_token_ids
        prefaced = prefaced_prompt(self.level, self.rule, prompt, header.passage, header.readings)
        is_whole = scores_prompt or header.prompt_ratios is not None
        self._streams = self.level.open_streams(
            1,
            max(map(len, [prompt, *prefaced.values()])) + len(ledger.steps),
            self.sampling,
            scores_prompts=is_whole or asks_for_ratios(self.level, self.rule),
            num_ratios=None if is_whole else self.rule.num_ratios,
            readings={**(BOTH if self.level.compares_models else {}), **self.rule.streams},
        )
        self.reading = read_prompts(self.level, self._streams, [prompt], [0], [prefaced])
        self._rounding: MeasuredRounding | None = None
        if measures_rounding:
            self._rounding = MeasuredRounding(
                self.level, self.rule, prompt, prefaced, len(ledger.steps), self.sampling
            )

    @torch.inference_mode()
    def steps(self) -> Iterator[ForcedStep]:
        """p* at every step under the budget that the ledger records for it."""
        uniform, warpers = self._uniforms(), self.level.warpers(self.sampling)
        number = 0
        for block in given_blocks(
            self._streams,
            self.reading,
            [self.ledger.token_ids],
            looks_back=self.rule.looks_back,
        ):
            for row in range(len(block.token_ids)):
                seen = block.seen[row : row + 1]
                budget = [self.ledger.steps[number].budget]
                inputs = StepInputs(
                    logits={name: own[row : row + 1] for name, own in block.logits.items()},
                    warp=warpers.after(seen),
                    budget=torch.tensor(budget, dtype=torch.float64, device=seen.device),
                    uniform=None if uniform is None else uniform[:, number],
                    past=None if block.past is None else block.past.of([row]),
                )
                drawn, measured = self.rule.next_token(inputs), self._measured(number, inputs)
                yield ForcedStep(number, inputs, drawn, seen, measured)
                number += 1

    def _measured(self, number: int, inputs: StepInputs) -> Mapping[str, float]:
        if self._rounding is None:
            return {}
        if number > 0:
            self._rounding.feed(self.ledger.token_ids[number - 1])
        return self._rounding.deviations(inputs.logits)

    def _uniforms(self) -> Tensor | None:
        """(1, steps, 3) float64 to draw tokens beside the recorded ones; None draws nothing."""
        if self.sampling.is_greedy:
            return None
        steps = torch.arange(len(self.ledger.steps))[None]
        key = torch.tensor([recorded_key(self.ledger.header)])
        return uniforms(key, steps).to(self.reading.seen.device)


def recorded_budget(header: LedgerHeader) -> Budget:
    """The budget that the header's figures give, whatever bound stands beside them."""
    return Budget(
        per_step=header.k,
        total=header.K,
        horizon=header.horizon,
        debt=header.debt,
        schedule=header.rule_settings.get("budget", "adaptive"),
    )


def recorded_level(pair: ModelPair, name: str, settings: dict[str, Any]) -> Level:
    """The level that a ledger records; ValueError if the pair cannot be decoded like that."""
    if name == "token":
        return RetokenizedLevel(pair) if "tokens_of" in settings else TokenLevel(pair)
    if name != "byte":
        raise ValueError(f'level must be "token" or "byte", got {name!r}')
    own = {key: value for key, value in settings.items() if key != "tokenizers"}
    if error := field_error(ByteSettings, own):
        raise ValueError(f"level_settings: {error}")
    level = ByteLevel(pair, ByteSettings(**own))
    if level.settings()["tokenizers"] != settings.get("tokenizers"):
        raise ValueError("the tokenizers, or their stop tokens, are not the recorded ones")
    return level
