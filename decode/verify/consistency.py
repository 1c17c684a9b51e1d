"""Checks of a ledger by itself, and against its models, before any model runs."""

import math
from collections.abc import Iterator, Mapping

from ...fields import INT_LIMIT, field_error, field_values, from_record
from ...kernels.spend import BUDGET_CAP
from ..engine.prompts import prompts_by_stream
from ..engine.request import recorded_key
from ..ledger import SCHEMA, Ledger, LedgerFooter, LedgerHeader, LedgerStep, keeps_budget
from ..levels.level import Level
from ..pair.model_pair import ModelPair
from ..rules.claims import opened
from ..rules.registry import make_rule
from ..rules.rule import OpenRule
from ..settings import SamplingConfig
from .replay import recorded_budget, recorded_level
from .rounding import least_temperature, temperature_error

LEAST = {"num_return_sequences": 1, "horizon": 1, "debt": 0, "least_debt": 0, "prior_bound": 0}
"""The least values of a header's fields."""

FINISH_REASONS = ("length", "stop_token", "stop_string", "aborted", "error")


def inconsistencies(ledger: Ledger, pair: ModelPair) -> list[str]:
    """Everything wrong with a ledger by itself or for this pair, a line each; [] for nothing.

    No model runs: what only a replay can tell (debt, spends, log-probabilities, draws) is not
    looked at. Never raises for a ledger whatever it holds.
    """
    if failures := _before_the_rule(ledger):
        return failures
    header = ledger.header
    try:
        level = recorded_level(pair, header.level, header.level_settings)
        rule = opened(make_rule(header.rule, header.rule_settings), level)
    except ValueError as error:
        return [*_of_models(header, pair), str(error)]
    of_symbols = list(_of_symbols(ledger, level))
    return [
        *_of_models(header, pair),
        *of_symbols,
        *_by_the_rule(ledger, rule),
        *_of_temperature(ledger, rule, pair),
        *([] if of_symbols else _of_chat_prompts(ledger, rule, level)),
        *_of_comparisons(ledger, rule, level),
    ]


def contradictions(ledger: Ledger, level: Level) -> list[str]:
    """Everything wrong with a ledger of this level by itself, whichever models wrote it.

    Raises ValueError for a rule that cannot decode at the level.
    """
    if failures := _before_the_rule(ledger):
        return failures
    header = ledger.header
    rule = opened(make_rule(header.rule, header.rule_settings), level)
    return [*_by_the_rule(ledger, rule), *_of_chat(header.chat_prompts or {}, rule, level)]


def _before_the_rule(ledger: Ledger) -> list[str]:
    return list(_of_fields(ledger)) or list(_of_settings(ledger.header))


def _by_the_rule(ledger: Ledger, rule: OpenRule) -> list[str]:
    return [
        *_of_end(ledger, rule),
        *_of_budget(ledger, rule),
        *_of_counts(ledger, rule),
        *_of_stream(ledger.header),
    ]


def _of_fields(ledger: Ledger) -> Iterator[str]:
    """Types and ranges of all fields."""
    if error := field_error(LedgerHeader, field_values(ledger.header)):
        yield f"header: {error}"
    for number, step in enumerate(ledger.steps):
        if error := field_error(LedgerStep, field_values(step)):
            yield f"step {number}: {error}"
            return  # the footer sums up steps
    if error := field_error(LedgerFooter, field_values(ledger.footer)):
        yield f"footer: {error}"


def _of_settings(header: LedgerHeader) -> Iterator[str]:
    if header.schema != SCHEMA:
        yield f"schema must be {SCHEMA}, got {header.schema!r}"
    if not 0 <= header.seed < INT_LIMIT:
        yield f"seed must be in [0, 2**63), got {header.seed}"
    for name, least in LEAST.items():
        value = getattr(header, name)
        if value is not None and not value >= least:
            yield f"{name} must be >= {least}, got {value}"
    yield from _of_rule(header)
    yield from _of_sampling(header)


def _of_rule(header: LedgerHeader) -> Iterator[str]:
    try:
        rule = make_rule(header.rule, header.rule_settings)
    except ValueError as error:
        yield str(error)
        return
    if rule.name != header.rule:
        yield f"rule must be {rule.name} with these settings, got {header.rule}"


