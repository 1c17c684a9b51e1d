"""Forged ledgers with the right hash are refused: in what they say of themselves, and by replay."""

import dataclasses
import math

import pytest
from forged_ledgers import changed, refusal, summed_up, with_budgets, write

from anchored import Anchored, Decoder, Ledger, RiskyOnly, verify, with_divergences

PROMPT = "the keeper of the lamp wrote"
NAN = math.nan


@pytest.fixture(scope="module")
def ledgers(pair) -> dict[str, Ledger]:
    """Honest ones, by what they are good for."""

    def decoded(rule, **settings) -> Ledger:
        (result,) = Decoder(pair, rule).generate(PROMPT, max_new_tokens=12, seed=7, **settings)
        return result.ledger

    return {
        "kl": decoded(Anchored(k=1.0)),
        "max": decoded(Anchored(k=1.0, divergence="max")),
        "greedy": decoded(Anchored(k=1.0), temperature=0.0),
        "risky": decoded(RiskyOnly()),
        "longer": with_divergences(decoded(Anchored(k=1.0)), pair),
    }


def setting(place, name, value):
    """Change of one field: of the header, a step (by number) or the footer."""

    def change(header, steps, footer):
        record = {"header": header, "footer": footer}.get(place) or steps[place]
        record[name] = value

    return change


def budget_times_ten(header, steps, footer):
    header["K"] *= 10
    header["bound"] = header["K"] - header["debt"]


def horizon(steps_left):
    def change(header, steps, footer):
        header["horizon"] = steps_left
        header["K"] = header["k"] * steps_left
        header["bound"] = max(0.0, header["K"] - header["debt"])
        with_budgets(header, steps)

    return change


def dropped(first):
    def change(header, steps, footer):
        del steps[first:]
        summed_up(steps, footer)

    return change


def spent(place, nats):
    def change(header, steps, footer):
        steps[place]["spend"] = nats
        summed_up(steps, footer)

    return change


def ratio_nan(header, steps, footer):
    header["prompt_ratios"][1] = NAN


def halved_weight(header, steps, footer):
    steps[4]["weight"] /= 2


def step_after_the_end(header, steps, footer):
    steps[3]["token_id"] = header["stop_token_ids"][0]


