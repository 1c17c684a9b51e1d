"""Generation, scores and ledgers of pairs with two tokenizers, byte by byte."""

import dataclasses
import logging
import math
from collections import Counter

import pytest
import torch
from byte_reference import ReferenceStream
from scipy.stats import chi2
from tiny_models import TEXT, tiny_gpt2, tiny_llama, train_tokenizer

from anchored import (
    Anchored,
    Decoder,
    Ledger,
    ModelPair,
    PromptCache,
    RiskyOnly,
    SafeOnly,
    verify,
)
from anchored.decode.byte.byte_level import ByteLevel
from anchored.decode.byte.byte_settings import ByteSettings
from anchored.decode.byte.byte_vocabulary import END_SYMBOL
from anchored.decode.byte.node_law import node_law
from anchored.decode.prefix_debt import prefix_debt
from anchored.decode.sampling_config import SamplingConfig
from anchored.kernels import reference
from anchored.tools.quickstart.tokenizer_training import pre_tokenizer

PROMPTS = ["the keeper's  lamp", "s", "import 3.14\n\n x", "caf\u00e9 \u4e2d", "Nine tides ago, "]
NUM_DRAWS = 400
TEMPERATURE = 0.4
FALSE_ALARM = 1e-6
RULES = [
    Anchored(k=0.3),
    Anchored(k=0.3, divergence="max"),
    Anchored(k=0.3, budget="global"),
    Anchored(k=0.3, budget="fixed"),
    Anchored(K=5.0, debt="average"),
    Anchored(k=2.0, debt="none"),
]


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """GPT-2's pretokenizer beside Llama 3's; float64."""
    risky = tiny_llama(2, vocab_size=300, layers=3, max_position_embeddings=256)
    safe = tiny_llama(1, max_position_embeddings=256)
    return ModelPair(safe, risky, train_tokenizer(320), risky_tokenizer=llama3_tokenizer(300))


def llama3_tokenizer(vocab_size: int):
    return train_tokenizer(vocab_size, TEXT[::-1], pre_tokenizer())


def reference_of(pair: ModelPair, name: str, **changes) -> ReferenceStream:
    vocabulary = ByteLevel(pair, ByteSettings()).vocabularies[name]
    return ReferenceStream(pair.models[name], vocabulary, num_rows=1, **changes)


def log_probs_along(pair: ModelPair, name: str, prompt: str, symbols: list[int], **changes):
    """(symbols, 257) float64 before each symbol, by the definition."""
    stream = reference_of(pair, name, **changes)
    rows = [stream.read([list(prompt.encode())], [0]).logits[0]]
    for symbol in symbols[:-1]:
        rows.append(stream.feed(torch.tensor([[symbol]]), torch.tensor([[1]]))[0, 0])
    return torch.stack(rows)


