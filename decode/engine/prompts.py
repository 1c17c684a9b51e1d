"""Both models read prompts once: last logits, and the ratios from which the debt follows."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.devices import work_device
from ..levels.level import Level
from ..rules.budget import PromptRatios, log_likelihood_ratios, prompt_digest
from ..rules.rule import BOTH, OpenRule, StreamName, takes_passage
from ..settings import RequestError, SamplingConfig
from ..streams.kv_cache import uploaded
from ..streams.row_stream import RowStream
from ..streams.stream import UNSCORED, PromptLogits, Stream

# R prompts.


@dataclass(frozen=True, slots=True)
class PromptReading:
    """The state after the prompts, before the first new token."""

    logits: dict[str, Tensor]
    """(R, vocab_size) by stream, raw, after the last prompt token."""
    ratios: list[Tensor]
    """Per prompt (num_positions,) float64 log p_r - log p_s of symbols 1.., but special ones, in
    nats of a token; (0,) of streams that score no prompts, and where there is an error."""
    errors: list[str]
    """Per prompt what is wrong with a model's logits over it or its ratios, "" for nothing."""
    num_forwards: dict[str, int]
    """Forwards by model that each prompt took part in."""
    seen: Tensor
    """(R, vocab_size) bool on the safe model's device: symbols that occur in the prompt."""


def asks_for_ratios(level: Level, rule: OpenRule) -> bool:
    """Tell whether streams have to score prompts: for debts that are not known before."""
    return rule.charges_debt and level.prompt_ratios is None


StreamPrompts = Mapping[StreamName, list[int]]
"""Symbols by stream, for streams that read something else than the prompt: a preface and the
prompt, or a conversation in the risky model's template."""


def prompts_by_stream(
    level: Level,
    rule: OpenRule,
    prompt: list[int],
    passage: str | None,
    chat_prompts: StreamPrompts | None = None,
) -> StreamPrompts:
    """Symbols that streams of the rule read in place of a prompt; see `rule.StreamSpec`.

    Symbols that begin a text, as a tokenizer adds them, come before the preface alone.
    chat_prompts: of a conversation, see `chat_prompt`; streams that the rule does not read are
    left out.
    Raises RequestError where the rule needs a passage and there is none, or has no use for one, and
    ValueError for a conversation where the rule puts a text before the prompt.
    """
    if takes_passage(rule) != (passage is not None):
        needs = "needs a passage a prompt, got none" if passage is None else "reads no passages"
        raise RequestError(f"the rule {rule.name} {needs}")
    special = set(level.special_token_ids)
    text = list(itertools.dropwhile(special.__contains__, prompt))
    prefaces = {
        name: stream.preface + (f"{passage}\n\n" if stream.takes_passage else "")
        for name, stream in rule.streams.items()
    }
    if chat_prompts and any(prefaces.values()):
        raise ValueError(f"the rule {rule.name} puts text before a prompt: give it no messages")
    with_preface = {n: [*level.encode(before), *text] for n, before in prefaces.items() if before}
    return with_preface | {n: ids for n, ids in (chat_prompts or {}).items() if n in prefaces}


def read_prompts(
    level: Level,
    streams: Mapping[str, Stream],
    prompts: list[list[int]],
    rows: list[int],
    stream_prompts: Sequence[StreamPrompts] = (),
) -> PromptReading:
    """Prefill empty rows of the streams with prompts of any lengths.

    stream_prompts: of each prompt, what some of the streams read in its place.
    """
    stream_prompts = stream_prompts or [{}] * len(prompts)
    # 1. Every stream reads a prompt, or what is in its place there; equal ones once, if it can
    #    copy what it has read to other rows.
    both = list(zip(stream_prompts, prompts, strict=True))
    read = {
        name: _read_each_once(stream, [other.get(name, prompt) for other, prompt in both], rows)
        for name, stream in streams.items()
    }
    log_probs = {name: list(prompt.token_log_probs) for name, prompt in read.items()}
    num_forwards = {name: prompt.num_forwards for name, prompt in read.items()}
    # 2. The debt is that of the prompt itself: where a stream scored something else, both models
    #    read the prompt once more, by streams that are dropped again.
    apart = [
        i
        for i, other in enumerate(stream_prompts)
        if other and all(name in log_probs and len(log_probs[name][i]) for name in BOTH)
    ]
    for name, prompt in _read_apart(level, [prompts[i] for i in apart]).items():
        num_forwards[name] += prompt.num_forwards
        for i, values in zip(apart, prompt.token_log_probs, strict=True):
            log_probs[name][i] = values
    # 3. Ratios, or what is wrong with the prompt or with them; symbols that a penalty pushes down.
    ratios, errors = [], []
    seen = torch.zeros(len(prompts), level.vocab_size, dtype=torch.bool)
    for i, prompt_ids in enumerate(prompts):
        scored = {name: values[i] for name, values in log_probs.items()}
        values = _ratios(level, prompt_ids, scored)
        error = "the ratios that are given for the prompt hold NaN" if values.isnan().any() else ""
        if broken := [name for name, nats in scored.items() if nats.isnan().any()]:
            broken_logits = f"the {broken[-1]} model's logits over the prompt are NaN or +inf"
            error = level.outgrown(streams, rows[i]) or broken_logits
        ratios.append(UNSCORED if error else values)
        errors.append(error)
        seen[i, prompt_ids] = True
    logits = {name: prompt.logits for name, prompt in read.items()}
    device = work_device(level.pair.safe.device)
    return PromptReading(logits, ratios, errors, num_forwards, uploaded(seen, device))


