"""Both models read prompts once: last logits and the ratios behind the debt."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..levels.level import Level
from ..models.kv_cache import uploaded
from ..models.row_stream import RowStream
from ..models.stream import UNSCORED, PromptLogits, Stream
from ..rules.prefix_debt import PromptRatios, log_likelihood_ratios, prompt_digest
from ..rules.rule import BOTH, Rule, StreamName
from ..settings import SamplingConfig

# R prompts.


@dataclass(frozen=True, slots=True)
class PromptReading:
    """What is known after the prompts, before the first new token."""

    logits: dict[str, Tensor]
    """By stream: (R, vocab_size), raw, after the last prompt token."""
    ratios: list[Tensor]
    """Per prompt (num_positions,) float64 log p_r - log p_s of symbols 1.., but special ones, in
    nats of a token; (0,) of streams that score no prompts, and where there is an error."""
    errors: list[str]
    """Per prompt what is wrong with a model's logits over it or its ratios, "" for nothing."""
    num_forwards: dict[str, int]
    """By model: forwards that each prompt took part in."""
    seen: Tensor
    """(R, vocab_size) bool on the safe model's device: symbols that occur in the prompt."""

    def of(self, places: Sequence[int]) -> "PromptReading":
        """That of the prompts at these places, one of them perhaps several times."""
        rows = torch.tensor(places)
        return PromptReading(
            logits={name: own[rows.to(own.device)] for name, own in self.logits.items()},
            ratios=[self.ratios[place] for place in places],
            errors=[self.errors[place] for place in places],
            num_forwards=self.num_forwards,
            seen=self.seen[rows.to(self.seen.device)],
        )


def asks_for_ratios(level: Level, rule: Rule) -> bool:
    """Whether streams have to score prompts: for debts that are not known before."""
    return rule.charges_debt and level.prompt_ratios is None


Prefaced = Mapping[StreamName, list[int]]
"""By the streams that read something else than a prompt: its symbols behind a preface, or a
conversation in the risky model's own template."""


def prefaced_prompt(
    level: Level,
    rule: Rule,
    prompt: list[int],
    passage: str | None,
    readings: Prefaced | None = None,
) -> Prefaced:
    """What streams of the rule read in place of a prompt; see `rule.Reading`.

    Symbols that begin a text, as a tokenizer adds them, stand before the preface alone. readings:
    of a conversation, see `chat_prompt`; streams that the rule does not read are left out.
    Raises ValueError where the rule needs a passage and there is none, or has no use for one, and
    for a conversation where the rule puts a text before the prompt.
    """
    takes_passage = any(own.takes_passage for own in rule.streams.values())
    if takes_passage != (passage is not None):
        needs = "needs a passage a prompt, got none" if takes_passage else "reads no passages"
        raise ValueError(f"the rule {rule.name} {needs}")
    special = set(level.special_token_ids)
    text = list(itertools.dropwhile(special.__contains__, prompt))
    prefaces = {
        name: own.preface + (f"{passage}\n\n" if own.takes_passage else "")
        for name, own in rule.streams.items()
    }
    if readings and any(prefaces.values()):
        raise ValueError(f"the rule {rule.name} puts text before a prompt: give it no messages")
    prefaced = {name: [*level.encode(own), *text] for name, own in prefaces.items() if own}
    return prefaced | {name: own for name, own in (readings or {}).items() if name in prefaces}


def read_prompts(
    level: Level,
    streams: Mapping[str, Stream],
    prompts: list[list[int]],
    rows: list[int],
    prefaced: Sequence[Prefaced] = (),
) -> PromptReading:
    """Prefill empty rows of the streams with prompts of any lengths.

    prefaced: of each prompt, what some of the streams read in its place; its ratios are those of
    the prompt itself all the same, which both models then read once more.
    """
    own = prefaced or [{}] * len(prompts)
    read = {
        name: stream.read([o.get(name, p) for o, p in zip(own, prompts, strict=True)], rows)
        for name, stream in streams.items()
    }
    read = {**level.settled(streams, read, rows)}
    log_probs = {name: list(prompt.token_log_probs) for name, prompt in read.items()}
    apart = [i for i, replaced in enumerate(own) if replaced and _is_scored(log_probs, i)]
    again = _read_for_ratios(level, [prompts[i] for i in apart]) if apart else {}
    for name, prompt in again.items():
        for i, values in zip(apart, prompt.token_log_probs, strict=True):
            log_probs[name][i] = values
    scored = [
        _scored(level, prompt, {name: values[i] for name, values in log_probs.items()})
        for i, prompt in enumerate(prompts)
    ]
    return PromptReading(
        logits={name: prompt.logits for name, prompt in read.items()},
        ratios=[ratios for ratios, _ in scored],
        errors=[error for _, error in scored],
        num_forwards={
            name: sum(own[name].num_forwards for own in (read, again) if name in own)
            for name in read
        },
        seen=uploaded(_seen(prompts, level.vocab_size), level.pair.safe.device),
    )