H, F = "header", "footer"
FORGERIES = {
    # certified, for what is not, and what is no answer at all
    "greedy certified": ("greedy", setting(F, "certified", True), "certified must be False"),
    "risky certified": ("risky", setting(F, "certified", True), "certified must be False"),
    "certified yes": ("kl", setting(F, "certified", "yes"), "certified must be bool"),
    "certified denied": ("kl", setting(F, "certified", False), "certified must be True"),
    # models
    "no fingerprints": ("kl", setting(H, "fingerprints", {}), "fingerprints must name"),
    "one fingerprint": ("kl", setting(H, "fingerprints", {"safe": "0"}), "fingerprints must name"),
    "dtype": ("kl", setting(H, "dtype", "float32"), "dtype is float64, recorded float32"),
    "quantized": ("kl", setting(H, "quantization", {"safe": "int8"}), "quantised are"),
    # NaN, with which every comparison is false
    "log p NaN": ("kl", setting(2, "log_prob", NAN), "not JSON"),
    "log p_s NaN": ("kl", setting(2, "safe_log_prob", NAN), "not JSON"),
    "spend NaN": ("kl", setting(2, "spend", NAN), "not JSON"),
    "weight NaN": ("kl", setting(2, "weight", NAN), "not JSON"),
    "KL NaN": ("longer", setting(2, "kl_risky_safe", NAN), "not JSON"),
    "ratio NaN": ("longer", ratio_nan, "not JSON"),
    "prior bound NaN": ("kl", setting(H, "prior_bound", NAN), "not JSON"),
    # weights
    "weight halved": ("kl", halved_weight, "step 4: spend differs"),
    "weight of max halved": ("max", halved_weight, "step 4: weight differs"),
    "weight 7": ("kl", setting(3, "weight", 7.0), "weight 7.0 is not in"),
    "weight of max 7": ("max", setting(3, "weight", 7.0), "weight 7.0 is not in"),
    "weight -1": ("kl", setting(3, "weight", -1.0), "weight -1.0 is not in"),
    # several samples, earlier text
    "no sequences": ("kl", setting(H, "num_return_sequences", 0), "must be >= 1, got 0"),
    "minus sequences": ("kl", setting(H, "num_return_sequences", -3), "must be >= 1, got -3"),
    "prior bound -5": ("kl", setting(H, "prior_bound", -5.0), "prior_bound must be >= 0"),
    # budget
    "K times 10": ("kl", budget_times_ten, "are not those of anchored"),
    "K alone": ("kl", setting(H, "K", 99.0), "are not those of anchored"),
    "k alone": ("kl", setting(H, "k", 0.5), "are not those of anchored"),
    "bound": ("kl", setting(H, "bound", 99.0), "bound 99.0 does not follow"),
    "horizon 0": ("kl", setting(H, "horizon", 0), "horizon must be >= 1"),
    "horizon 1": ("kl", horizon(1), "after 12 steps, the horizon 1"),
    "horizon 1e6": ("kl", horizon(10**6), "after 12 steps, the horizon 1000000"),
    "horizon 1e6 of risky": ("risky", setting(H, "horizon", 10**6), "the horizon 1000000"),
    "negative spend": (
        "kl",
        spent(11, -(2.0**-32)),
        "step 11: spend -2.328",
    ),
    # the end
    "stop token": ("kl", setting(F, "finish_reason", "stop_token"), "is 'stop_token', the last"),
    "no reason": ("kl", setting(F, "finish_reason", ""), "finish_reason must be one of"),
    "own reason": ("kl", setting(F, "finish_reason", "done"), "finish_reason must be one of"),
    "error": ("kl", setting(F, "finish_reason", "error"), "certified must be False"),
    "last step dropped": ("kl", dropped(-1), "after 11 steps, the horizon 12"),
    "all steps dropped": ("kl", dropped(0), "after 0 steps, the horizon 12"),
    "goes on after the end": ("kl", step_after_the_end, "step 3 is the end symbol"),
    # sums and counts
    "total": ("kl", setting(F, "total_spend", 0.0), "the footer counts 0.0 nats"),
    "no safe forwards": ("kl", setting(F, "safe_forwards", 0), "0 safe forwards for 12 tokens"),
    "no risky forwards": ("kl", setting(F, "risky_forwards", 0), "0 risky forwards for 12"),
    "minus forwards": ("kl", setting(F, "risky_forwards", -1), "risky_forwards must be >= 0"),
    "skipped": ("kl", setting(F, "skipped_risky", 13), "13 steps without the risky model"),
    "accepted": ("kl", setting(F, "accepted", 1), "1 drafts accepted of 0"),
    "minus drafted": ("kl", setting(F, "drafted", -1), "drafted must be >= 0"),
    # names
    "rule name": ("kl", setting(H, "rule", "anchored_inf"), "rule must be anchored with these"),
    "unknown rule": ("kl", setting(H, "rule", "free"), "rule must be one of"),
    "sampler": ("kl", setting(H, "sampler", "coupled/9"), "sampler must be"),
    "level": ("kl", setting(H, "level", "word"), 'level must be "token" or "byte"'),
    "stop tokens": ("kl", setting(H, "stop_token_ids", [5]), "stop tokens are"),
    # what a replay finds
    "token": ("kl", setting(5, "token_id", 17), "step 5: log_prob differs"),
    "accepted flag": ("kl", lambda h, s, f: s[5].update(accepted=not s[5]["accepted"]), "the seed"),
    "log p": ("kl", setting(5, "log_prob", -0.5), "step 5: log_prob differs"),
    "log p_s": ("kl", setting(5, "safe_log_prob", -0.5), "step 5: safe_log_prob differs"),
    "log p of greedy": ("greedy", setting(5, "log_prob", -0.5), "step 5: log_prob differs"),
    "last spend": ("kl", spent(11, 0.0), "step 11: spend differs"),
    "spend of risky": ("risky", spent(5, 0.0), "step 5: spend differs"),
    "seed": ("kl", setting(H, "seed", 8), "the seed gives another token"),
    "KL": ("longer", setting(4, "kl_star_risky", 0.5), "step 4: kl_star_risky differs"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(ledgers, pair, tmp_path, name):
    kind, change, message = FORGERIES[name]
    path = write(changed(ledgers[kind], change), tmp_path / "forged.jsonl")
    assert message in refusal(path, pair)


@pytest.mark.parametrize("kind", ["kl", "max", "greedy", "risky", "longer"])
def test_what_they_were_forged_from_stands(ledgers, pair, tmp_path, kind):
    path = write(changed(ledgers[kind], lambda *_: None), tmp_path / "honest.jsonl")
    assert refusal(path, pair) == ""


def many_steps_left(header, steps, footer):
    horizon(10**6)(header, steps, footer)
    footer["finish_reason"] = "stop_string"


UNKNOWABLE = {
    "sequences": setting(H, "num_return_sequences", 50),
    "prior bound": setting(H, "prior_bound", 5.0),
    "forwards": setting(F, "safe_forwards", 1000),
    "a stop string, and so the horizon": many_steps_left,
}


@pytest.mark.parametrize("name", UNKNOWABLE)
def test_what_no_replay_can_know_stands(ledgers, pair, tmp_path, name):
    # As docs/guarantee.md says; a verifier that learns more moves it to FORGERIES.
    path = write(changed(ledgers["kl"], UNKNOWABLE[name]), tmp_path / "forged.jsonl")
    assert refusal(path, pair) == ""


@pytest.mark.parametrize("name", ["log_prob", "spend", "weight"])
def test_nan_in_memory_is_refused(ledgers, pair, name):
    honest = ledgers["kl"]
    steps = [dataclasses.replace(honest.steps[0], **{name: NAN}), *honest.steps[1:]]
    report = verify(dataclasses.replace(honest, steps=steps), pair)
    assert report.failures == [f"step 0: {name} must be float, got nan"]
    assert not report