def _read_each_once(stream: Stream, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
    if not isinstance(stream, RowStream):
        return stream.read(prompts, rows)
    # Each prompt is read into the row of the first that is equal, and copied to the others.
    first: dict[tuple[int, ...], int] = {}
    firsts = [first.setdefault(tuple(prompt), i) for i, prompt in enumerate(prompts)]
    unique = list(first.values())
    read = stream.read([prompts[i] for i in unique], [rows[i] for i in unique])
    if len(unique) == len(prompts):
        return read
    for i in unique:
        stream.cache.copy(rows[i], [rows[j] for j, equal in enumerate(firsts) if equal == i != j])
    order = [unique.index(i) for i in firsts]
    log_probs = [read.token_log_probs[at] for at in order]
    return PromptLogits(read.logits[order], log_probs, read.num_forwards)


def _read_apart(level: Level, prompts: list[list[int]]) -> dict[str, PromptLogits]:
    """Read prompts by streams that are dropped again; by "safe" and "risky"."""
    if not prompts:
        return {}
    streams = _scoring_streams(level, prompts)
    return {n: stream.read(prompts, list(range(len(prompts)))) for n, stream in streams.items()}


def measured_ratios(level: Level, batches: Iterable[list[list[int]]]) -> PromptRatios:
    """The ratios of prompts, to be kept; a prompt whose logits are NaN has one ratio, NaN, by which
    it fails alone where it is decoded."""
    ratios = PromptRatios(ratio_source(level))
    for prompts in batches:
        streams = _scoring_streams(level, prompts)
        read = read_prompts(level, streams, prompts, list(range(len(prompts))))
        for prompt, values, error in zip(prompts, read.ratios, read.errors, strict=True):
            failed = torch.tensor([math.nan], dtype=torch.float64)
            ratios.by_prompt[prompt_digest(prompt)] = failed if error else values
    return ratios


def _scoring_streams(level: Level, prompts: list[list[int]]) -> Mapping[str, Stream]:
    longest = max(map(len, prompts))
    return level.open_streams(len(prompts), longest, SamplingConfig(), scores_prompts=True)


def ratio_source(level: Level) -> dict[str, Any]:
    """All that decides the ratios of a prompt but its symbols, as plain JSON values."""
    pair = level.pair
    return {
        "level": level.name,
        **{f"{name} model": fingerprint for name, fingerprint in pair.fingerprints.items()},
        **{f"{name} dtype": str(model.dtype) for name, model in pair.models.items()},
        "quantization": pair.quantization,
        "special tokens": list(level.special_token_ids),
        "sampling": "unwarped",
        **level.settings(),
    }


def _ratios(level: Level, prompt: list[int], log_probs: dict[str, Tensor]) -> Tensor:
    """The known ratios of a prompt, measured ones, or none where the streams score no prompts."""
    if level.prompt_ratios is not None:
        return level.prompt_ratios.of(prompt)
    if not all(len(log_probs.get(name, ())) for name in BOTH):
        return UNSCORED
    special = torch.tensor(level.special_token_ids, dtype=torch.long)
    ratios = log_likelihood_ratios(log_probs["risky"], log_probs["safe"])
    return level.symbols_per_token * ratios[~torch.isin(torch.tensor(prompt)[1:], special)]