def read_each_once(
    level: Level,
    streams: Mapping[str, Stream],
    prompts: list[list[int]],
    prefaced: Sequence[Prefaced],
) -> PromptReading:
    """As `read_prompts` into all rows, equal prompts read once where the streams can copy rows."""
    first: dict[str, int] = {}
    firsts = [
        first.setdefault(repr((prompt, own)), row)
        for row, (prompt, own) in enumerate(zip(prompts, prefaced, strict=True))
    ]
    rows = sorted(first.values())
    copied = [stream for stream in streams.values() if isinstance(stream, RowStream)]
    if len(rows) == len(prompts) or len(copied) < len(streams):
        return read_prompts(level, streams, prompts, list(range(len(prompts))), prefaced)
    own = [prefaced[row] for row in rows]
    reading = read_prompts(level, streams, [prompts[row] for row in rows], rows, own)
    for stream in copied:
        for row in rows:
            stream.copy(row, [o for o, f in enumerate(firsts) if f == row and o != row])
    return reading.of([rows.index(row) for row in firsts])


def _is_scored(log_probs: Mapping[str, list[Tensor]], i: int) -> bool:
    return all(name in log_probs and len(log_probs[name][i]) for name in BOTH)


def _read_for_ratios(level: Level, prompts: list[list[int]]) -> dict[str, PromptLogits]:
    """By "safe" and "risky": prompts read by streams that are dropped again."""
    streams = level.open_streams(
        len(prompts), max(map(len, prompts)), SamplingConfig(), scores_prompts=True
    )
    return {n: stream.read(prompts, list(range(len(prompts)))) for n, stream in streams.items()}


def measured_ratios(level: Level, batches: Iterable[list[list[int]]]) -> PromptRatios:
    """The ratios of prompts, to be kept; ValueError for one whose logits are NaN."""
    ratios = PromptRatios(ratio_source(level))
    for prompts in batches:
        longest = max(map(len, prompts))
        streams = level.open_streams(len(prompts), longest, SamplingConfig(), scores_prompts=True)
        reading = read_prompts(level, streams, prompts, list(range(len(prompts))))
        for prompt, own, error in zip(prompts, reading.ratios, reading.errors, strict=True):
            if error:
                raise ValueError(error)
            ratios.by_prompt[prompt_digest(prompt)] = own
    return ratios


def ratio_source(level: Level) -> dict[str, Any]:
    """All that decides the ratios of a prompt beside its symbols, as plain JSON values."""
    pair = level.pair
    return {
        "level": level.name,
        **{f"{name} model": fingerprint for name, fingerprint in pair.fingerprints.items()},
        **{f"{name} dtype": str(model.dtype) for name, model in pair.models.items()},
        "quantization": pair.quantization,
        "special tokens": list(level.special_token_ids),
        "sampling": "unwarped",
        **level.ratio_settings(),
    }


def _scored(level: Level, prompt: list[int], log_probs: dict[str, Tensor]) -> tuple[Tensor, str]:
    """A prompt's ratios and what is wrong with it; without ratios where anything is."""
    ratios = _ratios(level, prompt, log_probs)
    error = _error(log_probs, ratios)
    return UNSCORED if error else ratios, error


def _ratios(level: Level, prompt: list[int], log_probs: dict[str, Tensor]) -> Tensor:
    """Known ones, measured ones, or none where nobody asks for them."""
    if level.prompt_ratios is not None:
        return level.prompt_ratios.of(prompt)
    if any(name not in log_probs or len(log_probs[name]) == 0 for name in BOTH):
        return UNSCORED
    special = torch.tensor(level.special_token_ids, dtype=torch.long)
    ratios = log_likelihood_ratios(log_probs["risky"], log_probs["safe"])
    return level.symbols_per_token * ratios[~torch.isin(torch.tensor(prompt)[1:], special)]


def _error(log_probs: dict[str, Tensor], ratios: Tensor) -> str:
    broken = [name for name, values in log_probs.items() if values.isnan().any()]
    if broken:
        return f"the {broken[-1]} model's logits over the prompt are NaN or +inf"
    return "the ratios that are given for the prompt hold NaN" if ratios.isnan().any() else ""


def _seen(prompts: list[list[int]], vocab_size: int) -> Tensor:
    seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        seen[row, prompt] = True
    return seen