def test_symbols_and_debt_are_the_same_alone_and_in_any_batch(pair):
    decoder = Decoder(pair, Anchored(k=0.5), batch_size=3)
    seeds = [3, 1, 4, 1, 5]
    together = decoder.generate(PROMPTS, max_new_bytes=12, seed=seeds)
    for prompt, seed, result in zip(PROMPTS, seeds, together, strict=True):
        (alone,) = decoder.generate(prompt, max_new_bytes=12, seed=seed)
        assert alone.token_ids == result.token_ids and alone.text == result.text
        assert alone.ledger.header.debt == pytest.approx(result.ledger.header.debt, abs=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_ledgers_stay_within_their_bound_and_are_verified(pair, rule, tmp_path):
    results = Decoder(pair, rule).generate(PROMPTS[:2], max_new_bytes=8, temperature=1.0)
    for result in results:
        assert result.ledger.certified and result.ledger.is_within_bound
        result.ledger.save(tmp_path / "ledger.jsonl")
        report = verify(Ledger.load(tmp_path / "ledger.jsonl"), pair)
        assert report.is_ok, report
        assert report.tokens_drawn_again == len(result.token_ids)


@pytest.mark.parametrize("warpers", [{}, {"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.2}], ids=str)
def test_spends_are_the_true_divergence_from_the_safe_model(pair, warpers):
    """Truncation bans bytes of each model that the other one allows."""
    sampling = SamplingConfig(temperature=0.9, repetition_penalty=1.2, **warpers)
    rule = Anchored(k=0.6, debt="none")
    (result,) = Decoder(pair, rule).generate(PROMPTS[1], max_new_bytes=10, **sampling.as_dict())
    logits = {
        name: log_probs_along(pair, name, PROMPTS[1], result.token_ids, sampling=sampling)
        for name in pair.models
    }
    budgets = torch.tensor([step.budget for step in result.ledger.steps], dtype=torch.float64)
    weights = reference.project_kl(logits["risky"], logits["safe"], budgets)
    forced = weights.isnan()
    star = reference.tilted_log_probs(logits["risky"], logits["safe"], weights.nan_to_num())
    star = torch.where(forced[:, None], logits["safe"], star)
    divergences = reference.kl_divergence(star, logits["safe"])
    for step, divergence, law in zip(result.ledger.steps, divergences, star, strict=True):
        assert step.spend <= step.budget
        assert step.spend == pytest.approx(divergence.item(), abs=max(1e-5 * step.budget, 1e-7))
        assert step.log_prob == pytest.approx(law[step.token_id].item(), abs=1e-3)
    allowed = {name: values > -torch.inf for name, values in logits.items()}
    if warpers:
        assert (allowed["safe"] & ~allowed["risky"]).any()
        assert (allowed["risky"] & ~allowed["safe"]).any()


def test_no_budget_gives_the_safe_model_exactly(pair):
    anchored = Decoder(pair, Anchored(k=0.0)).generate(PROMPTS, max_new_bytes=12)
    safe = Decoder(pair, SafeOnly()).generate(PROMPTS, max_new_bytes=12)
    assert [result.token_ids for result in anchored] == [result.token_ids for result in safe]
    sampling = SamplingConfig()
    laws = log_probs_along(pair, "safe", PROMPTS[0], anchored[0].token_ids, sampling=sampling)
    for step, law in zip(anchored[0].ledger.steps, laws, strict=True):
        assert step.spend == 0.0 and step.accepted
        assert step.log_prob == pytest.approx(law[step.token_id].item(), abs=1e-9)


def test_an_ample_budget_gives_the_risky_models_bytes(pair):
    anchored = Decoder(pair, Anchored(k=1000.0)).generate(PROMPTS, max_new_bytes=12)
    risky = Decoder(pair, RiskyOnly()).generate(PROMPTS, max_new_bytes=12)
    assert [result.token_ids for result in anchored] == [result.token_ids for result in risky]
    assert not any(result.ledger.certified for result in risky)


def test_the_debt_is_that_of_all_bytes_but_the_first_in_nats_of_a_token(pair):
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS[0], max_new_bytes=1)
    prompt = list(PROMPTS[0].encode())
    scores = {n: reference_of(pair, n).read([prompt], [0]).token_log_probs[0] for n in pair.models}
    assert len(scores["safe"]) == len(prompt) - 1
    expected = 4 * prefix_debt(scores["risky"] - scores["safe"])
    assert result.ledger.header.debt == pytest.approx(expected, abs=1e-9)


def test_a_bounded_debt_is_never_below_the_exact_one(pair):
    settings = ByteSettings(debt="bounded")
    exact = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=1)
    bounded = Decoder(pair, Anchored(k=1.0), byte_settings=settings).generate(
        PROMPTS, max_new_bytes=1
    )
    for less, more in zip(exact, bounded, strict=True):
        assert more.ledger.header.debt >= less.ledger.header.debt - 1e-9
        assert verify(more.ledger, pair).is_ok


@pytest.mark.parametrize(
    "settings",
    [{"mode": "raw"}, {"warped": "byte"}, {"tau": 0.05}, {"prefetch": 4}, {"tau": 0.01}],
    ids=str,
)
def test_every_setting_is_recorded_and_verified(pair, settings):
    decoder = Decoder(pair, Anchored(k=0.5), byte_settings=ByteSettings(**settings))
    (result,) = decoder.generate(PROMPTS[0], max_new_bytes=20)
    header = result.ledger.header
    assert header.level == "byte" and settings.items() <= header.level_settings.items()
    assert set(header.level_settings["tokenizers"]) == {"safe", "risky"}
    assert result.ledger.is_within_bound
    report = verify(result.ledger, pair)
    assert report.is_ok, report


def test_streamed_pieces_hold_whole_characters_and_join_to_the_text(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    for seed in range(2):
        (whole,) = decoder.generate(PROMPTS[3], max_new_bytes=20, seed=seed, temperature=1.5)
        pieces = list(decoder.stream(PROMPTS[3], max_new_bytes=20, seed=seed, temperature=1.5))
        assert [piece.token_id for piece in pieces] == whole.token_ids
        assert "".join(piece.text for piece in pieces) == whole.text
        assert whole.text == bytes(whole.token_ids).decode(errors="replace")
        assert not any("\ufffd" in piece.text for piece in pieces[:-1])


def test_a_stop_string_cuts_the_text(pair):
    decoder = Decoder(pair, SafeOnly())
    (whole,) = decoder.generate(PROMPTS[0], max_new_bytes=30)
    stop = whole.text[3:5]
    (cut,) = decoder.generate(PROMPTS[0], max_new_bytes=30, stop=[stop])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop_string"


def test_the_end_of_either_model_ends_the_text(pair):
    eager = tiny_llama(1, max_position_embeddings=256)
    eager.lm_head.weight.data[1] *= 12
    ending = ModelPair(eager, pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    results = Decoder(ending, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=20, seed=[*range(5)])
    ended = [result for result in results if result.finish_reason == "stop_token"]
    assert ended and all(result.token_ids[-1] == END_SYMBOL for result in ended)
    assert all(result.text == bytes(result.token_ids[:-1]).decode() for result in ended)
    assert verify(ended[0].ledger, ending).is_ok


def test_scoring_a_generation_gives_the_ledgers_figures(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    results = decoder.generate(PROMPTS, max_new_bytes=12, top_p=0.9)
    symbols = [result.token_ids for result in results]
    warpers = {"temperature": 0.7, "repetition_penalty": 1.1, "top_p": 0.9}
    scores = decoder.score(PROMPTS, symbols, horizon=12, **warpers)
    for result, score in zip(results, scores, strict=True):
        steps = result.ledger.steps
        assert score.token_log_probs == pytest.approx([step.log_prob for step in steps], abs=1e-6)
        assert score.spends == pytest.approx([step.spend for step in steps], abs=1e-6)
        assert score.bound == pytest.approx(result.ledger.header.bound, abs=1e-9)


def test_text_and_bytes_score_alike(pair):
    decoder = Decoder(pair, SafeOnly())
    text, given = decoder.score(["caf\u00e9", "caf\u00e9"], [" \u4e2d!", list(" \u4e2d!".encode())])
    assert text == given and len(text.token_ids) == 5


def test_a_changed_byte_and_another_tokenizer_are_found(pair):
    (result,) = Decoder(pair, Anchored(k=0.5)).generate(PROMPTS[0], max_new_bytes=8)
    ledger = result.ledger
    steps = list(ledger.steps)
    steps[4] = dataclasses.replace(steps[4], token_id=ord("x") + (steps[4].token_id == ord("x")))
    assert not verify(dataclasses.replace(ledger, steps=steps), pair).is_ok
    other = ModelPair(
        pair.safe,
        pair.risky,
        pair.tokenizer,
        pair.fingerprints,
        risky_tokenizer=llama3_tokenizer(299),
    )
    report = verify(ledger, other)
    assert "the tokenizers, or their stop tokens, are not the recorded ones" in report.failures


def test_a_row_with_nan_logits_fails_alone(pair):
    broken = tiny_llama(2, vocab_size=300, max_position_embeddings=256)
    (token, *_) = pair.risky_tokenizer("\u4e2d", add_special_tokens=False)["input_ids"]
    broken.model.embed_tokens.weight.data[token] = math.nan
    sick = ModelPair(pair.safe, broken, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    fine, failed, last = Decoder(sick, Anchored(k=1.0)).generate(
        ["import", "a\u4e2d", "s"], max_new_bytes=4
    )
    assert failed.error.startswith("request 1: the risky model's logits")
    assert not fine.error and not last.error and len(fine.token_ids) == 4


def test_a_text_that_outgrows_a_model_fails_alone(pair, caplog):
    short = tiny_llama(1, max_position_embeddings=8)
    tight = ModelPair(short, pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    (long, *_) = Decoder(tight, SafeOnly()).generate(["the keeper", "s"], max_new_bytes=12)
    assert "the safe model's logits at step" in long.error and long.token_ids
    assert "more than the model's 8 positions" in caplog.text


def test_greedy_decoding_takes_the_likeliest_byte_and_certifies_nothing(pair, caplog):
    with caplog.at_level(logging.WARNING):
        (result,) = Decoder(pair, Anchored(k=0.5)).generate("s", max_new_bytes=6, temperature=0.0)
    assert not result.ledger.certified and "temperature 0" in caplog.text
    assert verify(result.ledger, pair).is_ok


def test_the_level_and_the_horizon(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    assert decoder.level.name == "byte"
    (result,) = decoder.generate("salt", max_new_tokens=3)
    header = result.ledger.header
    assert (header.horizon, header.K) == (12, 6.0) and len(result.token_ids) == 12
    assert "12 bytes" in str(result)
    one = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    assert Decoder(one, SafeOnly()).level.name == "token"
    assert Decoder(one, SafeOnly(), level="byte").level.name == "byte"


def test_other_families_decode_bytes_too(pair):
    gpt2 = ModelPair(tiny_gpt2(1), pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    (result,) = Decoder(gpt2, Anchored(k=0.5)).generate("salt", max_new_bytes=12)
    assert verify(result.ledger, gpt2).is_ok


def test_a_kept_prompt_gives_the_same_text_at_any_k_and_seed(pair):
    off = PromptCache(0)
    cache = PromptCache()
    requests = {"k": [0.2, 0.9, 0.9], "seed": [1, 2, 2], "max_new_bytes": 10}
    for rule in (Anchored(k=9.0), Anchored(k=9.0, divergence="max"), SafeOnly()):
        for temperature in (0.7, 1.3):
            expected, actual = (
                Decoder(pair, rule, prompt_cache=prompts).generate(
                    [PROMPTS[0]] * 3, temperature=temperature, **requests
                )
                for prompts in (off, cache)
            )
            assert [result.token_ids for result in actual] == [r.token_ids for r in expected]
            for one, other in zip(actual, expected, strict=True):
                assert one.ledger.header.debt == pytest.approx(other.ledger.header.debt, abs=1e-9)
    assert len(off) == 0 and len(cache) == 2
    assert actual[0].ledger.safe_forwards < expected[0].ledger.safe_forwards
    assert cache.num_bytes > 0


def test_kept_prompts_make_room_for_new_ones(pair):
    whole, tight = PromptCache(), PromptCache(20_000)
    for cache in (whole, tight):
        Decoder(pair, SafeOnly(), prompt_cache=cache).generate(PROMPTS, max_new_bytes=1)
    assert len(whole) == 2 * len(PROMPTS) > len(tight) > 0
    assert tight.num_bytes <= 20_000 < whole.num_bytes


def test_ledgers_tell_what_was_computed_and_what_masking_took(pair):
    decoder = Decoder(pair, RiskyOnly(), byte_settings=ByteSettings(tau=0.3))
    (result,) = decoder.generate(PROMPTS[0], max_new_bytes=24)
    ledger, work = result.ledger, result.ledger.work
    assert 0 < work["safe"]["masked_mass"] < 1 and 0 < work["risky"]["masked_mass"] < 1
    assert ledger.safe_forwards == work["safe"]["num_forwards"]
    assert ledger.risky_forwards == work["risky"]["num_forwards"] < ledger.safe_forwards
    assert 0 == work["safe"]["max_total_variation"] < work["risky"]["max_total_variation"] <= 0.3


def test_an_ample_budget_draws_the_texts_of_the_masked_risky_model(pair):
    """One tokenizer: by bytes under a budget against tokens drawn from the masked model."""
    one = ModelPair(tiny_llama(1), pair.safe, pair.tokenizer)
    decoder = Decoder(one, Anchored(k=1000.0, debt="none"), level="byte", batch_size=64)
    seeds = list(range(NUM_DRAWS))
    sampling = {"temperature": TEMPERATURE, "repetition_penalty": 1.0}
    drawn = decoder.generate(["th"] * NUM_DRAWS, max_new_bytes=2, seed=seeds, **sampling)
    counts = Counter(bytes(min(symbol, 0xFF) for symbol in r.token_ids) for r in drawn)
    law = token_law(reference_of(one, "risky"), b"th", 2)
    assert counts.keys() <= law.keys() and math.fsum(law.values()) == pytest.approx(1, abs=1e-9)
    common = [text for text, prob in law.items() if prob * NUM_DRAWS >= 5]
    observed = [counts[text] for text in common]
    expected = [law[text] * NUM_DRAWS for text in common]
    observed.append(NUM_DRAWS - sum(observed))
    expected.append(NUM_DRAWS - math.fsum(expected))
    terms = [(o - e) ** 2 / e for o, e in zip(observed, expected, strict=True)]
    assert len(common) > 8
    assert math.fsum(terms) < chi2.isf(FALSE_ALARM, len(common))


def token_law(stream: ReferenceStream, prompt: bytes, number: int) -> dict[bytes, float]:
    """Probability of the `number` bytes behind a prompt (the end: 0xff), token by token.

    Every token sequence that the prompt may begin is followed until it is long enough.
    """
    vocabulary = stream.vocabulary
    trie, viability = vocabulary.trie, vocabulary.viability
    found: dict[bytes, float] = {}
    open_paths = [((), b"", viability.start(), 1.0)]
    while open_paths:
        path, text, standing, prob = open_paths.pop()
        logits = stream.raw_logits([(*vocabulary.start_token_ids, *path)])[0] / TEMPERATURE
        law = node_law(vocabulary, standing, logits)
        steps = [
            (text + t, int(token), law.of_token(token))
            for t, token in zip(trie.texts, trie.tokens, strict=True)
        ]
        for longer, token, log_prob in [*steps, (text + b"\xff", -1, law.log_end)]:
            is_possible = log_prob > -math.inf and longer[: len(prompt)] == prompt[: len(longer)]
            if not is_possible:
                continue
            if token < 0 or len(longer) >= len(prompt) + number:
                key = longer[len(prompt) : len(prompt) + number]
                found[key] = found.get(key, 0.0) + prob * math.exp(log_prob)
            else:
                after = viability.extend(standing, token, longer)
                open_paths.append(((*path, token), longer, after, prob * math.exp(log_prob)))
    total = math.fsum(found.values())
    return {text: prob / total for text, prob in found.items()}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty: give at least one character or one byte"),
        ([300], r"bytes must be in \[0, 256\), got 300"),
        ([0xFF], "not the beginning of a UTF-8 text"),
        ("salt " * 60, r"the prompt has \d+ tokens of the safe model; .*context of 256"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(pair, prompt, message):
    with pytest.raises(ValueError, match=message):
        Decoder(pair, Anchored(k=1.0)).generate(prompt, max_new_bytes=200)


def test_what_a_level_cannot_do_is_refused_in_one_line(pair):
    one = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    with pytest.raises(ValueError, match=r'different tokenizers \(320 and 300 tokens\): .*"byte"'):
        Decoder(pair, Anchored(k=1.0), level="token")
    with pytest.raises(ValueError, match='level must be "auto", "token" or "byte", got \'char\''):
        Decoder(pair, Anchored(k=1.0), level="char")
    with pytest.raises(ValueError, match='max_new_bytes needs level="byte"'):
        Decoder(one, Anchored(k=1.0)).generate("salt", max_new_bytes=5)
    with pytest.raises(ValueError, match="max_new_bytes must be >= 1, got 0"):
        Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_bytes=0)
    with pytest.raises(ValueError, match='a prompt cache need level="byte"'):
        Decoder(one, Anchored(k=1.0), byte_settings=ByteSettings())
    with pytest.raises(ValueError, match="speculate=4 cannot run here: its level is the byte"):
        Decoder(pair, Anchored(k=1.0), speculate=4)
    with pytest.raises(ValueError, match="mode must be one of masked, raw, got 'all'"):
        ByteSettings(mode="all")
    with pytest.raises(ValueError, match=r"tau must be in \[0, 1\), got 2"):
        ByteSettings(tau=2)
