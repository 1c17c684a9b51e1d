"""The lm-eval model: hand-computed log-likelihoods, the boundary, windows."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_llama, train_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, TokenSwap
from anchored.eval.harness.model import AnchoredLM

pytest.importorskip("lm_eval")

CONTEXT = "the keeper of the lamp wrote"
CONTINUATION = " every wave into rain"


def request(*args):
    return SimpleNamespace(args=args)


@pytest.fixture
def safe_lm(pair):
    return AnchoredLM(Decoder(pair, SafeOnly()), max_gen_toks=64)


def log_probs_after_each_token(model, token_ids):
    """(T, V) float64: row t is the distribution after the first t + 1 tokens."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].double().log_softmax(-1)


def hand_log_likelihood(model, context, continuation):
    rows = log_probs_after_each_token(model, context + continuation)[len(context) - 1 : -1]
    log_prob = sum(row[token].item() for row, token in zip(rows, continuation, strict=True))
    return log_prob, rows.argmax(-1).tolist() == continuation


def kl(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum().item()


def hand_projection(log_safe, log_risky, budget):
    """log p* by plain bisection on the weight of the risky model."""
    if kl(log_risky, log_safe) <= budget:
        return log_risky
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        mixed = ((1 - middle) * log_safe + middle * log_risky).log_softmax(-1)
        low, high = (middle, high) if kl(mixed, log_safe) <= budget else (low, middle)
    return ((1 - low) * log_safe + low * log_risky).log_softmax(-1)


@pytest.fixture
def split(pair):
    """Tokens of CONTEXT and CONTINUATION."""
    context = pair.tokenizer(CONTEXT)["input_ids"]
    return context, pair.tokenizer(CONTINUATION, add_special_tokens=False)["input_ids"]


def likelihoods(lm, *requests):
    return lm.loglikelihood([request(*one) for one in requests], disable_tqdm=True)


def texts(lm, *requests):
    return lm.generate_until([request(*one) for one in requests], disable_tqdm=True)


@pytest.mark.parametrize(("rule", "name"), [(SafeOnly(), "safe"), (RiskyOnly(), "risky")])
def test_one_model_alone_scores_as_its_softmax_does(pair, split, rule, name):
    expected, is_greedy = hand_log_likelihood(pair.models[name], *split)
    lm = AnchoredLM(Decoder(pair, rule))
    assert likelihoods(lm, (CONTEXT, CONTINUATION)) == [
        (pytest.approx(expected, abs=1e-9), is_greedy)
    ]


def test_anchored_scores_follow_the_adaptive_budget(pair, split):
    k, (context, continuation) = 0.5, split
    safe, risky = (
        log_probs_after_each_token(pair.models[name], context + continuation)[len(context) - 1 :]
        for name in ("safe", "risky")
    )
    expected, spent = 0.0, 0.0
    for step, token in enumerate(continuation):
        projected = hand_projection(safe[step], risky[step], (step + 1) * k - spent)
        expected += projected[token].item()
        spent += kl(projected, safe[step])
    lm = AnchoredLM(Decoder(pair, Anchored(k=k, debt="none")))
    ((log_prob, _),) = likelihoods(lm, (CONTEXT, CONTINUATION))
    # The solver stays up to 1e-5 of the budget below it: 4 steps of weight off by as much.
    assert log_prob == pytest.approx(expected, abs=1e-3)
    assert spent > k  # the budget was used, so this is not the safe model's score


def test_the_greedy_continuation_is_recognised_and_another_is_not(safe_lm, pair):
    context = safe_lm.tok_encode(CONTEXT)
    best = log_probs_after_each_token(pair.safe, context)[-1].argsort(descending=True).tolist()
    first, second = (
        safe_lm._loglikelihood_tokens([(None, context, [token])], disable_tqdm=True)[0]
        for token in best[:2]
    )
    assert first[1]
    assert not second[1]
    assert first[0] > second[0]


def test_the_boundary_decides_the_debt(pair):
    lm = AnchoredLM(Decoder(pair, Anchored(k=0.5)))
    tokens = lm.tok_encode(CONTEXT + CONTINUATION)
    splits = [(None, tokens[:i], tokens[i:]) for i in (4, 8)]
    early, late = (lm.decoder.score([given], [rest])[0] for _, given, rest in splits)
    assert early.debt != late.debt
    answers = lm._loglikelihood_tokens(splits, disable_tqdm=True)
    expected = [early.log_prob, late.log_prob]
    assert [log_prob for log_prob, _ in answers] == pytest.approx(expected, abs=1e-9)


def test_an_answer_does_not_depend_on_the_other_requests(pair):
    lm = AnchoredLM(Decoder(pair, Anchored(k=0.5, budget="global"), batch_size=3))
    requests = [
        (CONTEXT, CONTINUATION),
        ("Nine tides", " ago"),
        ("", "the harbour bell rang twice; nobody had pulled its rope"),
        ("the harbour bell", " rang"),
    ]
    alone = [likelihoods(lm, one)[0] for one in requests]
    assert likelihoods(lm, *requests) == [
        (pytest.approx(a, abs=1e-9), greedy) for a, greedy in alone
    ]


def test_begin_of_text_stands_before_an_empty_context_and_once(safe_lm, pair):
    tokens = pair.tokenizer("nine tides", add_special_tokens=False)["input_ids"]
    expected, _ = hand_log_likelihood(pair.safe, [pair.tokenizer.bos_token_id], tokens)
    ((log_prob, _),) = likelihoods(safe_lm, ("", "nine tides"))
    assert log_prob == pytest.approx(expected, abs=1e-9)
    with_token = safe_lm.tokenizer.bos_token + CONTEXT
    assert safe_lm.tok_encode(with_token) == safe_lm.tok_encode(CONTEXT)


def test_long_contexts_are_cut_at_the_left_with_one_warning(safe_lm, pair, caplog):
    long = [0, *range(10, 160)]
    continuation = [20, 21]
    with caplog.at_level(logging.WARNING):
        answers = safe_lm._loglikelihood_tokens(
            [(None, long, continuation), (None, long, continuation)], disable_tqdm=True
        )
    assert caplog.messages == ["2 contexts were cut at the left to fit the models' context"]
    expected, _ = hand_log_likelihood(pair.safe, long[-127:], continuation)
    assert [a for a, _ in answers] == pytest.approx([expected] * 2, abs=1e-9)


@pytest.mark.parametrize(
    ("strings", "context", "continuation", "message"),
    [
        (("la", "mp"), [0, 5], [], "has no token of its own"),  # it merges into the context
        (None, [0], [5] * 129, "129 tokens leaves no room for context"),
    ],
)
def test_continuations_that_cannot_be_scored_are_refused(
    safe_lm, strings, context, continuation, message
):
    with pytest.raises(ValueError, match=message):
        safe_lm._loglikelihood_tokens([(strings, context, continuation)], disable_tqdm=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, r"generation settings must be among .*'num_beams'"),
        ({"max_gen_toks": 128}, r"max_gen_toks must leave room.* got 128"),  # all of the context
    ],
)
def test_generations_that_cannot_be_are_refused(safe_lm, settings, message):
    with pytest.raises(ValueError, match=message):
        texts(safe_lm, (CONTEXT, settings))


