"""Forged ledgers with the right hash are refused: in what they say of themselves, and by replay."""

import dataclasses
import json
import math
from itertools import product

import pytest
from forged_ledgers import (
    F,
    H,
    at_new_caps,
    changed,
    lines_of,
    moved,
    put,
    refusal,
    restated,
    summed_up,
    with_budgets,
    write,
    write_lines,
)

from anchored import (
    RCAD,
    Anchored,
    Decoder,
    Ledger,
    Pathwise,
    RiskyOnly,
    verify,
    with_divergences,
)

PROMPT = "the keeper of the lamp wrote"
NAN = math.nan


@pytest.fixture(scope="module")
def ledgers(pair) -> dict[str, Ledger]:
    """Honest ones, by what they are good for."""

    def decoded(rule, seed=7, **settings) -> Ledger:
        (result,) = Decoder(pair, rule).generate(PROMPT, max_new_tokens=12, seed=seed, **settings)
        return result.ledger

    return {
        "kl": decoded(Anchored(k=1.0)),
        "max": decoded(Anchored(k=1.0, divergence="max")),
        "capped": decoded(Anchored(k=5.2, bank=0.2, debt="none")),
        "banked max": decoded(Anchored(k=0.3, bank=4.0, divergence="max", debt="none")),
        # Of its tokens 0, 2, 5, 6 and 9 cost less than they might, and 2, 6 and 9 give nats back.
        "pathwise": decoded(Pathwise(k=0.3, bank=4.0, debt="none"), seed=3),
        "greedy": decoded(Anchored(k=1.0), temperature=0.0),
        "risky": decoded(RiskyOnly()),
        "alone": decoded(RiskyOnly(compared=False)),
        "rcad": decoded(RCAD(), passages="salt and rain"),
        "longer": with_divergences(decoded(Anchored(k=1.0)), pair),
    }


def budget_times_ten(header, steps, footer):
    header["K"] *= 10
    header["bound"] = header["K"] - header["debt"]


def budgets_of_no_bank(header, steps, footer):
    bank = header.pop("bank")
    with_budgets(header, steps, footer)
    header["bank"] = bank


def savings_spent(header, steps, footer):
    """The last step spends all that it might without a bank."""
    budgets_of_no_bank(header, steps, footer)
    steps[-1]["spend"] = steps[-1]["budget"]
    summed_up(header, steps, footer)


def relabelled(rule, charge, **settings):
    def change(header, steps, footer):
        kept = {
            name: header["rule_settings"][name] for name in ("k", "bank", "debt", "debt_window")
        }
        header.update(rule=rule, charge=charge, rule_settings=kept | settings)

    return change


def swapped(first, second):
    def change(header, steps, footer):
        one, other = steps[first], steps[second]
        steps[first], steps[second] = other | {"step": first}, one | {"step": second}
        with_budgets(header, steps, footer)

    return change


def broken_off(num_steps):
    def change(header, steps, footer):
        del steps[num_steps:]
        footer["finish_reason"] = "aborted"
        with_budgets(header, steps, footer)

    return change


def sampled(**changes):
    return put(H, sampling=lambda settings: settings | changes)


