"""Forged ledgers with the right hash are refused: in what they say of themselves, and by replay."""

import math
from dataclasses import replace

import pytest
from forged_ledgers import (
    F,
    H,
    at_new_caps,
    changed,
    moved,
    put,
    refusals,
    restated,
    summed_up,
    with_budgets,
    write,
)

from anchored import RCAD, Anchored, Decoder, Ledger, Pathwise, RiskyOnly, verify, with_divergences

QUANTUM = 2.0**-32


@pytest.fixture(scope="module")
def ledgers(pair) -> dict[str, Ledger]:
    """Honest ones, by what they are good for."""

    def decoded(rule, seed=7, **settings) -> Ledger:
        prompt, settings = "the keeper of the lamp wrote", settings | {"max_new_tokens": 12}
        (result,) = Decoder(pair, rule).generate(prompt, seed=seed, **settings)
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


def savings_spent(header, steps, footer):
    """The last step spends all that it might without a bank."""
    with_budgets(header | {"bank": None}, steps, footer)
    steps[-1]["spend"] = steps[-1]["budget"]
    summed_up(header, steps, footer)


def relabelled(rule, charge, **settings):
    def change(header, steps, footer):
        kept = {key: header["rule_settings"][key] for key in ("k", "bank", "debt", "debt_window")}
        header.update(rule=rule, charge=charge, rule_settings=kept | settings)

    return change


def swapped(first, second):
    def change(header, steps, footer):
        one, other = steps[first], steps[second]
        steps[first], steps[second] = other | {"step": first}, one | {"step": second}
        with_budgets(header, steps, footer)

    return change


def sampled(**changes):
    return put(H, sampling=lambda settings: settings | changes)


def last_dropped(header, steps, footer):
    steps.pop()
    summed_up(header, steps, footer)