def test_rolling_scores_a_short_text_after_begin_of_text(safe_lm, pair):
    begin = pair.tokenizer.bos_token_id  # which the tokenizer puts before the text once more
    tokens = pair.tokenizer(CONTEXT)["input_ids"]
    expected, _ = hand_log_likelihood(pair.safe, [begin], tokens)
    empty, _ = hand_log_likelihood(pair.safe, [begin], [begin])
    answers = safe_lm.loglikelihood_rolling([request(CONTEXT), request("")], disable_tqdm=True)
    assert answers == pytest.approx([expected, empty], abs=1e-9)


def test_rolling_scores_every_token_of_a_long_text_once(safe_lm, pair):
    text = " ".join(f"{number} waves" for number in range(28))
    tokens = pair.tokenizer(text)["input_ids"]
    assert 129 < len(tokens) < 2 * 128  # two windows
    first, _ = hand_log_likelihood(pair.safe, [pair.tokenizer.bos_token_id], tokens[:128])
    last = tokens[128:]
    context = tokens[len(tokens) - 129 : 128]  # as much as fits with the rest
    second, _ = hand_log_likelihood(pair.safe, context, last)
    (total,) = safe_lm.loglikelihood_rolling([request(text)], disable_tqdm=True)
    assert total == pytest.approx(first + second, abs=1e-9)


def test_failed_requests_are_refused_rather_than_averaged(safe_lm, monkeypatch):
    broken = SimpleNamespace(error="the safe model's logits are NaN")
    monkeypatch.setattr(safe_lm.decoder, "score", lambda *_, **__: [broken])
    monkeypatch.setattr(safe_lm.decoder, "generate_each", lambda *_, **__: [(0, broken)])
    with pytest.raises(ValueError, match="request 0 cannot be scored: the safe model's logits"):
        likelihoods(safe_lm, ("a", " b"))
    with pytest.raises(ValueError, match="request 0 cannot be generated: the safe model's logits"):
        texts(safe_lm, ("a", {}))


