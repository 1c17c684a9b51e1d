"""The claims of other packages' rules: a certified one is checked by verify, or is refused."""

from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from runpy import run_path

import pytest
import torch

from anchored import Anchored, Decoder, verify
from anchored.decode.rules import registry
from anchored.decode.rules.rule import BOTH, RISKY, SAFE, NextToken, OpenRule, Rule
from anchored.decode.rules.unbounded import Categorical

Blend = run_path(str(Path(__file__).parents[2] / "support/stranger/stranger.py"))["Blend"]
"""The rule of a package that is not installed here."""
PROMPT = "the keeper of the lamp"
PLAIN = {"temperature": 1.0, "repetition_penalty": 1.0, "max_new_tokens": 8}
LAX = {"k": 0.3, "debt": "none"}


@pytest.fixture
def drawn(monkeypatch, pair):
    """A function of a class and its settings: the ledger of the rule, as one of a package that is
    installed."""

    def ledger(kind: type, **settings):
        entry = EntryPoint(kind.name, "module:Kind", registry.GROUP)
        monkeypatch.setattr(registry, "entry_point", lambda group, name, builtin: entry)
        monkeypatch.setattr(registry, "loaded", lambda entry: kind)
        return Decoder(pair, kind(**settings)).generate(PROMPT, **PLAIN)[0].ledger

    return ledger


CLAIMS = {
    "safe is the risky model": ({"streams": {**BOTH, "safe": RISKY}}, 'stream "safe" must be'),
    "streams are a list": ({"streams": ["safe", "risky"]}, "must have streams by name"),
    "a stream is a name": ({"streams": {**BOTH, "safe": "safe"}}, "a StreamSpec of plain"),
    "risky is the safe model": ({"streams": {**BOTH, "risky": SAFE}}, 'stream "risky" must be'),
    "another charge": ({"charge": "drawn"}, "its charge must be mean, got 'drawn'"),
    # As `verify` does not know its p* by itself.
    "drawn tokens": ({"divergence": "max", "charge": "drawn"}, "its charge must be worst, got"),
    "a flag that is no flag": ({"is_certified": 1}, "must have True or False for is_certified"),
    "errors that count tenfold": ({"gain": 10.0}, "its gain must be 1, got 10.0"),
}


def liar(claims: dict) -> type:
    """The class of a rule that spends nothing and says so, with these claims."""

    @dataclass(frozen=True)
    class Liar(Rule):
        k: float = 1.0
        name = "liar"
        is_certified = True
        divergence = "kl"
        budget_for = staticmethod(Anchored(k=1.0).budget_for)

        def open(self, level):
            return OpenRule.of(self, self.safe_token)

        def safe_token(self, inputs) -> NextToken:
            return Categorical.draw(inputs.warped("safe"), inputs.warped("safe"), inputs.uniform)

    for claim, value in claims.items():
        setattr(Liar, claim, value)
    return Liar


@pytest.mark.parametrize("name", CLAIMS)
def test_a_certified_rule_of_false_claims_is_refused(drawn, pair, name):
    claims, message = CLAIMS[name]
    honest = drawn(liar({}))
    assert verify(honest, pair)
    with pytest.raises(ValueError, match=message):
        drawn(liar(claims))
    assert message in str(verify(honest, pair))  # as the name is the liar's now


@pytest.mark.parametrize("divergence", Blend.divergences)
def test_a_rule_verifies_by_the_divergence_that_it_names_and_by_no_other(drawn, pair, divergence):
    @dataclass(frozen=True, slots=True)
    class Wrong(Blend):
        def blended(self, inputs) -> NextToken:
            other = "kl" if self.divergence == "max" else "max"
            return Blend.blended(replace(self, divergence=other), inputs)

    report = verify(drawn(Blend, divergence=divergence, **LAX), pair)
    assert report and report.divergence > 0.1, report
    assert "spend differs" in str(verify(drawn(Wrong, divergence=divergence, **LAX), pair))


WRITES = {
    "safe": lambda inputs: inputs.warped("safe").copy_(inputs.warped("risky")),
    "budget": lambda inputs: inputs.budget.fill_(50.0),
    "uniform": lambda inputs: inputs.uniform.fill_(0.5),
}


@dataclass(frozen=True, slots=True)
class Writer(Blend):
    """Writes into its inputs before it blends, or after."""

    what: str = field(default="safe", kw_only=True)
    writes_first: bool = field(default=False, kw_only=True)

    def blended(self, inputs) -> NextToken:
        if self.writes_first:
            WRITES[self.what](inputs)
        result = Blend.blended(self, inputs)
        WRITES[self.what](inputs)
        return result


@pytest.mark.parametrize("what", WRITES)
def test_a_rule_that_writes_into_its_inputs_is_handed_copies(drawn, pair, what):
    assert drawn(Writer, what=what, **LAX).steps == drawn(Blend, **LAX).steps
    assert not verify(drawn(Writer, what=what, writes_first=True, **LAX), pair)


SPENDS = {
    "above its budget": lambda budget: budget + 2.0**-32,
    "negative": lambda budget: torch.full_like(budget, -(2.0**-32)),
    "NaN": lambda budget: torch.full_like(budget, float("nan")),
}


@pytest.mark.parametrize("name", SPENDS)
def test_spends_that_break_their_budget_are_never_called_certified(drawn, pair, name):
    @dataclass(frozen=True, slots=True)
    class Spender(Blend):
        def blended(self, inputs) -> NextToken:
            return replace(Blend.blended(self, inputs), spend=SPENDS[name](inputs.budget))

    ledger = drawn(Spender, k=0.5, debt="none", budget="fixed")
    assert not ledger.certified and ledger.total_bound == float("inf")
    claiming = replace(ledger, certified=True)
    assert claiming.claims_bound and not claiming.certified
    refused = "must be a number, got nan" if name == "NaN" else "is not in [0, 0.5]"
    assert refused in verify(claiming, pair).failures[0]
