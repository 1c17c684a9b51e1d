"""The server's contract, and next to it: who joins and leaves, what fails, connections, its end."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import httpx
import openai
import pytest
from byte_pairs import tiny_byte_pair
from embedded_server import embedded, held, posted, streamed
from replaced_llm import replaced_engine
from server_contract import *  # noqa: F403
from server_contract import MOST_K, MOST_TOKENS, PROMPTS, RULES, Served
from tiny_models import never_end, tiny_llama, train_tokenizer
from waiting import HANG_S, until

from anchored import RCAD, Anchored, AnchoredError, Decoder, ModelPair, Pathwise, RiskyOnly, verify
from anchored.decode.engine.log_probs import TokenLogProbs
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.serving import http
from anchored.decode.serving.anchored_options import Limits
from anchored.decode.serving.answers import LogProbTexts, TextSoFar
from anchored.decode.serving.journal_reader import JournalReader, journal_ledgers

LONG = {"prompt": "the keeper", "max_tokens": 900, "temperature": 1.0, "seed": 1}
URL = "/v1/completions"
TIGHT = Pathwise(k=0.5, bank=2.0)
ENGINES = (("decoder", "pathwise"), ("vllm", "anchored"))
"""Engines and rules; what both rules are to vLLM's engine, its tests have."""


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def served(tmp_path_factory, request):
    """The server under contract."""
    engine, rule = request.param
    journal, tokenizer = tmp_path_factory.mktemp("journal"), train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    models = (tiny_llama(seed, layers=1 + seed, max_position_embeddings=256) for seed in (1, 2))
    pair = ModelPair(*models, tokenizer)
    decoder = Decoder(pair, RULES[rule], batch_size=4)
    limits = Limits(rule=decoder.rule, max_k=MOST_K, max_total=900.0, max_horizon=MOST_TOKENS)
    with embedded(decoder, journal, limits=limits, engine=engine) as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0)
        yield Served(client, pair, decoder.rule, journal, "{} ")


@pytest.fixture
def serving(pair, tmp_path):
    """Starts a server of two rows with options; gives its address and itself."""
    decoder = Decoder(pair, Anchored(k=1.5), batch_size=2)

    def start(**options):
        return embedded(decoder, tmp_path / "journal", **options)

    return start


def posted_at_once(address: str, bodies: list[dict]) -> list[httpx.Response]:
    """The answers to requests that are sent at one time, in order."""
    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(lambda body: posted(address, **body), bodies))


def test_a_text_that_waits_is_drawn_once_a_row_is_free_and_a_full_queue_is_429(serving):
    body = {**LONG, "max_tokens": 20}
    with serving(max_waiting=1) as (address, server), ThreadPoolExecutor(3) as threads:
        with held():
            answers = [threads.submit(posted, address, **body) for _ in range(3)]
            until(lambda: server.engine.num_running + server.engine.num_waiting == 3)
            refused = posted(address, **body)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert [answer.result().status_code for answer in answers] == [200] * 3
        page = httpx.get(f"{address}/metrics", timeout=HANG_S).text
        assert 'anchored_refused_requests_total{reason="queue"} 1.0' in page
        for name in ("running_texts", "waiting_texts", "solver_fallback"):
            assert f"anchored_{name} 0.0" in page
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200