def test_every_answer_reaches_the_cache(safe_lm):
    kept, settings = [], {"max_gen_toks": 3}
    safe_lm.set_cache_hook(SimpleNamespace(add_partial=lambda *entry: kept.append(entry)))
    likelihood = likelihoods(safe_lm, (CONTEXT, CONTINUATION))
    rolling = safe_lm.loglikelihood_rolling([request(CONTEXT)], disable_tqdm=True)
    generated = texts(safe_lm, (CONTEXT, settings))
    assert kept == [
        ("loglikelihood", (CONTEXT, CONTINUATION), likelihood[0]),
        ("loglikelihood_rolling", (CONTEXT,), rolling[0]),
        ("generate_until", (CONTEXT, settings), generated[0]),
    ]


def test_bytes_of_a_continuation_are_scored_at_byte_level(pair):
    decoder = Decoder(pair, Anchored(k=0.5), level="byte")
    lm = AnchoredLM(decoder, max_gen_toks=2)
    (score,) = decoder.score("the keeper", " of\u2603", horizon=6)
    assert likelihoods(lm, ("the keeper", " of\u2603")) == [
        (pytest.approx(score.log_prob, abs=1e-9), score.is_greedy)
    ]
    (rolling,) = lm.loglikelihood_rolling([request("ab")], disable_tqdm=True)
    assert rolling == pytest.approx(decoder.score("\n", "ab")[0].log_prob, abs=1e-9)
    (text,) = texts(lm, ("the", {"until": [], "do_sample": True}))
    assert 0 < len(text.encode()) <= 8 or "\ufffd" in text


def test_bytes_are_cut_between_characters_to_what_both_tokenizers_let_through(pair, caplog):
    lm = AnchoredLM(Decoder(pair, Anchored(k=0.5), level="byte"), max_gen_toks=2)
    long = "\u2603 " * 200 + "the keeper of the lamp"
    with caplog.at_level(logging.WARNING):
        ((log_prob, _),) = likelihoods(lm, (long, " wrote"))
        (text,) = texts(lm, (long, {"until": [], "do_sample": True}))
    cuts = [message for message in caplog.messages if "were cut" in message]
    assert cuts == ["1 contexts were cut at the left to fit the models' context"] * 2
    symbols = lm.tok_encode(long)
    kept = lm._fitting.scored(symbols, lm.tok_encode(" wrote"))
    assert bytes(kept).decode() == long[-len(bytes(kept).decode()) :]  # whole characters
    (score,) = lm.decoder.score([kept], [" wrote"])
    assert log_prob == pytest.approx(score.log_prob, abs=1e-9) and text
    longer = symbols[-len(kept) - 3 :]
    assert lm.decoder.level.too_long([*longer, *lm.tok_encode(" wrote")], 32)
    with pytest.raises(ValueError, match="no room is left for context"):
        likelihoods(lm, ("a", "\u2603 " * 200))


def test_bytes_of_a_long_text_are_each_scored_once_in_windows(pair):
    lm = AnchoredLM(Decoder(pair, SafeOnly(), level="byte"))
    text = "\u2603 of the lamp, " * 40
    symbols = lm.tok_encode(text)
    windows = lm._fitting.windows(symbols, ord("\n"))
    assert len(windows) > 1
    assert [byte for _, scored in windows for byte in scored] == symbols
    ends = [bytes(scored).decode() for _, scored in windows]  # whole characters
    contexts = [bytes(context).decode() for context, _ in windows]
    assert contexts == ["\n", *(end[-1] for end in ends[:-1])]
    scores = lm.decoder.score(contexts, ends, horizon=[len(own) for _, own in windows])
    (total,) = lm.loglikelihood_rolling([request(text)], disable_tqdm=True)
    assert total == pytest.approx(sum(score.log_prob for score in scores), abs=1e-9)


def test_generation_is_greedy_unless_sampling_is_asked_for_and_ends_at_a_stop(safe_lm, pair):
    tokens = safe_lm.tok_encode(CONTEXT)
    start = len(tokens)
    for _ in range(6):
        tokens.append(log_probs_after_each_token(pair.safe, tokens)[-1].argmax().item())
    settings = {"until": [], "max_gen_toks": 6, "do_sample": False}
    (whole,) = texts(safe_lm, (CONTEXT, settings))
    assert whole == pair.tokenizer.decode(tokens[start:], skip_special_tokens=True)
    stop = whole[3:5]
    (cut,) = texts(safe_lm, (CONTEXT, settings | {"until": [stop, ""]}))
    assert cut == whole[: whole.index(stop)]


