"""The claims of other packages' rules: what is certified is what verify checks, or is refused."""

from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint

import pytest
import torch
from stranger_rules import Blend

from anchored import Anchored, Decoder, verify
from anchored.decode.rules import registry
from anchored.decode.rules.anchored import Budgeted
from anchored.decode.rules.rule import (
    BOTH,
    RISKY,
    SAFE,
    NextToken,
    OpenRule,
    Rule,
    StepInputs,
    StreamSpec,
)
from anchored.decode.rules.unbounded import Categorical
from anchored.decode.verify import verification

PROMPTS = ["the keeper of the lamp", "every wave"]
PLAIN = {"temperature": 1.0, "repetition_penalty": 1.0, "max_new_tokens": 8}


@pytest.fixture
def install(monkeypatch):
    """A function that makes a class the rule of an installed package, under its name."""

    def install(kind: type) -> type:
        name = kind.name if isinstance(kind.name, str) else "liar"
        entry = EntryPoint(name, f"{kind.__module__}:{kind.__qualname__}", registry.GROUP)
        monkeypatch.setattr(registry, "entry_point", lambda group, asked, builtin: entry)
        monkeypatch.setattr(registry, "loaded", lambda entry: kind)
        return kind

    return install


class Text(str):
    """Equal to whatever it is asked about."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return str.__hash__(self)


class Spec(StreamSpec):
    pass


WITH_SAFE = {"beside": SAFE, **BOTH}
CLAIMS = {
    "safe is the risky model": ({"streams": {**WITH_SAFE, "safe": RISKY}}, 'stream "safe" must be'),
    "a preface": ({"streams": {**BOTH, "safe": StreamSpec("safe", preface="Once")}}, '"safe" must'),
    "a passage": (
        {"streams": {**BOTH, "safe": StreamSpec("safe", takes_passage=True)}},
        'stream "safe" must be the safe model on the prompt alone',
    ),
    "no safe stream": ({"streams": {"risky": RISKY, "beside": SAFE}}, "alone, got None"),
    "no streams": ({"streams": {}}, "alone, got None"),
    "streams are a list": ({"streams": ["safe", "risky"]}, "must have streams by name"),
    "a spec's subclass": ({"streams": {**BOTH, "safe": Spec("safe")}}, "a StreamSpec of plain"),
    "a model that equals all": (
        {"streams": {**BOTH, "safe": StreamSpec(Text("risky"))}},
        "a StreamSpec of plain values",
    ),
    "a name that equals all": ({"streams": {Text("safe"): SAFE, **BOTH}}, "a StreamSpec of plain"),
    "an unknown model": ({"streams": {**BOTH, "third": StreamSpec("third")}}, "by its stream"),
    "risky is the safe model": ({"streams": {**BOTH, "risky": SAFE}}, 'stream "risky" must be'),
    "no divergence": (
        {"divergence": None},
        "its divergence must be one of kl, max, got None",
    ),
    "an unknown divergence": ({"divergence": "js"}, "must be one of kl, max, got 'js'"),
    "a divergence that equals all": ({"divergence": Text("max")}, "its divergence must be one of"),
    "a charge of another divergence": ({"charge": "worst"}, "its charge must be mean, got 'worst'"),
    "a charge that equals all": ({"charge": Text("drawn")}, "its charge must be mean, got 'drawn'"),
    "drawn tokens": (
        {"divergence": "max", "charge": "drawn"},
        "its charge must be worst, got 'drawn'",  # as `verify` does not know its p* by itself
    ),
    "no charge": ({"divergence": "max", "charge": None}, "its charge must be worst, got None"),
    "a flag that is no flag": ({"is_certified": 1}, "must have True or False for is_certified"),
    "errors that count tenfold": ({"gain": 10.0}, "its gain must be 1, got 10.0"),
    "tokens of the risky model": ({"retokenizes": True}, "cannot decode tokens that the safe"),
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

        def safe_token(self, inputs: StepInputs) -> NextToken:
            return Categorical.draw(inputs.warped("safe"), inputs.warped("safe"), inputs.uniform)

    for claim, value in claims.items():
        setattr(Liar, claim, value)
    return Liar


@pytest.mark.parametrize("name", CLAIMS)
def test_a_certified_rule_of_false_claims_is_refused(install, pair, name):
    claims, message = CLAIMS[name]
    kind = install(liar(claims))
    (honest,) = Decoder(pair, install(liar({}))()).generate(PROMPTS[0], **PLAIN)
    assert verify(honest.ledger, pair), verify(honest.ledger, pair)
    install(kind)
    for refuse in (lambda: Decoder(pair, kind()), lambda: registry.make_rule("liar", {"k": 1.0})):
        with pytest.raises(ValueError, match=message) as error:
            refuse()
        assert "\n" not in str(error.value)
    assert message in str(verify(honest.ledger, pair)).replace("REFUSED: ", "")


def test_an_uncertified_rule_may_claim_less(pair):
    claims = {"is_certified": False, "divergence": None, "gain": 3.0}
    (result,) = Decoder(pair, liar(claims)()).generate(PROMPTS[0], **PLAIN)
    assert not result.ledger.certified


def test_a_rule_of_another_package_cannot_have_the_name_of_one_of_ours(install, pair):
    kind = install(liar({"name": Text("liar")}))
    with pytest.raises(ValueError, match="must have a str for its name"):
        Decoder(pair, kind())


CHANGED = {
    "streams": {**BOTH, "safe": RISKY},
    "divergence": None,
    "is_certified": False,
    "name": "anchored",
}


@pytest.mark.parametrize("claim", CHANGED)
def test_claims_that_change_after_the_check_change_nothing(pair, claim):
    kind = liar({})
    (expected,) = Decoder(pair, kind()).generate(PROMPTS[0], **PLAIN)
    first = getattr(kind(), claim)
    answers = iter([first])
    # By each access, and of a streams object that is written to.
    setattr(kind, claim, property(lambda self: next(answers, CHANGED[claim])))
    opened = kind().open(None)
    assert getattr(opened, claim) == getattr(opened, claim) == first
    setattr(kind, claim, first)
    streams = dict(kind().streams)
    kind.streams = streams
    decoder = Decoder(pair, kind())
    setattr(kind, claim, CHANGED[claim])
    streams["safe"] = RISKY
    (result,) = decoder.generate(PROMPTS[0], **PLAIN)
    assert result.ledger == expected.ledger


@pytest.mark.parametrize("divergence", Blend.divergences)
def test_an_honest_rule_verifies_by_the_divergence_that_it_names(install, pair, divergence):
    install(Blend)
    rule = Blend(k=0.3, divergence=divergence, debt="none")
    for result in Decoder(pair, rule).generate(PROMPTS, **PLAIN):
        report = verify(result.ledger, pair)
        assert report, report
        assert result.ledger.certified and report.divergence > 0.1


@dataclass(frozen=True, slots=True)
class WrongDivergence(Blend):
    """Names one divergence, and spends the other."""

    name = "blend"

    def blended(self, inputs: StepInputs) -> NextToken:
        other = "kl" if self.divergence == "max" else "max"
        return Blend.blended(replace(self, divergence=other), inputs)


@pytest.mark.parametrize("divergence", Blend.divergences)
def test_a_rule_that_spends_another_divergence_than_it_names_is_refused(install, pair, divergence):
    install(WrongDivergence)
    rule = WrongDivergence(k=0.3, divergence=divergence, debt="none")
    (result,) = Decoder(pair, rule).generate(PROMPTS[0], **PLAIN)
    assert "spend differs" in str(verify(result.ledger, pair))


def test_a_budgeted_rule_has_no_divergence_that_it_does_not_implement():
    @dataclass(frozen=True, slots=True)
    class Half(Blend):
        divergences = Budgeted.divergences

    assert Half(k=1.0).divergence == "kl"
    with pytest.raises(ValueError, match="divergence must be one of kl, got 'max'"):
        Half(k=1.0, divergence="max")


@dataclass(frozen=True, slots=True)
class Writer(Blend):
    """Writes into what it is handed before it blends, or after."""

    name = "blend"
    what: str = field(default="safe", kw_only=True)
    writes_first: bool = field(default=False, kw_only=True)

    def blended(self, inputs: StepInputs) -> NextToken:
        def write() -> None:
            safe, risky = inputs.warped("safe"), inputs.warped("risky")
            if self.what == "safe":
                safe -= 0.5 * (safe - risky)
            elif self.what == "all logits":
                for logits in inputs.logits.values():
                    logits.fill_(0.0)
            elif self.what == "budget":
                inputs.budget.fill_(50.0)
            elif inputs.uniform is not None:
                inputs.uniform.fill_(0.5)

        if self.writes_first:
            write()
        drawn = Blend.blended(self, inputs)
        write()
        return drawn


@pytest.mark.parametrize("what", ["safe", "all logits", "budget", "uniform"])
@pytest.mark.parametrize("ask", ["generate", "stream", "score"])
def test_a_rule_that_writes_into_its_inputs_after_it_drew_changes_nothing(pair, what, ask):
    def figures(rule) -> list:
        decoder = Decoder(pair, rule)
        if ask == "score":
            (score,) = decoder.score(PROMPTS[:1], [" of salt and rain"])
            return [score.token_log_probs, score.spends, score.is_greedy]
        if ask == "stream":
            return [(piece.token_id, piece.spend) for piece in decoder.stream(PROMPTS[0], **PLAIN)]
        return [result.ledger.steps for result in decoder.generate(PROMPTS, **PLAIN)]

    given = {"k": 0.3, "debt": "none"}
    assert figures(Writer(**given, what=what)) == figures(Blend(**given))


@pytest.mark.parametrize("what", ["safe", "all logits", "budget", "uniform"])
def test_a_rule_that_writes_into_its_inputs_is_checked_by_what_the_models_said(install, pair, what):
    install(Writer)
    rule = Writer(k=0.3, debt="none", what=what, writes_first=True)
    (result,) = Decoder(pair, rule).generate(PROMPTS[0], **PLAIN)
    assert not verify(result.ledger, pair)


def unnormalized(drawn: NextToken) -> NextToken:
    return replace(drawn, star=drawn.star - 2.0, spend=torch.zeros_like(drawn.spend))


def test_a_law_that_does_not_sum_to_one_hides_nothing(install, pair):
    @dataclass(frozen=True, slots=True)
    class Shrunk(Blend):
        def blended(self, inputs: StepInputs) -> NextToken:
            return unnormalized(Blend.blended(self, inputs))

    install(Shrunk)
    (result,) = Decoder(pair, Shrunk(k=0.5, debt="none")).generate(PROMPTS[0], **PLAIN)
    assert "spend differs" in str(verify(result.ledger, pair))


SPENDS = {
    "above its budget": lambda budget: budget + 2.0**-32,
    "negative": lambda budget: torch.full_like(budget, -(2.0**-32)),
    "NaN": lambda budget: torch.full_like(budget, float("nan")),
    "infinite": lambda budget: torch.full_like(budget, float("inf")),
}


@pytest.mark.parametrize("name", SPENDS)
def test_spends_that_break_their_budget_are_never_called_certified(install, pair, name):
    @dataclass(frozen=True, slots=True)
    class Spender(Blend):
        def blended(self, inputs: StepInputs) -> NextToken:
            drawn = Blend.blended(self, inputs)
            return replace(drawn, spend=SPENDS[name](inputs.budget))

    install(Spender)
    rule = Spender(k=0.5, debt="none", budget="fixed")
    (result,) = Decoder(pair, rule).generate(PROMPTS[0], **PLAIN)
    assert not result.ledger.certified and "NOT certified" in str(result)
    assert result.ledger.total_bound == float("inf")
    claiming = replace(result.ledger, certified=True)
    assert claiming.claims_bound and not claiming.certified
    for ledger in (result.ledger, claiming):
        failures = verify(ledger, pair).failures
        refused = "must be a number, got nan" if name == "NaN" else "is not in [0, 0.5]"
        assert failures[0].startswith("step 0: spend ") and refused in failures[0]


def test_verify_hands_each_rule_rows_of_its_own(install, pair, monkeypatch):
    """Those that it checks by are the models', also where a truncation is judged both ways."""
    install(Blend)
    (result,) = Decoder(pair, Blend(k=0.3, debt="none")).generate(PROMPTS[0], top_k=5, **PLAIN)
    rows = []
    check = verification.check_step
    monkeypatch.setattr(
        verification, "check_step", lambda claim: rows.append(claim.safe_logits) or check(claim)
    )
    assert verify(result.ledger, pair)
    honest = [row.clone() for row in rows]
    install(Writer)
    rows.clear()
    verify(result.ledger, pair)
    assert all(map(torch.equal, rows[: len(honest)], honest))
