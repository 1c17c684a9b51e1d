"""Every method through the whole of decoding: drawn, recorded, scored and verified, at both levels.

What a stream reads is told by plain forwards of its model over the text that the rule names.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, train_tokenizer

from anchored import (
    Anchored,
    Decoder,
    ModelPair,
    Pathwise,
    RiskyOnly,
    SafeOnly,
    verify,
    with_divergences,
)
from anchored.decode.ledger import Ledger
from anchored.decode.rules import registry
from anchored.decode.rules.anchored import NoOpt
from anchored.decode.rules.memfree import MemFree
from anchored.decode.rules.mixtures import RCAD, CPFuse, TokenSwap
from anchored.decode.rules.unbounded import ColdStart, GlobalSwitch, System

PROMPTS = ["the keeper of", "import math", "Nine tides ago, the harbour"]
PASSAGES = [
    "the keeper of the lamp wrote every wave",
    "import math\ndef area(radius)",
    "Nine tides ago, the harbour bell rang twice",
]
RULES = {
    "anchored": Anchored(k=2.0),
    "anchored, max": Anchored(k=1.0, divergence="max", debt="average"),
    "anchored, a bank": Anchored(k=1.0, bank=4.0),
    "anchored, max, global": Anchored(K=9.0, divergence="max", budget="global"),
    "pathwise": Pathwise(),
    "pathwise, of a text": Pathwise(k=0.0, bank=12.0, debt="average"),
    "anchored, global": Anchored(K=9.0, budget="global", debt="none"),
    "anchored, fixed": Anchored(k=0.5, budget="fixed"),
    "anchored, average": Anchored(K=10.0, debt="average"),
    "safe_only": SafeOnly(),
    "risky_only": RiskyOnly(),
    "risky_only, alone": RiskyOnly(compared=False),
    "system": System(prompt="Write nothing of others."),
    "memfree": MemFree(n=2, passages=PASSAGES),
    "rcad": RCAD(alpha=0.5),
    "rcad, alone": RCAD(alpha=0.5, compared=False),
    "cp_fuse": CPFuse(grid_size=4),
    "cp_fuse, warped before": CPFuse(grid_size=4, warping="before"),
    "token_swap": TokenSwap(words=["the", "of", "lamp"]),
    "no_opt": NoOpt(k=2.0, debt="none"),
    "no_opt, max": NoOpt(k=2.0, divergence="max", debt="none"),
    "cold_start": ColdStart(k=0.3),
    "global_switch": GlobalSwitch(K=9.0),
}
CERTIFIED = ("anchored", "anchored_inf", "pathwise", "safe_only", "no_opt")


@pytest.fixture(scope="module")
def token_pair() -> ModelPair:
    safe, risky = (tiny_llama(seed, max_position_embeddings=256) for seed in (3, 4))
    return ModelPair(safe, risky, train_tokenizer(320))


@pytest.fixture(scope="module")
def byte_pair() -> ModelPair:
    return tiny_byte_pair()


def passages_for(rule):
    return PASSAGES if isinstance(rule, RCAD) else None


OFTEN = ("anchored", "pathwise", "memfree", "rcad", "cp_fuse", "token_swap", "no_opt")
"""Rules that are decoded in bytes every time; variants of them where there is time."""


def cases():
    for name, rule in RULES.items():
        yield pytest.param("token", rule, id=f"token, {name}")
        marks = [] if name in OFTEN else [pytest.mark.slow]
        if not isinstance(rule, TokenSwap):
            yield pytest.param("byte", rule, id=f"byte, {name}", marks=marks)


@pytest.fixture
def pair(level, token_pair, byte_pair) -> ModelPair:
    return token_pair if level == "token" else byte_pair


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("level", "rule"), [*cases()])
def test_a_text_is_the_same_alone_scored_and_verified(pair, level, rule, tmp_path):
    decoder = Decoder(pair, rule, level=level)
    passages = passages_for(rule)
    length = {"max_new_tokens": 12} if level == "token" else {"max_new_bytes": 16}
    together = decoder.generate(PROMPTS, passages=passages, seed=3, **length)
    for place, result in enumerate(together):
        passage = None if passages is None else passages[place]
        (alone,) = decoder.generate(PROMPTS[place], passages=passage, seed=3, **length)
        assert alone.token_ids == result.token_ids
        path = tmp_path / "ledger.jsonl"
        result.ledger.save(path)
        report = verify(Ledger.load(path), pair)
        assert report, report.failures
        assert report.tokens_drawn_again == len(result.ledger.steps)
        assert result.ledger.certified == (rule.name in CERTIFIED)
        if rule.is_certified:
            assert result.ledger.is_within_bound
            assert all(step.spend <= step.budget for step in result.ledger.steps)
    scores = decoder.score(
        PROMPTS,
        [result.token_ids for result in together],
        passages=passages,
        horizon=together[0].ledger.header.horizon,
        temperature=0.7,
        repetition_penalty=1.1,
    )
    for score, result in zip(scores, together, strict=True):
        recorded = [step.log_prob for step in result.ledger.steps]
        assert score.token_log_probs == pytest.approx(recorded, abs=1e-5)
        spends = [step.spend for step in result.ledger.steps]
        assert score.spends == pytest.approx(spends, abs=1e-5)
        assert score.bound == pytest.approx(result.ledger.header.bound, abs=1e-9)


def test_every_rule_of_the_package_is_among_these():
    assert {rule.name for rule in RULES.values()} == {*registry.RULES}


@pytest.mark.parametrize(
    ("level", "rule", "idle"),
    [
        ("token", SafeOnly(), "risky"),
        ("token", RiskyOnly(compared=False), "safe"),
        ("byte", RiskyOnly(compared=False), "safe"),
    ],
    ids=str,
)
def test_of_one_model_alone_the_other_never_runs(pair, level, rule, idle):
    def refuse(*_, **__):
        raise AssertionError("this model is not to run")

    expected = Decoder(pair, rule, level=level).generate(PROMPTS[:2], max_new_tokens=4)
    broken = deepcopy(pair)
    for module in (broken.models[idle], broken.models[idle].model):
        module.__class__ = type("Idle", (type(module),), {"forward": refuse})
    decoder = Decoder(broken, rule, level=level)
    results = decoder.generate(PROMPTS[:2], max_new_tokens=4)
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert [getattr(result.ledger, f"{idle}_forwards") for result in results] == [0, 0]
    (score,) = decoder.score(PROMPTS[0], " the lamp")
    assert not score.error


def test_each_stream_reads_what_its_rule_says(token_pair):
    pair, prompt, passage = token_pair, PROMPTS[0], PASSAGES[0]
    tokenizer = pair.tokenizer

    def last_logits(preface: str):
        text = [*tokenizer(preface)["input_ids"], *tokenizer(prompt)["input_ids"][1:]]
        with torch.inference_mode():
            return pair.risky(torch.tensor([text if preface else tokenizer(prompt)["input_ids"]]))

    plain, behind = (last_logits(t).logits[0, -1] for t in ("", f"{passage}\n\n"))
    expected = {
        RCAD(alpha=0.5): (1.5 * plain - 0.5 * behind).log_softmax(-1),
        System(prompt="Be brief."): last_logits("Be brief.\n\n").logits[0, -1].log_softmax(-1),
    }
    tokens = list(range(3, 9))
    for rule, log_probs in expected.items():
        scores = Decoder(pair, rule).score(
            [prompt] * len(tokens),
            [[token] for token in tokens],
            passages=passage if isinstance(rule, RCAD) else None,
        )
        actual = [score.token_log_probs[0] for score in scores]
        assert actual == pytest.approx(log_probs[tokens].tolist(), abs=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["token", "byte"])
def test_memfree_never_completes_a_blocked_n_gram(pair, level):
    copied = Decoder(pair, RiskyOnly(compared=False), level=level, batch_size=24).generate(
        PROMPTS[:1] * 24, max_new_tokens=12, temperature=0.5
    )
    passages = [result.text for result in copied]
    rule = MemFree(n=2, passages=passages, compared=False)
    free = Decoder(pair, rule, level=level, batch_size=24)
    reach = 2 if level == "token" else 8
    spans = {
        tuple(symbols[start : start + reach])
        for symbols in map(free.level.encode_continuation, passages)
        for start in range(len(symbols) - reach + 1)
    }
    blocked = 0
    for result in free.generate(PROMPTS[:1] * 24, max_new_tokens=12, temperature=0.5):
        symbols = result.token_ids
        assert not spans & {tuple(symbols[i : i + reach]) for i in range(len(symbols) - reach + 1)}
        blocked += symbols not in [other.token_ids for other in copied]
    assert blocked > 0


def test_cp_fuse_remembers_what_each_model_would_have_written(token_pair):
    """After an unlikely text of the risky model's own, the mixture leans away from it."""
    decoder = Decoder(token_pair, CPFuse())
    (result,) = decoder.generate(PROMPTS[0], max_new_tokens=8, temperature=1.0)
    first = decoder.score(PROMPTS[0], [result.token_ids])[0]
    text = token_pair.encode(PROMPTS[0]) + result.token_ids[:7]
    fresh = decoder.score([text], [result.token_ids[7:]])[0]
    assert first.token_log_probs[7] != pytest.approx(fresh.token_log_probs[0], abs=1e-6)


