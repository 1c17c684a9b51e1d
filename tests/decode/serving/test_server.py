"""What the embedded server does beside its contract: who joins and leaves, what fails, its end."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest
from byte_pairs import tiny_byte_pair
from embedded_server import embedded, held, slowed
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import never_end, tiny_llama, train_tokenizer
from waiting import HANG_S, until

import anchored
from anchored import Anchored, Decoder, ModelPair, Pathwise, verify
from anchored.decode.serving.journal_reader import journal_ledgers

LONG = {"model": "anchored", "prompt": "the keeper", "max_tokens": 900, "temperature": 1.0}


@pytest.fixture(scope="module")
def long_pair() -> ModelPair:
    """A pair that never ends a text, with contexts that take a while to be filled."""
    models = [tiny_llama(seed, max_position_embeddings=1024) for seed in (1, 2)]
    for model in models:
        never_end(model)
    return ModelPair(*models, train_tokenizer())


@pytest.fixture
def serving(long_pair, tmp_path):
    """Starts a server of two rows with options; gives its address and itself."""
    decoder = Decoder(long_pair, Anchored(k=1.5), batch_size=2)

    def start(**options):
        return embedded(decoder, tmp_path / "journal", **options)

    return start


def figures(address: str, **headers) -> dict[str, float]:
    """The series of /metrics; those with a label under NAME{value}."""
    text = httpx.get(f"{address}/metrics", headers=headers, timeout=HANG_S).text
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def asked_at_once(address: str, bodies: list[dict]) -> list[httpx.Response]:
    """The answers to requests that are sent at one time, in order."""
    with ThreadPoolExecutor(len(bodies)) as threads:
        url = f"{address}/v1/completions"
        return list(threads.map(lambda body: httpx.post(url, json=body, timeout=HANG_S), bodies))


def test_a_client_that_leaves_frees_its_row_and_what_it_got_is_journalled(serving, tmp_path):
    got = []
    with serving() as (address, server):
        body = {**LONG, "stream": True, "return_token_ids": True}
        for _ in range(2):
            with (
                slowed(server),
                httpx.stream(
                    "POST", f"{address}/v1/completions", json=body, timeout=HANG_S
                ) as response,
            ):
                for line in response.iter_lines():
                    if line:
                        chunk = json.loads(line.removeprefix("data: "))
                        got.append((chunk["id"], chunk["choices"][0]["token_ids"]))
                        if len(got) % 4 == 0:
                            break
            until(lambda: server.engine.num_running == 0)
        answer = httpx.post(
            f"{address}/v1/completions", json={**LONG, "max_tokens": 2}, timeout=HANG_S
        )
        assert answer.status_code == 200
        assert figures(address)["anchored_texts_total{aborted}"] == 2
    by_id = dict(journal_ledgers(tmp_path / "journal"))
    assert len(by_id) == 3
    for name in {name for name, _ in got}:
        drawn = by_id[f"{name}-0"].token_ids
        sent = [token for answer_id, tokens in got if answer_id == name for token in tokens]
        assert drawn[: len(sent)] == sent and len(drawn) < 900
        assert by_id[f"{name}-0"].finish_reason == "aborted"


def test_a_text_that_waits_is_drawn_once_a_row_is_free_and_a_full_queue_is_429(serving):
    with serving(max_waiting=1) as (address, server):
        with slowed(server), httpx.Client(timeout=HANG_S) as client:
            url, answers, body = f"{address}/v1/completions", [], {**LONG, "max_tokens": 300}
            threads = [
                threading.Thread(
                    target=lambda: answers.append(httpx.post(url, json=body, timeout=HANG_S))
                )
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            until(lambda: (server.engine.num_running, server.engine.num_waiting) == (2, 1))
            refused = client.post(url, json={**LONG, "max_tokens": 1})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert client.post(url, json={**LONG, "prompt": ["a", "b"]}).status_code == 429
            assert client.get(f"{address}/ready").status_code == 200  # rows are being drawn
            series = figures(address)
            assert (series["anchored_running_texts"], series["anchored_waiting_texts"]) == (2, 1)
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 3
        assert figures(address)["anchored_refused_requests_total{queue}"] == 2


BOTH = pytest.mark.parametrize(
    "rule", [Anchored(k=0.5), Pathwise(k=0.5, bank=8.0)], ids=lambda rule: rule.name
)


@BOTH
def test_a_byte_level_pair_is_served_by_bytes_with_warpers_of_each_request(tmp_path, rule):
    pair = tiny_byte_pair()
    decoder = Decoder(pair, rule)
    asked = [{}, {"top_k": 60}, {"temperature": 1.3, "top_p": 0.9}, {"repetition_penalty": 1.3}]
    with embedded(decoder, tmp_path) as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0)

        def complete(place: int) -> str:
            stream = client.completions.create(
                model="anchored",
                prompt="the keeper's lamp",
                max_tokens=5,
                stream=True,
                extra_body={**asked[place], "anchored": {"seed": place, "k": 0.5 + place}},
            )
            return "".join(chunk.choices[0].text for chunk in stream)

        with ThreadPoolExecutor(len(asked)) as threads_of_clients:
            texts = list(threads_of_clients.map(complete, range(len(asked))))
        with pytest.raises(openai.BadRequestError, match="token level"):
            client.chat.completions.create(
                model="anchored", messages=[{"role": "user", "content": "a"}]
            )
    for place, warpers in enumerate(asked):
        settings = {"temperature": 1.0, "repetition_penalty": 1.0, **warpers}
        (result,) = Decoder(pair, replace(rule, k=0.5 + place)).generate(
            "the keeper's lamp", max_new_tokens=5, seed=place, **settings
        )
        assert texts[place] == result.text
    ledgers = dict(journal_ledgers(tmp_path))
    assert len(ledgers) == len(asked)
    assert all(verify(ledger, pair).is_ok for ledger in ledgers.values())
    assert all(ledger.work["safe"]["num_forwards"] > 0 for ledger in ledgers.values())


RULES = [
    anchored.SafeOnly(),
    anchored.RiskyOnly(),
    anchored.NoOpt(k=1.0),
    anchored.CPFuse(),
    anchored.RCAD(),
    anchored.System(prompt="Be brief."),
    anchored.ColdStart(k=0.3),
    anchored.GlobalSwitch(K=4.0),
    anchored.MemFree(n=2, passages=["the keeper of the lamp"]),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_served_and_certified_as_it_claims(pair, rule, tmp_path):
    passage = "salt and rain" if rule.name == "rcad" else None
    with embedded(Decoder(pair, rule), tmp_path) as (address, _):
        body = {"prompt": "the keeper", "max_tokens": 8, "seed": 4, "temperature": 1.0}
        body |= {"anchored": {"passage": passage}} if passage else {}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=HANG_S).json()
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200
        more = {"anchored": {"bank": 1.0}}
        refused = httpx.post(f"{address}/v1/completions", json={**body, **more}, timeout=HANG_S)
        assert refused.status_code == (200 if rule.name == "no_opt" else 400)
    (result,) = Decoder(pair, rule).generate(
        ["the keeper"],
        max_new_tokens=8,
        seed=4,
        temperature=1.0,
        repetition_penalty=1.0,
        passages=passage,
    )
    assert answer["choices"][0]["text"] == result.text
    assert answer["anchored"]["certified"] is rule.is_certified
    name = answer["anchored"]["id"]
    ledger = dict(journal_ledgers(tmp_path))[name]
    assert ledger == result.ledger
    assert verify(ledger, pair).is_ok


@BOTH
def test_drafts_change_no_text_of_the_server(long_pair, tmp_path, rule):
    texts = []
    body = {"prompt": ["the keeper", "salt"], "max_tokens": 24, "seed": 4, "top_k": 50}
    for speculate in ("off", 3):
        decoder = Decoder(long_pair, rule, speculate=speculate)
        with embedded(decoder, tmp_path / str(speculate)) as (address, _):
            answers = asked_at_once(address, [body, {**body, "temperature": 0.0}])
        choices = [choice for said in answers for choice in said.json()["choices"]]
        texts.append([(choice["text"], choice["anchored"]["spent"]) for choice in choices])
    for (plain, spent), (drafted, spent_too) in zip(*texts, strict=True):
        assert drafted == plain and spent_too == pytest.approx(spent, abs=1e-4)


def test_texts_that_cannot_join_a_batch_begin_once_the_others_have_ended(tmp_path, monkeypatch):
    pair = ModelPair(tiny_llama(1), tiny_llama(2), train_tokenizer())
    pair.row_attention["risky"] = None  # as of a family whose rows are padded to each other
    decoder = Decoder(pair, Anchored(k=1.5), batch_size=2)
    assert not decoder.level.rows_can_join(64)
    body = {"prompt": "the keeper", "max_tokens": 12, "temperature": 1.0}
    with embedded(decoder, tmp_path) as (address, _):
        answers = asked_at_once(address, [{**body, "seed": seed} for seed in range(5)])
    settings = {"temperature": 1.0, "repetition_penalty": 1.0, "max_new_tokens": 12}
    for seed, answer in enumerate(answers):
        (result,) = decoder.generate(["the keeper"], seed=seed, **settings)
        assert answer.json()["choices"][0]["text"] == result.text


def test_a_prompt_whose_logits_are_nan_fails_alone(tmp_path):
    safe, broken = tiny_llama(1), tiny_llama(2)
    for model in (safe, broken):
        never_end(model)
    broken.model.embed_tokens.weight.data[7] = float("nan")
    pair = ModelPair(safe, broken, train_tokenizer())
    with embedded(Decoder(pair, Anchored(k=1.5)), tmp_path) as (address, _):
        # With this seed the second text draws no token 7.
        body = {"prompt": [[0, 7, 9], [0, 8, 9]], "max_tokens": 4, "seed": 3}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=HANG_S).json()
    bad, good = answer["choices"]
    assert (bad["finish_reason"], bad["text"], good["finish_reason"]) == ("error", "", "length")
    assert "NaN" in bad["anchored"]["error"] and bad["anchored"]["certified"] is False
    assert good["anchored"]["certified"] is True


def test_nothing_is_sent_that_the_journal_lacks(serving, monkeypatch):
    with serving() as (address, server):
        journal = server.engine._recording._journal
        plain = journal.steps

        def steps(rows):
            if any(step.step >= 5 for _, step in rows):
                raise OSError("no space left")
            plain(rows)

        monkeypatch.setattr(journal, "steps", steps)
        body = {**LONG, "stream": True, "return_token_ids": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=HANG_S) as answer:
            *chunks, last = [line[6:] for line in answer.iter_lines() if line]
        assert sum(len(json.loads(c)["choices"][0]["token_ids"]) for c in chunks) == 5
        assert json.loads(last)["error"]["message"] == "the journal cannot be written"
        short = httpx.post(
            f"{address}/v1/completions", json={**LONG, "max_tokens": 3}, timeout=HANG_S
        )
        assert short.status_code == 200
        assert figures(address)["anchored_unwritten_texts_total"] == 1


def test_a_model_that_breaks_ends_the_server_with_its_reason(long_pair, tmp_path, monkeypatch):
    decoder = Decoder(long_pair, Anchored(k=1.5))
    with embedded(decoder, tmp_path) as (address, server):
        batch = server.engine._batch
        monkeypatch.setattr(batch, "step", lambda: 1 / 0)
        answer = httpx.post(f"{address}/v1/completions", json=LONG, timeout=HANG_S)
        assert answer.status_code == 500
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
        assert isinstance(server.engine.failure, ZeroDivisionError)


def test_the_id_of_a_gateway_comes_back_and_stands_in_the_journal(serving, tmp_path):
    with serving() as (address, _):
        body, url = {**LONG, "max_tokens": 2}, f"{address}/v1/completions"
        for stream in (False, True):
            named = {"x-request-id": f"trace-{stream}"}
            said = httpx.post(url, json={**body, "stream": stream}, headers=named, timeout=HANG_S)
            assert said.headers["x-request-id"] == f"trace-{stream}"
        wrong = httpx.post(url, json=body, headers={"x-request-id": "a b\tc"}, timeout=HANG_S)
        assert wrong.status_code == 400
    (file,) = (tmp_path / "journal").iterdir()
    opened = [json.loads(line) for line in file.read_text().splitlines() if '"open"' in line]
    assert [line["client_id"] for line in opened] == ["trace-False", "trace-True"]


def test_while_it_shuts_down_texts_end_and_new_ones_are_503(serving):
    with serving(shutdown_s=HANG_S) as (address, server), ThreadPoolExecutor(3) as threads:
        url, body = f"{address}/v1/completions", {**LONG, "max_tokens": 30}
        with held(server), httpx.Client(timeout=HANG_S) as client:
            asked = [threads.submit(httpx.post, url, json=body, timeout=HANG_S) for _ in range(3)]
            until(lambda: server.engine.num_running > 0)  # one or two, and no more while held
            num_running = server.engine.num_running
            until(lambda: server.engine.num_waiting == 3 - num_running)
            client.get(f"{address}/health")
            server.end()
            until(lambda: server.engine.refusal is not None)
            assert client.get(f"{address}/health").status_code == 503
            assert client.post(url, json=body).status_code == 503
        statuses = sorted(one.result().status_code for one in asked)
        assert statuses == [200] * num_running + [503] * (3 - num_running)


def test_at_the_limit_streams_end_with_an_error(serving):
    with serving(shutdown_s=0.2) as (address, server), slowed(server):
        body = {**LONG, "stream": True}
        with httpx.stream(
            "POST", f"{address}/v1/completions", json=body, timeout=HANG_S
        ) as response:
            until(lambda: server.engine.num_running == 1)
            server.end()
            lines = [line for line in response.iter_lines() if line]
        assert json.loads(lines[-1][6:])["error"]["code"] == 503


async def _half(address: str) -> bytes:
    reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Content-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    return await reader.read()


def test_a_client_that_leaves_inside_its_body_troubles_nobody(serving, caplog):
    with serving() as (address, _):
        asyncio.run(_half(address))
        said = httpx.post(
            f"{address}/v1/completions", json={**LONG, "max_tokens": 1}, timeout=HANG_S
        )
        assert said.status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
