"""The lm-eval model: lm-eval's of the same folders, refusals, cache, bytes, chats."""

import copy
import logging
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly
from anchored.eval.harness.arguments import OFF, Fitting, generation_settings
from anchored.eval.harness.model import AnchoredLM

pytest.importorskip("lm_eval")

CONTEXT = "the keeper of the lamp wrote"
CONTINUATION = " every wave into rain"


def request(*args):
    return SimpleNamespace(args=args, task_name="")


@pytest.fixture
def safe_lm(pair):
    return AnchoredLM(Decoder(pair, SafeOnly()), max_gen_toks=64)


def likelihoods(lm, *requests):
    return lm.loglikelihood([request(*one) for one in requests], disable_tqdm=True)


def texts(lm, *requests):
    return lm.generate_until([request(*one) for one in requests], disable_tqdm=True)


@pytest.mark.parametrize(("level", "blank"), [("token", " \n"), ("byte", " ")])
def test_a_blank_context_is_an_empty_one(pair, level, blank):
    """lm-eval counts its spaces to the continuation, and leaves nothing before it."""
    lm = AnchoredLM(Decoder(pair, SafeOnly(), level=level))
    lm.tokenizer = copy.deepcopy(pair.tokenizer)
    lm.tokenizer.backend_tokenizer.post_processor = ByteLevel()  # which begins no text
    assert lm.tok_encode("") == []
    on_blank, on_nothing = likelihoods(lm, (blank, "lamp"), ("", f"{blank}lamp"))
    assert on_blank == on_nothing


def test_requests_that_cannot_be_are_refused(safe_lm):
    with pytest.raises(ValueError, match=r"'.*', ''\) has no token"):
        likelihoods(safe_lm, (CONTEXT, ""))
    with pytest.raises(ValueError, match=r"generation settings must be among .*'num_beams': 4"):
        texts(safe_lm, (CONTEXT, {"num_beams": 4}))
    with pytest.raises(ValueError, match=r"max_gen_toks must leave room.* got 128"):
        texts(safe_lm, (CONTEXT, {"max_gen_toks": 128}))  # all of the context


def test_every_answer_reaches_the_cache_as_it_comes(safe_lm):
    kept, settings = [], {"max_gen_toks": 3}
    hook = SimpleNamespace(dbdict=None, add_partial=lambda *entry: kept.append(entry))
    safe_lm.set_cache_hook(hook)
    likelihood = likelihoods(safe_lm, (CONTEXT, CONTINUATION))
    rolling = safe_lm.loglikelihood_rolling([request(CONTEXT)], disable_tqdm=True)
    generated = texts(safe_lm, (CONTEXT, settings))
    assert kept == [
        ("loglikelihood", (CONTEXT, CONTINUATION), likelihood[0]),
        ("loglikelihood_rolling", (CONTEXT,), rolling[0]),
        ("generate_until", (CONTEXT, settings), generated[0]),
    ]


def test_a_cache_serves_the_pair_and_settings_that_filled_it(pair, tmp_path):
    """lm-eval keys an answer by its request alone."""
    from lm_eval.api.model import CachingLM

    def cached(k, name="kept", seed=0):
        lm = CachingLM(AnchoredLM(Decoder(pair, Anchored(k=k)), seed=seed), str(tmp_path / name))
        return lm.loglikelihood([request(CONTEXT, CONTINUATION)])

    first = cached(0.01)
    assert cached(0.01) == first != cached(30.0, "another")
    with pytest.raises(ValueError, match=r"kept was made .*rule\.k was 0\.01 and is now 30"):
        cached(30.0)
    with pytest.raises(ValueError, match="seed was 0 and is now 1"):
        cached(0.01, seed=1)
    anonymous = CachingLM(SimpleNamespace(set_cache_hook=lambda _: None), str(tmp_path / "old"))
    anonymous.get_cache_hook().add_partial("loglikelihood", ("a", "b"), (0.0, False))
    with pytest.raises(ValueError, match=r"rule\.name was missing"):
        cached(30.0, "old")