def test_sampled_texts_depend_on_seed_context_and_repetition_alone(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    settings = {"until": [], "max_new_tokens": 12, "do_sample": True, "temperature": 0.9}
    asked, other = (CONTEXT, settings), ("Nine tides", settings | {"max_new_tokens": 5})
    first, _, again = texts(AnchoredLM(decoder, seed=3), asked, other, asked)
    (alone,) = texts(AnchoredLM(decoder, seed=3), asked)
    (reseeded,) = texts(AnchoredLM(decoder, seed=4), asked)
    assert first == alone and len({first, again, reseeded}) == 3


def test_warpers_are_off_unless_a_task_sets_them(safe_lm, monkeypatch):
    calls = []

    def generate(prompts, **settings):
        calls.append(settings)
        return [(place, SimpleNamespace(text="", error="")) for place in range(len(prompts))]

    monkeypatch.setattr(safe_lm.decoder, "generate_each", generate)
    for gen_kwargs in (
        {"until": "\n"},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2},
    ):
        texts(safe_lm, (CONTEXT, gen_kwargs))
    chosen = [{name: v for name, v in call.items() if name != "seed"} for call in calls]
    default = {"max_new_tokens": 64, "repetition_penalty": 1.0}
    assert chosen == [
        default | {"temperature": 0.0, "stop": ("\n",)},
        default | {"temperature": 1.0, "stop": ()},
        default | {"temperature": 0.7, "stop": (), "top_p": 0.9, "repetition_penalty": 1.2},
    ]


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
CHAT = [{"role": "user", "content": "hello"}]


def test_chats_go_through_the_tokenizers_own_template(safe_lm, monkeypatch):
    monkeypatch.setattr(safe_lm.tokenizer, "chat_template", TEMPLATE)
    assert safe_lm.apply_chat_template(CHAT) == "[user]hello<|turn|>>"
    assert safe_lm.chat_template(True) == TEMPLATE and safe_lm.chat_template(False) is None
    assert isinstance(safe_lm.tokenizer_name, str)
    monkeypatch.setattr(safe_lm.tokenizer, "chat_template", "{{ raise_exception('no roles') }}")
    with pytest.raises(ValueError, match="the chat template refuses a chat: no roles"):
        safe_lm.apply_chat_template(CHAT)


def test_an_instruct_model_brings_its_template_to_a_base_one(pair):
    """Special tokens have the names of the safe model's tokenizer, and so their ids."""
    with pytest.raises(ValueError, match="neither model's tokenizer has a chat template"):
        AnchoredLM(Decoder(pair, SafeOnly())).apply_chat_template(CHAT)
    instruct = copy.deepcopy(pair.tokenizer)
    instruct.chat_template = TEMPLATE
    own = pair.tokenizer.backend_tokenizer.to_str().replace("<|turn|>", "<|reserved|>")
    base = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(own), bos_token="<|begin|>", eos_token="<|end|>"
    )
    mixed = ModelPair(pair.safe, pair.risky, base, pair.fingerprints, risky_tokenizer=instruct)
    lm = AnchoredLM(Decoder(mixed, RiskyOnly()))
    text = lm.apply_chat_template(CHAT)
    assert text == "[user]hello<|reserved|>>"
    assert (
        lm.tok_encode(text)
        == instruct(lm.apply_chat_template(CHAT).replace("<|reserved|>", "<|turn|>"))["input_ids"]
    )


def test_texts_become_the_tokens_that_are_decoded(pair):
    """Of the risky model, where the models have tokens of their own and the rule asks for one."""
    small = train_tokenizer(vocab_size=290)
    two = ModelPair(
        tiny_llama(1, vocab_size=290), pair.risky, small, risky_tokenizer=pair.tokenizer
    )
    lm = AnchoredLM(Decoder(two, TokenSwap()))
    assert lm.tok_encode(CONTEXT) == pair.tokenizer(CONTEXT)["input_ids"]
    assert lm.tok_encode(CONTEXT) != small(CONTEXT)["input_ids"]
    ((log_prob, _),) = likelihoods(lm, (CONTEXT, CONTINUATION))
    assert log_prob < 0


def test_chats_are_no_bytes(pair):
    lm = AnchoredLM(Decoder(pair, Anchored(k=0.5), level="byte"))
    with pytest.raises(ValueError, match="chats need the token level"):
        lm.apply_chat_template(CHAT)