FORGERIES = {
    # fields
    "unknown in the header": ("kl", put(H, color="red"), "line 1: unknown field color"),
    "missing in the header": (
        "kl",
        lambda header, steps, footer: header.pop("debt"),
        "line 1: field debt is missing",
    ),
    "null in the header": ("kl", put(H, k=None), "line 1: k must be a number, got None"),
    "text for a number": ("kl", put(0, spend="much"), "line 2: spend must be a number, got 'much'"),
    "a flag for a number": ("kl", put(H, horizon=True), "horizon must be a whole number, got True"),
    "a fraction for a token": (
        "kl",
        put(1, token_id=1.5),
        "token_id must be a whole number, got 1.5",
    ),
    "a token of many digits": ("kl", put(1, token_id=10**30), "a whole number of 64 bits"),
    "a horizon of many digits": (
        "kl",
        put(H, horizon=10**400),
        "horizon must be a whole number of 64 bits",
    ),
    "prompt of texts": ("kl", put(H, prompt_token_ids=["a"]), "ids[0] must be a whole number"),
    "a token below": ("kl", put(1, token_id=-1), "step 1: token -1 is not in [0, 320)"),
    "a token beyond": ("kl", put(1, token_id=320), "step 1: token 320 is not in [0, 320)"),
    "a prompt beyond": (
        "kl",
        put(H, prompt_token_ids=[0, 999]),
        "prompt: token ids must be in [0, 320)",
    ),
    "no prompt": ("kl", put(H, prompt_token_ids=[]), "prompt: the prompt is empty"),
    "a debt below 0 at least": ("kl", put(H, least_debt=-5.0), "least_debt must be >= 0, got -5.0"),
    "a seed below": ("kl", put(H, seed=-1), "seed must be in [0, 2**63), got -1"),
    "bytes": (
        "kl",
        put(H, level="byte"),
        "tokenizers, or their stop tokens, are not the recorded ones",
    ),
    "bytes with settings": (
        "kl",
        put(H, level="byte", level_settings={"prefetch": "4"}),
        "level_settings: prefetch must be a whole number, got '4'",
    ),
    "settings of no level": ("kl", put(H, level_settings={"mode": "raw"}), "level settings are {}"),
    "rule without settings": ("kl", put(H, rule_settings={}), "give either k or K"),
    "rule with others": ("kl", put(H, rule_settings={"q": 1}), "rule_settings: unknown field q"),
    "rule with a text": ("kl", put(H, rule_settings={"k": "1"}), "rule_settings: k must be"),
    "a sampling without": ("kl", put(H, sampling={}), "sampling: field 'min_p' is missing"),
    "top_k a fraction": (
        "kl",
        sampled(top_k=2.5),
        "sampling: top_k must be a whole number, got 2.5",
    ),
    "a temperature below": ("kl", sampled(temperature=-1.0), "temperature must be finite and >= 0"),
    # certified, for what is not, and what is no answer at all
    "greedy certified": ("greedy", put(F, certified=True), "certified must be False"),
    "risky certified": ("risky", put(F, certified=True), "certified must be False"),
    "certified yes": ("kl", put(F, certified="yes"), "certified must be true or false"),
    "certified denied": ("kl", put(F, certified=False), "certified must be True"),
    # models
    "no fingerprints": ("kl", put(H, fingerprints={}), "fingerprints must name"),
    "another model": (
        "kl",
        put(H, fingerprints=lambda hashes: hashes | {"risky": "0" * 64}),
        "the risky model is not the recorded one",
    ),
    "dtype": ("kl", put(H, dtype="float32"), "dtype is float64, recorded float32"),
    "quantized": ("kl", put(H, quantization={"safe": "int8"}), "quantized are"),
    # NaN, with which every comparison is false
    "log p NaN": ("kl", put(2, log_prob=NAN), "not JSON"),
    "spend NaN": ("kl", put(2, spend=NAN), "not JSON"),
    "ratio NaN": ("longer", put(H, prompt_ratios=lambda nats: [*nats[1:], NAN]), "not JSON"),
    # weights
    "weight halved": ("kl", put(4, weight=lambda weight: weight / 2), "step 4: spend differs"),
    "weight of max halved": (
        "max",
        put(4, weight=lambda weight: weight / 2),
        "step 4: weight differs",
    ),
    "weight 7": ("kl", put(3, weight=7.0), "weight 7.0 is not in"),
    # several samples, earlier text
    "no sequences": ("kl", put(H, num_return_sequences=0), "must be >= 1, got 0"),
    "prior bound -5": ("kl", put(H, prior_bound=-5.0), "prior_bound must be >= 0"),
    "weight of risky": ("risky", put(3, weight=0.0), "step 3: weight differs"),
    "budget of risky": ("risky", put(3, budget=-1.0), "step 3: the budget does not follow"),
    "an alpha that overflows": ("rcad", put(H, rule_settings={"alpha": 1e300}), "spend differs"),
    # budget
    "K times 10": ("kl", budget_times_ten, "are not those of anchored"),
    "k alone": ("kl", put(H, k=0.5), "are not those of anchored"),
    "bound": ("kl", put(H, bound=99.0), "bound 99.0 does not follow"),
    "horizon 0": ("kl", put(H, horizon=0), "horizon must be >= 1"),
    "horizon 1": ("kl", restated(horizon=1), "after 12 steps, the horizon 1"),
    "horizon 1e6": ("kl", restated(horizon=10**6), "after 12 steps, the horizon 1000000"),
    "horizon 1e6 of risky": ("risky", put(H, horizon=10**6), "the horizon 1000000"),
    "negative spend": ("kl", [put(11, spend=-(2.0**-32)), summed_up], "step 11: spend -2.328"),
    "budget": ("kl", put(3, budget=99.0), "step 3: the budget does not follow"),
    "a budget of a quantum more": (
        "kl",
        put(3, budget=lambda nats: nats + 2.0**-32),
        "step 3: the budget does not follow",
    ),
    # a bank
    "bank dropped": ("capped", lambda h, s, f: h.pop("bank"), "bank None over 12 steps are not"),
    "bank doubled": ("capped", put(H, bank=1.0), "bank 1.0 over 12 steps are not those"),
    "bank below 0": (
        "capped",
        put(H, bank=-1.0, rule_settings=lambda settings: settings | {"bank": -1.0}),
        "bank must be in [0, 1048576] nats, got -1.0",
    ),
    "bank a text": ("capped", put(H, bank="much"), "line 1: bank must be a number"),
    "a bank of others": ("kl", put(H, bank=0.5), "bank 0.5 over 12 steps are not those"),
    "budgets of no bank": ("capped", budgets_of_no_bank, "the budget does not follow"),
    "spends of no bank": ("capped", savings_spent, "the budget does not follow"),
    "spends of none, budgets of one": ("capped", [savings_spent, with_budgets], "is not in [0, "),
    "a larger bank": ("capped", restated(bank=4.0), "differs"),
    # what was drawn is charged
    "a cost less, another more": (
        "pathwise",
        at_new_caps(moved(at_2=-0.01, at_5=0.01)),
        "step 2: spend differs by 0.01 nats",
    ),
    "a cost more, another less": (
        "pathwise",
        at_new_caps(moved(at_2=0.01, at_5=-0.01)),
        "step 2: spend differs by 0.01 nats",
    ),
    "more given back": ("pathwise", moved(at_2=-0.5), "step 2: spend differs"),
    "given back at a cap": ("pathwise", moved(at_3=-1e-6), "step 3: spend differs"),
    "a cost apart from log p": ("pathwise", put(5, log_prob=lambda p: p - 1e-6), "differs by 1e-"),
    "a start too full": ("pathwise", at_new_caps(restated(bank=6.0)), "step 0: spend differs"),
    "a start that is not full": (
        "pathwise",
        at_new_caps(restated(debt=1.0, least_debt=1.0)),
        "step 0: spend differs",
    ),
    "a smaller k": ("pathwise", at_new_caps(restated(k=0.25)), "step 0: spend differs"),
    "two steps swapped": ("pathwise", swapped(5, 6), "step 5: "),
    "a worst token": ("pathwise", put(H, charge="worst"), "charges drawn, recorded worst"),
    "no charge": ("pathwise", lambda h, s, f: h.pop("charge"), "charges drawn, recorded None"),
    "drawn called worst": (
        "pathwise",
        relabelled("anchored_inf", "worst", K=None, budget="adaptive", divergence="max"),
        "step 2: spend -1.2",
    ),
    "worst called drawn": ("banked max", relabelled("pathwise", "drawn"), "differs"),
    "weight of a drawn token": ("pathwise", put(4, weight=lambda w: w / 2), "step 4: weight"),
    "another temperature": ("pathwise", sampled(temperature=0.8), "differs"),
    "a negative worst": ("max", [put(11, spend=-(2.0**-32)), summed_up], "step 11: spend -2.328"),
    # the end
    "stop token": ("kl", put(F, finish_reason="stop_token"), "is 'stop_token', the last"),
    "own reason": ("kl", put(F, finish_reason="done"), "finish_reason must be one of"),
    "error": ("kl", put(F, finish_reason="error"), "certified must be False"),
    "last step dropped": (
        "kl",
        [lambda h, s, f: s.pop(), summed_up],
        "after 11 steps, the horizon 12",
    ),
    "all steps dropped": (
        "kl",
        [lambda h, s, f: s.clear(), summed_up],
        "after 0 steps, the horizon 12",
    ),
    "goes on after the end": ("kl", put(3, token_id=1), "step 3 is the end symbol"),
    # sums and counts
    "total": ("kl", put(F, total_spend=0.0), "the footer counts 0.0 nats"),
    "no safe forwards": ("kl", put(F, safe_forwards=0), "0 safe forwards for 12 tokens"),
    "no risky forwards": ("kl", put(F, risky_forwards=0), "0 risky forwards for 12"),
    "minus forwards": ("kl", put(F, risky_forwards=-1), "risky_forwards must be >= 0"),
    "skipped": ("kl", put(F, skipped_risky=13), "13 steps without the risky model"),
    "accepted": ("kl", put(F, accepted=1), "1 drafts accepted of 0"),
    "minus drafted": ("kl", put(F, drafted=-1), "drafted must be >= 0"),
    # names
    "rule name": ("kl", put(H, rule="anchored_inf"), "rule must be anchored with these"),
    "unknown rule": ("kl", put(H, rule="free"), "rule must be one of"),
    "sampler": ("kl", put(H, sampler="coupled/9"), "sampler must be"),
    "level": ("kl", put(H, level="word"), 'level must be "token" or "byte"'),
    "stop tokens": ("kl", put(H, stop_token_ids=[5]), "stop tokens are"),
    # what a replay finds
    "debt": ("kl", restated(debt=0.0), "debt 0.0, replayed"),
    "token": ("kl", put(5, token_id=17), "step 5: log_prob differs"),
    "accepted flag": ("kl", put(5, accepted=lambda flag: not flag), "the seed gives another"),
    "log p": ("kl", put(5, log_prob=-0.5), "step 5: log_prob differs"),
    "log p_s": ("kl", put(5, safe_log_prob=-0.5), "step 5: safe_log_prob differs"),
    "log p of greedy": ("greedy", put(5, log_prob=-0.5), "step 5: log_prob differs"),
    "last spend": ("kl", [put(11, spend=0.0), summed_up], "step 11: spend differs"),
    "token of one model": ("alone", put(5, token_id=17), "step 5: log_prob differs"),
    "log p of one model": ("alone", put(5, log_prob=-0.5), "step 5: log_prob differs"),
    "log p_s of one model": ("alone", put(5, safe_log_prob=-0.5), "risky_only reads risky"),
    "spend of risky": ("risky", [put(5, spend=0.0), summed_up], "step 5: spend differs"),
    "seed": ("kl", put(H, seed=8), "the seed gives another token"),
    "KL of p*": ("longer", put(4, kl_star_risky=0.5), "step 4: kl_star_risky differs"),
    "KL of p_r": ("longer", put(4, kl_risky_safe=0.5), "step 4: kl_risky_safe differs"),
    "ratio": (
        "longer",
        put(H, prompt_ratios=lambda nats: [nats[0] + 0.01, *nats[1:]]),
        "prompt ratios differ by 0.01 nats",
    ),
    "ratio dropped": ("longer", put(H, prompt_ratios=lambda nats: nats[1:]), "ratios, replayed"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(ledgers, pair, tmp_path, name):
    kind, changes, message = FORGERIES[name]
    changes = changes if isinstance(changes, list) else [changes]
    path = write(changed(ledgers[kind], *changes), tmp_path / "forged.jsonl")
    reason = refusal(path, pair)
    assert message in reason and "\n" not in reason


def test_what_they_were_forged_from_stands(ledgers, pair, tmp_path):
    for kind, ledger in ledgers.items():
        path = write(lines_of(ledger), tmp_path / "honest.jsonl")
        assert (kind, refusal(path, pair)) == (kind, "")


@pytest.mark.parametrize("name", ["rule", "spend", "num_steps", "seed"])
def test_a_field_that_stands_twice_is_refused(ledgers, pair, tmp_path, name):
    lines = [json.dumps(record) for record in lines_of(ledgers["kl"])]
    place = next(i for i, line in enumerate(lines) if f'"{name}": ' in line)
    lines[place] = lines[place].replace(f'"{name}": ', f'"{name}": 0, "{name}": ', 1)
    reason = refusal(write_lines(lines, tmp_path / "forged.jsonl"), pair)
    assert f"has {name!r} twice" in reason


UNKNOWABLE = {
    "sequences": [put(H, num_return_sequences=50)],
    "prior bound": [put(H, prior_bound=5.0)],
    "forwards": [put(F, safe_forwards=1000)],
    "work": [put(F, work={"safe": {"num_nodes": 3}})],
    "a stop string, and so the horizon": [
        put(F, finish_reason="stop_string"),
        restated(horizon=10**6),
    ],
}


@pytest.mark.parametrize(("name", "kind"), [*product(UNKNOWABLE, ("kl", "pathwise"))])
def test_what_no_replay_can_know_stands(ledgers, pair, tmp_path, name, kind):
    # As docs/certificate.md says; a verifier that learns more moves it to FORGERIES.
    path = write(changed(ledgers[kind], *UNKNOWABLE[name]), tmp_path / "forged.jsonl")
    assert refusal(path, pair) == ""


@pytest.mark.parametrize("name", ["log_prob", "spend", "weight"])
def test_nan_in_memory_is_refused(ledgers, pair, name):
    honest = ledgers["kl"]
    steps = [dataclasses.replace(honest.steps[0], **{name: NAN}), *honest.steps[1:]]
    report = verify(dataclasses.replace(honest, steps=steps), pair)
    assert report.failures == [f"step 0: {name} must be a number, got nan"]
    assert not report


def two_ends(ledger: Ledger) -> Ledger:
    end = ledger.header.stop_token_ids[0]
    steps = [*ledger.steps[:-2], *(dataclasses.replace(s, token_id=end) for s in ledger.steps[-2:])]
    return dataclasses.replace(ledger, steps=steps, finish_reason="stop_token")


def one_more_step(ledger: Ledger) -> Ledger:
    header = dataclasses.replace(ledger.header, horizon=len(ledger.steps) - 1)
    return dataclasses.replace(ledger, header=header, finish_reason="stop_string")


def a_step_skipped(ledger: Ledger) -> Ledger:
    last = dataclasses.replace(ledger.steps[-1], step=len(ledger.steps))
    return dataclasses.replace(ledger, steps=[*ledger.steps[:-1], last])


def endlessly_given_back(ledger: Ledger) -> Ledger:
    steps = [dataclasses.replace(ledger.steps[0], spend=-math.inf), *ledger.steps[1:]]
    return dataclasses.replace(ledger, steps=steps)


def more_accepted_than_drawn(ledger: Ledger) -> Ledger:
    return dataclasses.replace(ledger, drafted=99, accepted=len(ledger.steps) + 1)


@pytest.mark.parametrize(
    ("kind", "forge", "message"),
    [
        ("kl", two_ends, "step 10 is the end symbol, 12 steps are recorded"),
        ("kl", one_more_step, "'stop_string' after 12 steps, the horizon 11"),
        ("kl", a_step_skipped, "step 11 is numbered 12"),
        ("kl", more_accepted_than_drawn, "13 drafts accepted of 99, in 12 steps"),
        ("pathwise", endlessly_given_back, "step 0: spend -inf is not in"),
    ],
)
def test_a_ledger_in_memory_contradicts_itself_at_its_edges(ledgers, pair, kind, forge, message):
    assert message in "; ".join(verify(forge(ledgers[kind]), pair).failures)