def test_bytes_are_cut_between_characters_to_what_both_tokenizers_let_through(pair, caplog):
    lm = AnchoredLM(Decoder(pair, Anchored(k=0.5), level="byte"), max_gen_toks=2)
    long = "\u2603 " * 200 + "the keeper of the lamp"
    with caplog.at_level(logging.WARNING):
        ((log_prob, _),) = likelihoods(lm, (long, " wrote"))
        (text,) = texts(lm, (long, {"until": [], "do_sample": True}))
    cuts = [message for message in caplog.messages if "were cut" in message]
    assert cuts == ["1 contexts were cut at the left to fit the models' context"] * 2
    symbols = lm.tok_encode(long)
    kept = Fitting(lm.decoder.level).scored(symbols, lm.tok_encode(" wrote"))
    assert bytes(kept).decode() == long[-len(bytes(kept).decode()) :]  # whole characters
    (score,) = lm.decoder.score([kept], [" wrote"])
    assert log_prob == pytest.approx(score.log_prob, abs=1e-9) and text
    longer = symbols[-len(kept) - 3 :]
    assert lm.decoder.level.too_long([*longer, *lm.tok_encode(" wrote")], 32)
    with pytest.raises(ValueError, match="800 bytes leaves no room for context"):
        likelihoods(lm, ("a", "\u2603 " * 200))


def test_bytes_of_a_long_text_are_each_scored_once_in_windows(pair):
    lm = AnchoredLM(Decoder(pair, SafeOnly(), level="byte"))
    text = "\u2603 of the lamp, " * 40
    symbols = lm.tok_encode(text)
    windows = Fitting(lm.decoder.level).windows(symbols, ord("\n"))
    assert len(windows) > 1
    assert [byte for _, scored in windows for byte in scored] == symbols
    ends = [bytes(scored).decode() for _, scored in windows]  # whole characters
    contexts = [bytes(context).decode() for context, _ in windows]
    assert contexts == ["\n", *(end[-1] for end in ends[:-1])]
    scores = lm.decoder.score(contexts, ends, horizon=[len(scored) for _, scored in windows])
    (total,) = lm.loglikelihood_rolling([request(text)], disable_tqdm=True)
    assert total == pytest.approx(sum(score.log_prob for score in scores), abs=1e-9)


def test_sampled_texts_depend_on_seed_context_and_repetition_alone(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    settings = {"until": [], "max_new_tokens": 12, "do_sample": True, "temperature": 0.9}
    asked, other = (CONTEXT, settings), ("Nine tides", settings | {"max_new_tokens": 5})
    first, _, again = texts(AnchoredLM(decoder, seed=3), asked, other, asked)
    (alone,) = texts(AnchoredLM(decoder, seed=3), asked)
    (reseeded,) = texts(AnchoredLM(decoder, seed=4), asked)
    assert first == alone and len({first, again, reseeded}) == 3


def test_warpers_are_off_unless_a_task_sets_them():
    unused = OFF | {"use_cache": False, "pad_token_id": 0, "top_k": None, "early_stopping": True}
    number, settings = generation_settings({"until": "\n", **unused}, 64)
    assert settings == {"repetition_penalty": 1.0, "temperature": 0.0, "stop": ("\n",)}
    sampled = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}
    number, settings = generation_settings({"do_sample": True, **sampled}, 64)
    assert (number, settings) == (64, {"stop": (), **sampled})


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
CHAT = [{"role": "user", "content": "hello"}]