def _of_sampling(header: LedgerHeader) -> Iterator[str]:
    """Every setting is recorded: a default here may be another one day."""
    try:
        settings = from_record(SamplingConfig, header.sampling).as_dict()
    except ValueError as error:
        yield f"sampling: {error}"
        return
    if missing := settings.keys() - header.sampling.keys():
        yield f"sampling: field {min(missing)!r} is missing"


def _of_models(header: LedgerHeader, pair: ModelPair) -> Iterator[str]:
    if header.fingerprints.keys() != pair.fingerprints.keys():
        yield f"fingerprints must name safe and risky, got {sorted(header.fingerprints)}"
        return
    for name, fingerprint in pair.fingerprints.items():
        if (recorded := header.fingerprints[name]) != fingerprint:
            yield (
                f"the {name} model is not the recorded one "
                f"({fingerprint[:12]}, recorded {recorded[:12]})"
            )
    if pair.quantization != header.quantization:
        yield f"quantized are {pair.quantization}, recorded {header.quantization}"
    if (dtype := str(pair.dtype).removeprefix("torch.")) != header.dtype:
        yield f"the models' dtype is {dtype}, recorded {header.dtype}"


def _of_symbols(ledger: Ledger, level: Level) -> Iterator[str]:
    header = ledger.header
    if level.settings() != header.level_settings:
        yield f"level settings are {level.settings()}, recorded {header.level_settings}"
    if header.stop_token_ids not in (level.stop_token_ids, []):  # none of a text that goes on
        yield f"stop tokens are {level.stop_token_ids}, recorded {header.stop_token_ids}"
    try:
        level.encode(header.prompt_token_ids)
    except ValueError as error:
        yield f"prompt: {error}"
        return
    for number, step in enumerate(ledger.steps):
        if not 0 <= step.token_id < level.vocab_size:
            yield f"step {number}: token {step.token_id} is not in [0, {level.vocab_size})"


def _of_stream(header: LedgerHeader) -> Iterator[str]:
    try:
        recorded_key(header)
    except ValueError as error:
        yield str(error)


def _of_chat_prompts(ledger: Ledger, rule: OpenRule, level: Level) -> Iterator[str]:
    """The prompts that the rule's streams read, and its words at this level."""
    header = ledger.header
    prompt, chat_prompts = header.prompt_token_ids, header.chat_prompts
    try:
        stream_prompts = prompts_by_stream(level, rule, prompt, header.passage, chat_prompts)
    except ValueError as error:
        yield str(error)
        return
    if chat_prompts is not None:
        yield from _of_chat(chat_prompts, rule, level)
    too_long = level.too_long(max([prompt, *stream_prompts.values()], key=len), len(ledger.steps))
    if ledger.steps and too_long:
        yield too_long
    if header.words != rule.used_words:
        yield f"the words that {rule.name} uses are {rule.used_words}, recorded {header.words}"


def _of_chat(chat_prompts: Mapping[str, list[int]], rule: OpenRule, level: Level) -> Iterator[str]:
    """Only what the risky model reads may differ: the bound is against p_s after the prompt."""
    num_rows = level.pair.risky.config.get_text_config().vocab_size
    for name, token_ids in chat_prompts.items():
        if level.name != "token" or name not in rule.streams or rule.streams[name].model != "risky":
            yield f"{name} cannot read something else than the prompt at {level.name} level"
        elif not token_ids or not all(0 <= token_id < num_rows for token_id in token_ids):
            yield f"{name} must read tokens in [0, {num_rows})"


def _of_comparisons(ledger: Ledger, rule: OpenRule, level: Level) -> Iterator[str]:
    """Figures that need both models to say how likely each symbol is."""
    if level.compares_models:
        return
    if not rule.retokenizes:
        yield f"the rule {rule.name} compares both models, whose tokens differ"
    steps = [(step.kl_risky_safe, step.kl_star_risky) for step in ledger.steps]
    if ledger.header.prompt_ratios is not None or any(nats != (None, None) for nats in steps):
        yield "divergences and ratios are recorded, of models whose tokens differ"


