"""Every method through the whole of decoding: drawn, recorded, scored and verified, at both levels.

What a stream reads is compared with plain forwards of its model over the text that the rule names.
"""

import json

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, train_tokenizer

from anchored import (
    RCAD,
    Anchored,
    ColdStart,
    CPFuse,
    Decoder,
    GlobalSwitch,
    Ledger,
    MemFree,
    ModelPair,
    NoOpt,
    Pathwise,
    RiskyOnly,
    SafeOnly,
    System,
    TokenSwap,
    verify,
)
from anchored.decode.rules import registry

PROMPTS = ["the keeper of", "import math", "Nine tides ago, the harbour"]
PASSAGES = [
    "the keeper of the lamp wrote every wave",
    "import math\ndef area(radius)",
    "Nine tides ago, the harbour bell rang twice",
]
RULES = [
    Anchored(k=2.0),
    Anchored(k=1.0, bank=4.0, debt="average"),
    Anchored(K=9.0, divergence="max", budget="global"),
    Pathwise(),
    Anchored(k=0.5, budget="fixed"),
    SafeOnly(),
    RiskyOnly(compared=False),
    System(prompt="Write nothing of others."),
    MemFree(n=2, passages=PASSAGES),
    RCAD(alpha=0.5),
    CPFuse(grid_size=4),
    CPFuse(grid_size=4, warping="before"),
    TokenSwap(words=["the", "of", "lamp"]),
    NoOpt(k=2.0, divergence="max", debt="none"),
    ColdStart(k=0.3),
    GlobalSwitch(K=9.0),
]


@pytest.fixture(scope="module")
def token_pair() -> ModelPair:
    safe, risky = (tiny_llama(seed, max_position_embeddings=256) for seed in (3, 4))
    return ModelPair(safe, risky, train_tokenizer(320))


@pytest.fixture(scope="module")
def byte_pair() -> ModelPair:
    return tiny_byte_pair()


@pytest.fixture
def pair(level, token_pair, byte_pair) -> ModelPair:
    return token_pair if level == "token" else byte_pair


def cases():
    for place, rule in enumerate(RULES):
        yield pytest.param("token", rule, id=f"token, {rule}")
        marks = [] if place % 6 == 4 else [pytest.mark.slow]
        if not isinstance(rule, TokenSwap):
            yield pytest.param("byte", rule, id=f"byte, {rule}", marks=marks)


@pytest.mark.parametrize(("level", "rule"), [*cases()])
def test_a_text_is_the_same_alone_scored_and_verified(pair, level, rule, tmp_path):
    decoder = Decoder(pair, rule, level=level)
    passages = PASSAGES if isinstance(rule, RCAD) else None
    length = {"max_new_tokens": 8} if level == "token" else {"max_new_bytes": 12}
    together = decoder.generate(PROMPTS, passages=passages, seed=3, **length)
    passage = passages and passages[1]
    (alone,) = decoder.generate(PROMPTS[1], passages=passage, seed=3, **length)
    assert alone.token_ids == together[1].token_ids
    scores = decoder.score(
        PROMPTS,
        [result.token_ids for result in together],
        passages=passages,
        horizon=together[0].ledger.header.horizon,
        temperature=0.7,
        repetition_penalty=1.1,
    )
    for score, result in zip(scores, together, strict=True):
        result.ledger.save(tmp_path / "ledger.jsonl")
        ledger = Ledger.load(tmp_path / "ledger.jsonl")
        report = verify(ledger, pair)
        assert report, report.failures
        assert report.tokens_drawn_again == len(ledger.steps)
        assert ledger.certified == rule.is_certified
        # A model that no stream reads does not run.
        models = {spec.model for spec in rule.streams.values()}
        assert all(getattr(ledger, f"{name}_forwards") == 0 for name in {*pair.models} - models)
        if rule.is_certified:
            assert ledger.is_within_bound
            assert all(step.spend <= step.budget for step in ledger.steps)
        recorded = [step.log_prob for step in ledger.steps]
        assert score.token_log_probs == pytest.approx(recorded, abs=1e-5)
        assert score.spends == pytest.approx([step.spend for step in ledger.steps], abs=1e-5)
        assert score.bound == pytest.approx(ledger.header.bound, abs=1e-9)


def test_every_rule_of_the_package_is_among_these():
    names = {rule.name for rule in RULES}
    assert names | {"anchored_inf"} == {*registry.RULES}


def test_streams_read_what_their_rule_says(token_pair):
    pair, prompt, passage = token_pair, PROMPTS[0], PASSAGES[0]
    tokenizer = pair.tokenizer

    def last_logits(preface: str):
        text = [*tokenizer(preface)["input_ids"], *tokenizer(prompt)["input_ids"][1:]]
        text = text if preface else tokenizer(prompt)["input_ids"]
        with torch.inference_mode():
            return pair.risky(torch.tensor([text])).logits[0, -1]

    plain, after_passage = last_logits(""), last_logits(f"{passage}\n\n")
    tokens = list(range(3, 9))
    for rule, logits in (
        (RCAD(alpha=0.5), 1.5 * plain - 0.5 * after_passage),
        (System(prompt="Be brief."), last_logits("Be brief.\n\n")),
    ):
        passages = passage if isinstance(rule, RCAD) else None
        scores = Decoder(pair, rule).score([prompt] * 6, [[t] for t in tokens], passages=passages)
        actual = [score.token_log_probs[0] for score in scores]
        assert actual == pytest.approx(logits.log_softmax(-1)[tokens].tolist(), abs=1e-5)


@pytest.mark.parametrize("level", ["token", pytest.param("byte", marks=pytest.mark.slow)])
def test_memfree_never_completes_a_blocked_n_gram_of_passages_or_of_a_corpus(pair, level, tmp_path):
    settings = {"prompts": PROMPTS[:1] * 24, "max_new_tokens": 12, "temperature": 0.5}
    copied = Decoder(pair, RiskyOnly(compared=False), level=level, batch_size=24).generate(
        **settings
    )
    passages = [result.text for result in copied]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in passages))
    free = Decoder(
        pair, MemFree(n=2, passages=passages, compared=False), level=level, batch_size=24
    )
    results = free.generate(**settings)
    # Some text is another one as it was kept from going on.
    assert [result.token_ids for result in results] != [result.token_ids for result in copied]
    reach = 2 if level == "token" else 8  # an n-gram has four bytes a token
    texts = [*map(free.level.encode_continuation, passages)]
    spans = {tuple(t[i : i + reach]) for t in texts for i in range(len(t) - reach + 1)}
    for result in results:
        ids = result.token_ids
        assert not spans & {tuple(ids[i : i + reach]) for i in range(len(ids) - reach + 1)}
    rule = MemFree(n=2, corpus=corpus, compared=False)
    again = Decoder(pair, rule, level=level, batch_size=24).generate(**settings)
    assert [result.token_ids for result in again] == [result.token_ids for result in results]
    assert verify(again[0].ledger, pair)
    corpus.write_text("no JSON")
    assert "is not the corpus that was recorded" in verify(again[0].ledger, pair).failures[0]