def test_chats_go_through_the_tokenizer_s_template_and_are_no_bytes(pair, safe_lm, monkeypatch):
    with pytest.raises(ValueError, match="chats need the token level"):
        AnchoredLM(Decoder(pair, SafeOnly(), level="byte")).apply_chat_template(CHAT)
    monkeypatch.setattr(safe_lm.tokenizer, "chat_template", TEMPLATE)
    assert safe_lm.apply_chat_template(CHAT) == "[user]hello<|turn|>>"
    assert safe_lm.chat_template(True) == TEMPLATE and safe_lm.chat_template(False) is None
    name = safe_lm.tokenizer_name  # of the requests that lm-eval keeps
    monkeypatch.setattr(safe_lm.tokenizer, "chat_template", TEMPLATE + " ")
    assert safe_lm.tokenizer_name != name
    monkeypatch.setattr(safe_lm.tokenizer, "chat_template", "{{ raise_exception('no roles') }}")
    with pytest.raises(ValueError, match="the chat template refuses the messages: no roles"):
        safe_lm.apply_chat_template(CHAT)


def test_an_instruct_model_brings_its_template_to_a_base_one(pair):
    """Special tokens have the names of the safe model's tokenizer, and so their ids."""
    with pytest.raises(ValueError, match="neither model's tokenizer has a chat template"):
        AnchoredLM(Decoder(pair, SafeOnly())).apply_chat_template(CHAT)
    instruct = copy.deepcopy(pair.tokenizer)
    instruct.chat_template = TEMPLATE
    tokenizer_json = pair.tokenizer.backend_tokenizer.to_str().replace("<|turn|>", "<|reserved|>")
    base = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json),
        bos_token="<|begin|>",
        eos_token="<|end|>",
    )
    mixed = ModelPair(pair.safe, pair.risky, base, pair.fingerprints, risky_tokenizer=instruct)
    lm = AnchoredLM(Decoder(mixed, RiskyOnly()))
    text = lm.apply_chat_template(CHAT)
    assert text == "[user]hello<|reserved|>>"
    assert lm.tok_encode(text) == instruct(text.replace("reserved", "turn"))["input_ids"]


TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain"
WORDS = TEXT.split()
LONG = " ".join(f"{number} waves" for number in range(40))  # beyond the context of 128
CHOICES = [
    (" ".join(WORDS[: 2 + number]), " " + " ".join(WORDS[number : number + 1 + length]))
    for number in range(3)
    for length in range(3)
]
LIKELIHOODS = [*CHOICES, ("", "Nine tides ago"), ("two tides ", "ago"), (LONG, " salt and rain")]
TEXTS = ["", "Nine tides ago, the harbour bell rang twice", LONG]
GENERATIONS = [
    ("the keeper of", {"until": ["e"], "max_gen_toks": 24}),
    ("Nine tides", {"until": [], "max_gen_toks": 8}),
    (LONG, {"until": ["\n", " a"], "max_gen_toks": 16}),
    ("import math\ndef", {"until": ["a", "z"], "max_gen_toks": 24}),
]


def all_answers(lm):
    written = texts(lm, *GENERATIONS)
    likeliest = (GENERATIONS[1][0], written[1])  # what greedy decoding writes
    totals = lm.loglikelihood_rolling([request(text) for text in TEXTS], disable_tqdm=True)
    return likelihoods(lm, *LIKELIHOODS, likeliest), totals, written


def test_one_model_alone_answers_as_the_model_of_lm_eval(pair_folders):
    from lm_eval.models.huggingface import HFLM

    pair = ModelPair.from_pretrained(*pair_folders, device="cpu")
    for rule, folder in zip((SafeOnly(), RiskyOnly()), pair_folders, strict=True):
        theirs = HFLM(str(folder), device="cpu", batch_size=4)
        scores, totals, written = all_answers(theirs)
        our_scores, our_totals, ours = all_answers(AnchoredLM(Decoder(pair, rule, batch_size=4)))
        assert [s for s, _ in our_scores] == pytest.approx([s for s, _ in scores], abs=1e-4)
        assert [bool(g) for _, g in our_scores] == [bool(g) for _, g in scores]
        # lm-eval adds up in float32, whose digits end at 1e-4 of 2,000 nats.
        assert our_totals == pytest.approx(totals, rel=1e-6, abs=1e-4)
        assert ours == written
