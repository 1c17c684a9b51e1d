"""Log-probabilities of p*, of a server that exposes them, and of those that have none to tell."""

from functools import partial

import httpx
import openai
import pytest
from embedded_server import embedded
from server_accounts import client, policy_file
from tiny_models import tiny_llama, train_tokenizer
from waiting import HANG_S

from anchored import Decoder, ModelPair, Pathwise, RiskyOnly
from anchored.decode.engine.log_probs import TokenLogProbs
from anchored.decode.serving.answers import LogProbTexts, TextSoFar
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.decode.serving.server_options import ServerOptions

PROMPT = "the keeper of the lamp"
RULE = Pathwise(k=0.5, bank=2.0)


@pytest.fixture(scope="module")
def short_pair() -> ModelPair:
    models = [tiny_llama(seed, max_position_embeddings=256) for seed in (1, 2)]
    return ModelPair(*models, train_tokenizer())


@pytest.fixture(scope="module")
def exposing(short_pair, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal")
    with embedded(Decoder(short_pair, RULE), journal, expose_logprobs=True) as (address, _):
        yield address, journal


def test_those_of_a_drawn_text_are_the_ledgers_and_no_bound_covers_the_answer(exposing):
    address, journal = exposing
    body = {"prompt": PROMPT, "max_tokens": 20, "logprobs": 3, "seed": 5, "ignore_eos": True}
    (choice,) = httpx.post(f"{address}/v1/completions", json=body, timeout=HANG_S).json()["choices"]
    ledger = dict(journal_ledgers(journal))[choice["anchored"]["id"]]
    told = choice["logprobs"]
    assert told["token_logprobs"] == pytest.approx([s.log_prob for s in ledger.steps], abs=1e-6)
    for log_prob, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert max(top.values()) >= log_prob - 1e-6
    figures = choice["anchored"]
    assert ledger.certified is True and figures["certified"] is False
    assert "no bound covers this answer" in figures["uncertified"]
    plain = httpx.post(f"{address}/v1/completions", json={**body, "logprobs": None}, timeout=HANG_S)
    assert plain.json()["choices"][0]["anchored"]["certified"] is True


def test_an_echoed_prompt_is_scored_as_a_text_after_its_first_token(exposing, short_pair):
    token_ids = short_pair.encode(PROMPT)
    body = {"prompt": PROMPT, "max_tokens": 1, "logprobs": 1, "echo": True}
    answer = httpx.post(f"{exposing[0]}/v1/completions", json=body, timeout=HANG_S).json()
    told = answer["choices"][0]["logprobs"]["token_logprobs"][1:-1]
    (score,) = Decoder(short_pair, RULE).score([token_ids[:1]], [token_ids[1:]])
    assert told == pytest.approx(score.token_log_probs, abs=1e-6)


def test_lm_eval_answers_multiple_choice_by_the_server(exposing, short_pair, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    short_pair.tokenizer.save_pretrained(tmp_path)
    model = LocalCompletionsAPI(
        base_url=f"{exposing[0]}/v1/completions",
        model="anchored",
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
    )
    asked = [("the keeper", " lit the lamp"), ("import", " math")]
    instances = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(asked)]
    decoder = Decoder(short_pair, RULE)
    encode = partial(short_pair.tokenizer.encode, add_special_tokens=False)  # as lm-eval does
    for (context, choice), (told, _) in zip(asked, model.loglikelihood(instances), strict=True):
        whole = encode(context + choice)
        (score,) = decoder.score([whole[:1]], [whole[1:]])
        num_read = len(encode(context)) - 1  # the first token follows nothing
        assert told == pytest.approx(sum(score.token_log_probs[num_read:]), abs=1e-4)


def test_tokens_that_are_parts_of_a_letter_are_told_by_their_bytes(short_pair):
    token_ids = short_pair.tokenizer.encode("a\U0001f30ab")[1:]
    places = [TokenLogProbs(token_id, -1.0, [(token_id, -1.0)]) for token_id in token_ids]
    texts = LogProbTexts(Decoder(short_pair, RULE).level)
    content = texts.of_chat(places)["content"]
    assert bytes(byte for place in content for byte in place["bytes"]).decode() == "a\U0001f30ab"
    told = texts.of_completion(places, TextSoFar(0, []))
    parts = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8c", "bytes:\\x8a"]
    assert told["tokens"] == ["a", *parts, "b"]
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2]


def test_a_rule_without_the_safe_model_and_drafts_tell_none(short_pair, tmp_path):
    for decoder, said in (
        (Decoder(short_pair, RiskyOnly(compared=False)), "risky_only does not read"),
        (Decoder(short_pair, RULE, speculate=2), "without --speculate"),
    ):
        with embedded(decoder, tmp_path) as (address, _):
            asking = openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0)
            with pytest.raises(openai.BadRequestError, match=said):
                asking.completions.create(model="anchored", prompt="a", logprobs=1)


def test_accounts_and_exposed_log_probabilities_exclude_each_other(tmp_path):
    file = policy_file(tmp_path, **{client("alice").name: 10.0})
    with pytest.raises(ValueError, match="--expose-logprobs tells what costs none"):
        ServerOptions(accounts=file, expose_logprobs=True)