def test_a_byte_level_pair_is_served_by_bytes_with_warpers_of_each_request(tmp_path):
    pair, rule, prompt = tiny_byte_pair(), Pathwise(k=0.5, bank=8.0), "the keeper's lamp"
    warpers = [{"temperature": 1.3, "top_p": 0.9}, {"repetition_penalty": 1.3}]
    bodies = [
        {"prompt": prompt, "max_tokens": 3, **each, "anchored": {"seed": place, "k": 0.5 + place}}
        for place, each in enumerate(warpers)
    ]
    with embedded(Decoder(pair, rule), tmp_path) as (address, _):
        answers = [answer.json() for answer in posted_at_once(address, bodies)]
        chat = posted(address, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
        assert chat.status_code == 400 and "token level" in chat.text
    ledgers = dict(journal_ledgers(tmp_path))
    assert len(ledgers) == len(warpers)
    for place, each in enumerate(warpers):
        settings = {"temperature": 1.0, "repetition_penalty": 1.0, **each}
        decoder = Decoder(pair, replace(rule, k=0.5 + place))
        (result,) = decoder.generate(prompt, max_new_tokens=3, seed=place, **settings)
        assert answers[place]["choices"][0]["text"] == result.text
        ledger = ledgers[answers[place]["anchored"]["id"]]
        assert verify(ledger, pair).is_ok and ledger.work["safe"]["num_forwards"] > 0


@pytest.mark.parametrize("rule", [RiskyOnly(), RCAD()], ids=lambda rule: rule.name)
def test_every_rule_is_served_and_certified_as_it_claims(pair, rule, tmp_path):
    passage = "salt and rain" if rule.name == "rcad" else None
    body = {"prompt": "the keeper", "max_tokens": 8, "seed": 4}
    body |= {"anchored": {"passage": passage}} if passage else {}
    with embedded(Decoder(pair, rule), tmp_path) as (address, _):
        answer = posted(address, **body).json()
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200
    settings = {"temperature": 1.0, "repetition_penalty": 1.0, "passages": passage}
    (result,) = Decoder(pair, rule).generate(["the keeper"], max_new_tokens=8, seed=4, **settings)
    assert answer["choices"][0]["text"] == result.text
    assert answer["anchored"]["certified"] is rule.is_certified
    ledger = dict(journal_ledgers(tmp_path))[answer["anchored"]["id"]]
    assert ledger == result.ledger and verify(ledger, pair).is_ok


@pytest.mark.parametrize("num_drafts", [3, None], ids=["drafts", "rows that cannot join"])
def test_texts_that_are_drawn_together_are_those_of_each_alone(tmp_path, num_drafts):
    pair = ModelPair(tiny_llama(1), tiny_llama(2), train_tokenizer())
    if num_drafts is None:  # as of a family whose rows are padded to each other
        pair.row_attention["risky"] = None
    decoder = Decoder(pair, Pathwise(), batch_size=2, speculate=num_drafts)
    assert decoder.level.rows_can_join(64) == (num_drafts is not None)
    prompt, ways = "the keeper", [{"seed": n, "temperature": (1.0, 0.0)[n % 2]} for n in range(6)]
    bodies = [{"prompt": prompt, "max_tokens": 24, **way} for way in ways]
    with embedded(decoder, tmp_path) as (address, _):
        answers = posted_at_once(address, bodies)
    settings = {"max_new_tokens": 24, "repetition_penalty": 1.0}
    for way, answer in zip(ways, answers, strict=True):
        (plain,) = Decoder(pair, Pathwise()).generate(prompt, **way, **settings)
        (choice,) = answer.json()["choices"]
        assert choice["text"] == plain.text
        assert choice["anchored"]["spent"] == pytest.approx(plain.ledger.spent, abs=1e-4)


@pytest.fixture(scope="module")
def exposing(pair, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal")
    with embedded(Decoder(pair, TIGHT), journal, expose_logprobs=True) as (address, _):
        yield address, journal


def test_log_probabilities_of_p_are_the_ledgers_and_no_bound_covers_the_answer(exposing):
    address, journal = exposing
    body = {"prompt": PROMPTS[0], "max_tokens": 20, "logprobs": 3, "seed": 5}
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
    url, decoder = f"{exposing[0]}/v1/completions", Decoder(pair, TIGHT)
    model = LocalCompletionsAPI(base_url=url, tokenized_requests=False, seed=7, **names)
    settings = {"until": ["e"], "max_gen_toks": 12, "temperature": 0.8, "do_sample": True}
    generated = model.generate_until([Instance("generate_until", {}, (PROMPTS[0], settings), 0)])
    sampling = {"temperature": 0.8, "repetition_penalty": 1.0, "max_new_tokens": 12, "stop": "e"}
    assert generated == [text.text for text in decoder.generate([PROMPTS[0]], seed=7, **sampling)]
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
    texts = LogProbTexts(Decoder(pair, TIGHT).level)
    content = texts.of_chat(places)["content"]
    assert bytes(byte for place in content for byte in place["bytes"]).decode() == "a\U0001f30ab"
    told = texts.of_completion(places, TextSoFar(None))
    parts = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8c", "bytes:\\x8a"]
    assert told["tokens"] == ["a", *parts, "b"]
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2]


def test_a_prompt_whose_logits_are_nan_fails_alone(tmp_path):
    safe, broken = tiny_llama(1), tiny_llama(2)
    for model in (safe, broken):
        never_end(model)
    broken.model.embed_tokens.weight.data[7] = float("nan")
    pair = ModelPair(safe, broken, train_tokenizer())
    with embedded(Decoder(pair, Anchored(k=1.5)), tmp_path) as (address, _):
        # With this seed the second text draws no token 7.
        body = {"prompt": [[0, 7, 9], [0, 8, 9]], "max_tokens": 4, "seed": 3}
        bad, good = posted(address, **body).json()["choices"]
    assert (bad["finish_reason"], bad["text"], good["finish_reason"]) == ("error", "", "length")
    assert "NaN" in bad["anchored"]["error"] and bad["anchored"]["certified"] is False
    assert good["anchored"]["certified"] is True


def test_a_model_that_breaks_ends_the_server_with_its_reason(serving, monkeypatch):
    with serving() as (address, server):
        monkeypatch.setattr(PairedBatch, "step", lambda batch: 1 / 0)
        answer = posted(address, **LONG)
        assert answer.status_code == 500
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
        assert isinstance(server.engine.failure, ZeroDivisionError)


def test_an_engine_whose_journal_is_elsewhere_ends_the_server_before_it_answers(pair, tmp_path):
    decoder, here, there = Decoder(pair, Pathwise()), tmp_path / "here", tmp_path / "there"
    engine = replaced_engine(decoder, here, written=there, max_length=None, max_waiting=1)
    with pytest.raises(AnchoredError, match="need one file system"):
        asyncio.run(engine.start(lambda: None))
    asyncio.run(engine.stop())


def test_the_id_of_a_gateway_comes_back_and_is_in_the_journal(serving, tmp_path):
    half = b'{"anchored": {"\\ud800": 1}}'  # of a character, which the refusal quotes
    whole = json.dumps({**LONG, "max_tokens": 2}).encode()
    with serving() as (address, _):
        for content, name, status in (
            (half, "trace-0", 400),
            (whole, "trace-1", 200),
            (whole, "a b\tc", 400),
        ):
            headers = {"content-type": "application/json", "x-request-id": name}
            said = httpx.post(f"{address}{URL}", content=content, headers=headers, timeout=HANG_S)
            assert said.status_code == status
            assert (said.headers["x-request-id"] == name) is name.startswith("trace")
    (record,) = JournalReader(tmp_path / "journal").ended_records()
    assert record.client_id == "trace-1"


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_at_its_end_texts_go_on_and_others_are_503_until_a_second_signal(serving, engine):
    with serving(shutdown_s=HANG_S, engine=engine) as (address, server), held(1) as may_go_on:
        with streamed(address) as response, httpx.Client(timeout=HANG_S) as client:
            lines = filter(None, response.iter_lines())
            next(lines)
            client.get(f"{address}/health")  # a connection that is there
            server.end()
            until(lambda: server.engine.refusal is not None)
            assert client.get(f"{address}/health").status_code == 503
            assert client.post(f"{address}{URL}", json=LONG).status_code == 503
            may_go_on.release()
            assert json.loads(next(lines)[6:])["choices"][0]["token_ids"]
            server.end()
            may_go_on.release()
            for line in lines:
                last = line
                may_go_on.release()
        assert json.loads(last[6:])["error"]["code"] == 503


def half_a_head(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=HANG_S)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    return connection


def test_clients_that_send_half_a_head_trouble_nobody(serving, caplog, monkeypatch):
    with serving() as (address, server):
        with monkeypatch.context() as patch:
            patch.setattr(http, "HEAD_S", 0.2)
            with half_a_head(address) as silent, half_a_head(address):
                assert silent.recv(100) == b""
        assert posted(address, **{**LONG, "max_tokens": 1}).status_code == 200
        # Clients keep connections for less: they would else ask in one that is being closed.
        assert server._http.config.timeout_keep_alive > httpx.Limits().keepalive_expiry
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_connections_beyond_the_limit_are_closed_and_said_once(serving, monkeypatch, caplog):
    monkeypatch.setattr(http, "HEAD_S", HANG_S)
    monkeypatch.setattr(http.PatientProtocol, "last_said_s", -http.QUIET_S)
    monkeypatch.setattr(http, "QUIET_S", HANG_S)
    with serving(max_connections=4) as (address, server), ExitStack() as stack:
        open_ones = server._http.server_state.connections
        until(lambda: not open_ones)  # those of the start
        for _ in range(4):
            stack.enter_context(half_a_head(address))
        for _ in range(2):
            with half_a_head(address) as refused, suppress(ConnectionError):
                assert refused.recv(100) == b""
        stack.close()
        until(lambda: not open_ones)
        assert httpx.get(f"{address}/health", timeout=HANG_S).status_code == 200
    assert caplog.text.count("connections are open: more are closed") == 1