def _of_budget(ledger: Ledger, rule: OpenRule) -> Iterator[str]:
    header = ledger.header
    try:
        budget = recorded_budget(header, rule)
    except ValueError as error:
        yield str(error)
        return
    if budget.bound != header.bound:
        yield f"bound {header.bound} does not follow from K and debt"
    if rule.charge != header.charge:
        yield f"the rule {rule.name} charges {rule.charge}, recorded {header.charge}"
    allowances = budget.allowances(step.spend for step in ledger.steps)
    for number, (step, nats) in enumerate(zip(ledger.steps, allowances, strict=True)):
        if step.step != number:
            yield f"step {number} is numbered {step.step}"
        if step.budget != nats:
            yield f"step {number}: the budget does not follow from the spends"
        # Drawn tokens give back what they like, but no more than a float64 sum takes exactly.
        least = -BUDGET_CAP if rule.charge == "drawn" else 0.0
        if not step.spend >= least or (rule.is_certified and not step.spend <= step.budget):
            yield f"step {number}: spend {step.spend} is not in [{least:g}, {step.budget}]"
        if (step.safe_log_prob is not None) != ("safe" in rule.streams):
            yield f"step {number}: safe_log_prob {step.safe_log_prob}, {rule.name} reads " + (
                " and ".join(rule.streams)
            )
        if not 0.0 <= step.weight <= 1.0:
            yield f"step {number}: weight {step.weight} is not in [0, 1]"
    if rule.is_certified and not (ledger.is_within_bound and math.isfinite(header.bound)):
        yield f"spent {ledger.spent}, bound {header.bound}"


def _of_end(ledger: Ledger, rule: OpenRule) -> Iterator[str]:
    """Stop strings are not recorded: a text may end by one anywhere but at an end symbol."""
    header, reason, num_steps = ledger.header, ledger.finish_reason, len(ledger.steps)
    ends = [token in header.stop_token_ids for token in ledger.token_ids]
    if reason not in FINISH_REASONS:
        yield f"finish_reason must be one of {', '.join(FINISH_REASONS)}, got {reason!r}"
    if True in ends[:-1]:
        yield f"step {ends.index(True)} is the end symbol, {num_steps} steps are recorded"
    if (ends[-1:] == [True]) != (reason == "stop_token"):
        yield f"finish_reason is {reason!r}, the last symbol {ledger.token_ids[-1:]}"
    if num_steps > header.horizon or (reason == "length" and num_steps != header.horizon):
        yield f"finish_reason is {reason!r} after {num_steps} steps, the horizon {header.horizon}"
    if num_steps == 0 and reason != "error":
        yield f"finish_reason is {reason!r}, but there are no steps"
    is_greedy = SamplingConfig(**header.sampling).is_greedy
    certified = rule.is_certified and not is_greedy and reason != "error"
    # Spends that break a budget are failures of their steps, however the ledger is called.
    if not keeps_budget(ledger.header, ledger.steps):
        certified = certified and ledger.claims_bound
    if ledger.claims_bound is not certified:
        yield f"certified must be {certified}, got {ledger.claims_bound}"


def _of_temperature(ledger: Ledger, rule: OpenRule, pair: ModelPair) -> Iterator[str]:
    temperature = SamplingConfig(**ledger.header.sampling).temperature
    least = least_temperature(model.dtype for model in pair.models.values())
    if rule.is_certified and (error := temperature_error(temperature, least)):
        yield error


def _of_counts(ledger: Ledger, rule: OpenRule) -> Iterator[str]:
    """The least numbers that any way of decoding needs; how many there were is not known again."""
    counts = ("safe_forwards", "risky_forwards", "skipped_risky", "drafted", "accepted")
    for name in counts:
        if getattr(ledger, name) < 0:
            yield f"{name} must be >= 0, got {getattr(ledger, name)}"
    num_steps = len(ledger.steps)
    if ledger.accepted > min(ledger.drafted, num_steps):
        yield f"{ledger.accepted} drafts accepted of {ledger.drafted}, in {num_steps} steps"
    if ledger.skipped_risky > num_steps:
        yield f"{ledger.skipped_risky} steps without the risky model, of {num_steps}"
    if ledger.header.level != "token":
        return  # a forward gives many bytes
    if "safe" in rule.streams and ledger.safe_forwards < num_steps:
        yield f"{ledger.safe_forwards} safe forwards for {num_steps} tokens"
    # A risky forward gives the distribution of the next token, and of those after accepted drafts.
    if (
        "risky" in rule.streams
        and ledger.risky_forwards + ledger.accepted + ledger.skipped_risky < num_steps
    ):
        yield f"{ledger.risky_forwards} risky forwards for {num_steps} tokens"
