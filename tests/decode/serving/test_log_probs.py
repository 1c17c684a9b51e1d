"""Log-probabilities of p*, of a server that exposes them, and of those that have none to tell."""

from functools import partial

import pytest
from embedded_server import embedded, posted
from server_accounts import policy_file

from anchored import Decoder, Pathwise, RiskyOnly
from anchored.decode.engine.log_probs import TokenLogProbs
from anchored.decode.serving.anchored_options import Limits
from anchored.decode.serving.answers import COMPLETIONS, LogProbTexts, TextSoFar
from anchored.decode.serving.body import Body
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.decode.serving.reading import Reader
from anchored.decode.serving.server_options import ServerOptions

PROMPT = "the keeper of the lamp"
RULE = Pathwise(k=0.5, bank=2.0)


@pytest.fixture(scope="module")
def exposing(pair, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal")
    with embedded(Decoder(pair, RULE), journal, expose_logprobs=True) as (address, _):
        yield address, journal


def test_those_of_a_drawn_text_are_the_ledgers_and_no_bound_covers_the_answer(exposing):
    address, journal = exposing
    body = {"prompt": PROMPT, "max_tokens": 20, "logprobs": 3, "seed": 5}
    (choice,) = posted(address, **body).json()["choices"]
    ledger = dict(journal_ledgers(journal))[choice["anchored"]["id"]]
    told = choice["logprobs"]
    assert told["token_logprobs"] == pytest.approx([s.log_prob for s in ledger.steps], abs=1e-6)
    for log_prob, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        assert max(top.values()) >= log_prob - 1e-6
    figures = choice["anchored"]
    assert ledger.certified is True and figures["certified"] is False
    assert "no bound covers this answer" in figures["uncertified"]
    plain = posted(address, **{**body, "logprobs": None}).json()["choices"][0]
    assert plain["anchored"]["certified"] is True


def test_lm_eval_generates_and_answers_multiple_choice_by_the_server(exposing, pair, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    pair.tokenizer.save_pretrained(tmp_path)
    names = {"model": "anchored", "tokenizer": str(tmp_path), "tokenizer_backend": "huggingface"}
    url, decoder = f"{exposing[0]}/v1/completions", Decoder(pair, RULE)
    model = LocalCompletionsAPI(base_url=url, tokenized_requests=False, seed=7, **names)
    settings = {"until": ["e"], "max_gen_toks": 12, "temperature": 0.8, "do_sample": True}
    generated = model.generate_until([Instance("generate_until", {}, (PROMPT, settings), 0)])
    sampling = {"temperature": 0.8, "repetition_penalty": 1.0, "max_new_tokens": 12, "stop": "e"}
    assert generated == [text.text for text in decoder.generate([PROMPT], seed=7, **sampling)]
    choices = [("the keeper", " lit the lamp"), ("import", " math")]
    instances = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(choices)]
    scored = LocalCompletionsAPI(base_url=url, **names).loglikelihood(instances)
    encode = partial(pair.tokenizer.encode, add_special_tokens=False)  # as lm-eval does
    for (context, choice), (told, _) in zip(choices, scored, strict=True):
        whole = encode(context + choice)
        (score,) = decoder.score([whole[:1]], [whole[1:]])
        num_read = len(encode(context)) - 1  # the first token follows nothing
        assert told == pytest.approx(sum(score.token_log_probs[num_read:]), abs=1e-4)


def test_tokens_that_are_parts_of_a_letter_are_told_by_their_bytes(pair):
    token_ids = pair.tokenizer.encode("a\U0001f30ab")[1:]
    places = [TokenLogProbs(token_id, -1.0, [(token_id, -1.0)]) for token_id in token_ids]
    texts = LogProbTexts(Decoder(pair, RULE).level)
    content = texts.of_chat(places)["content"]
    assert bytes(byte for place in content for byte in place["bytes"]).decode() == "a\U0001f30ab"
    told = texts.of_completion(places, TextSoFar(None))
    parts = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8c", "bytes:\\x8a"]
    assert told["tokens"] == ["a", *parts, "b"]
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2]


def test_a_rule_without_the_safe_model_and_drafts_tell_none(pair, tmp_path):
    for decoder, said in (
        (Decoder(pair, RiskyOnly(compared=False)), "risky_only does not read"),
        (Decoder(pair, RULE, speculate=2), "without --speculate"),
    ):
        reader = Reader(decoder, Limits(rule=decoder.rule), 100)
        with pytest.raises(ValueError, match=said):
            reader.requests(Body(prompt="a", logprobs=1), COMPLETIONS, "a")


def test_accounts_and_exposed_log_probabilities_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="--expose-logprobs tells what costs none"):
        ServerOptions(accounts=policy_file(tmp_path, alice=10.0), expose_logprobs=True)