BY_THEMSELVES = {
    # types and ranges
    "unknown field": ("kl", put(H, color="red"), "line 1: unknown field color"),
    "missing field": ("kl", lambda h, s, f: h.pop("debt"), "line 1: field debt is missing"),
    "text": ("kl", put(0, spend="much"), "line 2: spend must be a number, got 'much'"),
    "not JSON": ("kl", put(2, log_prob=math.nan), "not JSON"),
    "token": ("kl", put(1, token_id=320), "step 1: token 320 is not in [0, 320)"),
    "prompt": ("kl", put(H, prompt_token_ids=[0, 999]), "prompt: token ids must be in [0, 320)"),
    "seed": ("kl", put(H, seed=-1), "seed must be in [0, 2**63), got -1"),
    "weight": ("kl", put(3, weight=7.0), "weight 7.0 is not in"),
    # what wrote them
    "level": ("kl", put(H, level="word"), 'level must be "token" or "byte"'),
    "bytes": ("kl", put(H, level="byte"), "or their stop tokens, are not the recorded ones"),
    "level settings": ("kl", put(H, level_settings={"mode": "raw"}), "level settings are {}"),
    "rule": ("kl", put(H, rule="free"), "rule must be one of"),
    "another rule": ("kl", put(H, rule="anchored_inf"), "rule must be anchored with these"),
    "rule settings": (
        "kl",
        put(H, rule_settings={"k": "1"}),
        "settings of rule anchored: k must be",
    ),
    "sampling": ("kl", sampled(top_k=2.5), "sampling: top_k must be a whole number, got 2.5"),
    "no sampling": ("kl", put(H, sampling={}), "sampling: field 'min_p' is missing"),
    "sampler": ("kl", put(H, sampler="coupled/9"), "sampler must be"),
    "stop tokens": ("kl", put(H, stop_token_ids=[5]), "stop tokens are"),
    "no models": ("kl", put(H, fingerprints={}), "fingerprints must name"),
    "another model": (
        "kl",
        put(H, fingerprints=lambda hashes: hashes | {"risky": "0" * 64}),
        "the risky model is not the recorded one",
    ),
    "dtype": ("kl", put(H, dtype="float32"), "dtype is float64, recorded float32"),
    "quantized": ("kl", put(H, quantization={"safe": "int8"}), "quantized are"),
    # certified or not
    "greedy": ("greedy", put(F, certified=True), "certified must be False"),
    "error": ("kl", put(F, finish_reason="error"), "certified must be False"),
    # budget, bank and charge
    "k": ("kl", put(H, k=0.5), "are not those of anchored"),
    "bound": ("kl", put(H, bound=99.0), "bound 99.0 does not follow"),
    "horizon": ("kl", put(H, horizon=0), "horizon must be >= 1"),
    "negative spend": ("kl", [put(11, spend=-QUANTUM), summed_up], "step 11: spend -2.328"),
    "budget": ("kl", put(3, budget=lambda n: n + QUANTUM), "step 3: the budget does not follow"),
    "bank": ("capped", put(H, bank=1.0), "bank 1.0 over 12 steps are not those"),
    "spends above": ("capped", [savings_spent, with_budgets], "is not in [0, "),
    "charge": ("pathwise", put(H, charge="worst"), "charges drawn, recorded worst"),
    "drawn called worst": (
        "pathwise",
        relabelled("anchored_inf", "worst", K=None, budget="adaptive", divergence="max"),
        "step 2: spend -1.2",
    ),
    "safe log p": ("alone", put(5, safe_log_prob=-0.5), "risky_only reads risky"),
    # the end, and counts
    "reason": ("kl", put(F, finish_reason="done"), "finish_reason must be one of"),
    "stop token": ("kl", put(F, finish_reason="stop_token"), "is 'stop_token', the last"),
    "too long": (
        "kl",
        [restated(horizon=11), put(F, finish_reason="stop_string")],
        "'stop_string' after 12 steps, the horizon 11",
    ),
    "last step dropped": ("kl", last_dropped, "after 11 steps, the horizon 12"),
    "goes on": ("kl", put(3, token_id=1), "step 3 is the end symbol"),
    "total": ("kl", put(F, total_spend=0.0), "the footer counts 0.0 nats"),
    "safe forwards": ("kl", put(F, safe_forwards=0), "0 safe forwards for 12 tokens"),
    "risky forwards": ("kl", put(F, risky_forwards=0), "0 risky forwards for 12"),
    "counts": ("kl", put(F, drafted=-1), "drafted must be >= 0"),
    "skipped": ("kl", put(F, skipped_risky=13), "13 steps without the risky model"),
    "accepted": ("kl", put(F, accepted=13, drafted=99), "13 drafts accepted of 99, in 12"),
}
half = {"weight": lambda weight: weight / 2}
BY_REPLAY = {
    # Several steps in one replay; a token changes what follows it, so it is the last one.
    "figures": (
        "kl",
        [
            *(put(4, **half), put(5, log_prob=-0.5), put(6, safe_log_prob=-0.5)),
            *(put(7, accepted=lambda flag: not flag), put(11, token_id=17, spend=0.0), summed_up),
        ],
        ["4: spend differs", "5: log_prob", "6: safe_log_prob", "7: the seed", "11: log_prob"],
    ),
    "a clipped weight": ("max", [put(4, **half)], ["4: weight differs"]),
    "greedy": ("greedy", [put(5, log_prob=-0.5)], ["5: log_prob differs"]),
    "one model": ("alone", [put(5, log_prob=-0.5)], ["5: log_prob differs"]),
    "uncertified": (
        "risky",
        [put(3, weight=0.0), put(5, spend=0.0), summed_up],
        ["3: weight differs", "5: spend differs"],
    ),
    "an alpha that overflows": ("rcad", [put(H, rule_settings={"alpha": 1e300})], ["spend"]),
    "passage": ("rcad", [put(H, passage="sun")], ["differs"]),
    "seed": ("kl", [put(H, seed=8)], ["the seed gives another token"]),
    "another temperature": ("pathwise", [sampled(temperature=0.8)], ["differs"]),
    "debt": ("kl", [restated(debt=0.0)], ["debt 0.0, replayed"]),
    "divergences": (
        "longer",
        [put(3, kl_star_risky=0.5), put(4, kl_risky_safe=0.5)],
        ["3: kl_star_risky differs", "4: kl_risky_safe differs"],
    ),
    "ratio": ("longer", [put(H, prompt_ratios=lambda n: [n[0] + 0.01, *n[1:]])], ["by 0.01 nats"]),
    "ratio dropped": ("longer", [put(H, prompt_ratios=lambda n: n[1:])], ["ratios, replayed"]),
    "a larger bank": ("capped", [restated(bank=4.0)], ["differs"]),
    # what was drawn is charged
    "worst called drawn": ("banked max", [relabelled("pathwise", "drawn")], ["differs"]),
    "costs exchanged": (
        "pathwise",
        [at_new_caps(moved({2: -0.01, 5: 0.01}))],
        ["2: spend differs by 0.01 nats", "5: spend differs by 0.01 nats"],
    ),
    "costs": (
        "pathwise",
        [put(4, **half), put(5, log_prob=lambda p: p - 1e-6), moved({3: -1e-6, 9: -0.5})],
        ["3: spend differs", "4: weight", "5: cost of the token differs by 1e-", "9: spend"],
    ),
    "a start too full": ("pathwise", [at_new_caps(restated(bank=6.0))], ["0: spend differs"]),
    "two steps swapped": ("pathwise", [swapped(5, 6)], ["step 5: "]),
}


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_a_ledger_that_contradicts_itself_is_refused(ledgers, pair, tmp_path, name):
    kind, changes, message = BY_THEMSELVES[name]
    changes = changes if isinstance(changes, list) else [changes]
    path = write(changed(ledgers[kind], *changes), tmp_path / "forged.jsonl")
    assert message in "; ".join(refusals(path, pair))


@pytest.mark.parametrize("name", BY_REPLAY)
def test_a_forgery_is_refused_by_a_replay(ledgers, pair, tmp_path, name):
    kind, changes, messages = BY_REPLAY[name]
    failures = refusals(write(changed(ledgers[kind], *changes), tmp_path / "forged.jsonl"), pair)
    assert all(any(message in failure for failure in failures) for message in messages), failures


def test_what_they_were_forged_from_is_right(ledgers, pair):
    assert [
        (name, verify(x, pair).failures) for name, x in ledgers.items() if not verify(x, pair)
    ] == []


def test_a_field_that_is_there_twice_is_refused(ledgers, pair, tmp_path):
    header, *lines = changed(ledgers["kl"])
    lines = [header.replace('"rule": ', '"rule": 0, "rule": '), *lines]
    assert "has 'rule' twice" in refusals(write(lines, tmp_path / "forged.jsonl"), pair)[0]


def test_a_ledger_in_memory_contradicts_itself_at_its_edges(ledgers, pair):
    plain, drawn = ledgers["kl"], ledgers["pathwise"]
    skipped = replace(plain, steps=[*plain.steps[:-1], replace(plain.steps[-1], step=12)])
    assert "numbered 12" in "; ".join(verify(skipped, pair).failures)
    given_back = replace(drawn, steps=[replace(drawn.steps[0], spend=-math.inf)])
    assert "spend -inf is" in "; ".join(verify(given_back, pair).failures)