def test_a_passage_is_asked_for_and_only_where_it_is_read(token_pair):
    rcad = Decoder(token_pair, RCAD())
    with pytest.raises(ValueError, match="the rule rcad needs a passage a prompt, got none"):
        rcad.generate(PROMPTS)
    with pytest.raises(ValueError, match="the rule anchored reads no passages"):
        Decoder(token_pair, Anchored(k=1.0)).generate(PROMPTS, passages=PASSAGES)
    with pytest.raises(ValueError, match="passages must be one value or one per prompt: 3, got 2"):
        rcad.generate(PROMPTS, passages=PASSAGES[:2])
    with pytest.raises(ValueError, match="exceeds the pair's context of 256"):
        rcad.generate(PROMPTS[0], passages="the keeper of the lamp " * 40, max_new_tokens=20)


@pytest.mark.parametrize("rule", [System(prompt="import math"), RCAD()], ids=lambda r: r.name)
def test_divergences_are_those_of_the_streams_and_ratios_those_of_the_prompt(token_pair, rule):
    passage = PASSAGES[1] if isinstance(rule, RCAD) else None
    (result,) = Decoder(token_pair, rule).generate(PROMPTS[0], passages=passage, max_new_tokens=4)
    longer = with_divergences(result.ledger, token_pair)
    plain = Decoder(token_pair, Anchored(k=1.0)).generate(PROMPTS[0], max_new_tokens=4)[0]
    expected = with_divergences(plain.ledger, token_pair).header.prompt_ratios
    assert longer.header.prompt_ratios == pytest.approx(expected, abs=1e-9)
    assert verify(longer, token_pair)


def test_a_passage_is_read_and_recorded_and_another_one_refused_by_verify(token_pair):
    (result,) = Decoder(token_pair, RCAD(alpha=1.0)).generate(
        PROMPTS[0], passages=PASSAGES[0], max_new_tokens=8
    )
    ledger = result.ledger
    assert ledger.header.passage == PASSAGES[0]
    assert ledger.risky_forwards == 2 * ledger.safe_forwards
    forged = replace(ledger, header=replace(ledger.header, passage=PASSAGES[1]))
    assert not verify(forged, token_pair)
    none = replace(ledger, header=replace(ledger.header, passage=None))
    assert "needs a passage" in verify(none, token_pair).failures[0]


@pytest.mark.parametrize(
    "rule",
    [CPFuse(), MemFree(passages=PASSAGES), RCAD(), ColdStart(k=1.0), RiskyOnly(compared=False)],
    ids=lambda rule: rule.name,
)
def test_what_reads_more_or_less_than_both_next_tokens_does_not_speculate(token_pair, rule):
    with pytest.raises(ValueError, match=r"more than both models' next tokens|risky model alone"):
        Decoder(token_pair, rule, speculate=2)
