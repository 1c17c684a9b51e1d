"""The OpenAI server: p* on both endpoints, what was spent in each answer, caps, refusals."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import httpx
import openai
import torch
from vllm_server import end, server

import anchored
from anchored.decode.vllm.journal import JournalReader, journal_ledgers

PROMPTS = ["the keeper of the lamp", "import math", "Nine tides ago, the harbour bell", "salt"]
LENGTH = 12


@pytest.fixture(scope="module")
def running(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("server")
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--ledgers", str(root / "j")]
    words += ["--max-k", "4", "--max-horizon", "100", "--dtype", "float32", "--enforce-eager"]
    words += ["--block-size", "32", "--max-num-seqs", "16", "--generation-config", "vllm"]
    template = root / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    with server([*words, "--chat-template", str(template)], root / "log") as (address, process):
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="-"), root / "j", process


def asked(number: int) -> dict:
    kind = ({"k": 0.3}, {"k": 3.0}, {"K": 10.0}, {"k": 1.0, "divergence": "max"})[number % 4]
    return {**kind, "seed": number}


def answered(endpoint, *, stream: bool, **request):
    """(token ids, what was said of the spend)"""
    request = {"model": "anchored", "max_tokens": LENGTH, "temperature": 0.8, **request}
    answer = endpoint.create(stream=stream, **request)
    token_ids, spent = [], None
    for part in answer if stream else [answer]:
        token_ids += getattr(part.choices[0], "token_ids", None) or []
        spent = getattr(part, "anchored", None) or spent
    return token_ids, spent


@pytest.mark.parametrize("stream", [False, True])
def test_completions_are_the_decoders_and_say_what_they_spent(running, pair, stream):
    client, _, _ = running

    def complete(number: int):
        body = {"anchored": asked(number), "return_token_ids": True}
        prompt = PROMPTS[number % len(PROMPTS)]
        return answered(client.completions, stream=stream, prompt=prompt, extra_body=body)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(complete, range(16)))
    for number, (token_ids, spent) in enumerate(answers):
        own = dict(asked(number))
        seed = own.pop("seed")
        decoder = anchored.Decoder(pair, anchored.Anchored(**own), level="token")
        (result,) = decoder.generate(
            [PROMPTS[number % len(PROMPTS)]],
            max_new_tokens=LENGTH,
            temperature=0.8,
            repetition_penalty=1.0,
            seed=seed,
        )
        assert token_ids == result.token_ids
        assert spent["certified"] is True
        assert spent["K"] == result.ledger.header.K
        assert spent["debt"] == pytest.approx(result.ledger.header.debt, abs=1e-4)
        assert spent["spent"] == pytest.approx(result.ledger.spent, abs=1e-3)
        assert spent["spent"] <= spent["bound"]


@pytest.mark.parametrize("stream", [False, True])
def test_chats_are_the_decoders(running, pair, stream):
    client, _, _ = running
    messages = [{"role": "user", "content": PROMPTS[0]}]
    body = {"vllm_xargs": {"anchored_k": 2.0, "anchored_seed": 5}, "return_token_ids": True}
    token_ids, spent = answered(
        client.chat.completions, stream=stream, messages=messages, extra_body=body
    )
    decoder = anchored.Decoder(pair, anchored.Anchored(k=2.0), level="token")
    prompt = pair.tokenizer(PROMPTS[0] + " ", add_special_tokens=False)["input_ids"]
    (result,) = decoder.generate(
        [prompt], max_new_tokens=LENGTH, temperature=0.8, repetition_penalty=1.0, seed=5
    )
    assert token_ids == result.token_ids
    assert spent["k"] == 2.0
    assert spent["certified"] is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"anchored": {"k": 4.5}},
        {"anchored": {"K": 1000.0}},
        {"anchored": {"k": 1.0, "K": 2.0}},
        {"anchored": {"debt": -1.0}},
        {"anchored": {"kk": 1.0}},
        {"anchored": {"divergence": "renyi"}},
        {"vllm_xargs": {"anchored_k": "much"}},
        {"max_tokens": 101},
        {"logit_bias": {"5": 3.0}},
        {"min_tokens": 3},
        {"presence_penalty": 0.5},
        {"n": 2},
        {"ignore_eos": True},
        {"structured_outputs": {"choice": ["a", "b"]}},
    ],
    ids=json.dumps,
)
def test_what_cannot_be_honored_is_answered_400(running, wrong):
    client, _, _ = running
    with pytest.raises(openai.BadRequestError):
        client.completions.create(
            model="anchored", prompt="salt", extra_body={"max_tokens": 4, **wrong}
        )


def test_endpoints_that_nobody_looked_at_are_not_served(running):
    client, _, _ = running
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="anchored", input="salt")


def test_a_client_can_only_raise_the_debt(running):
    client, _, _ = running

    def owed(debt: float) -> dict:
        answer = client.completions.create(
            model="anchored",
            prompt=PROMPTS[0],
            max_tokens=LENGTH,
            extra_body={"anchored": {"k": 2.0, "seed": 1, "debt": debt}},
        )
        return answer.anchored

    own, more = owed(0.0), owed(9.0)
    assert own["debt"] > 0.0
    assert own["bound"] == 24.0 - own["debt"]
    assert (more["debt"], more["bound"]) == (9.0, 15.0)


def test_logprobs_are_the_safe_models(running, pair):
    client, _, _ = running
    answer = client.completions.create(
        model="anchored",
        prompt="the keeper",
        max_tokens=1,
        logprobs=5,
        echo=True,
        extra_body={"anchored": {"k": 4.0}, "return_tokens_as_token_ids": True},
    )
    token_ids = pair.encode("the keeper")
    with torch.no_grad():
        safe = pair.safe(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    told = answer.choices[0].logprobs
    for place, token in enumerate(token_ids[1:], start=1):
        assert told.token_logprobs[place] == pytest.approx(safe[place - 1, token].item(), abs=1e-3)
    assert sorted(told.top_logprobs[-1].values())[-5:] == pytest.approx(
        safe[-1].topk(5).values.flip(0).tolist(), abs=1e-3
    )


def test_after_a_kill_the_journal_holds_every_token_that_was_sent(running, pair):
    """The last one of this file: it ends the server."""
    client, journal, process = running
    sent: dict[str, list[int]] = {}

    def stream(number: int) -> None:
        try:
            for chunk in client.completions.create(
                model="anchored",
                prompt=f"{PROMPTS[number % 4]} {number}",
                max_tokens=100,
                stream=True,
                extra_body={"anchored": asked(number), "return_token_ids": True},
            ):
                sent.setdefault(chunk.id, []).extend(chunk.choices[0].token_ids or [])
                if sum(map(len, sent.values())) > 200:
                    end(process)
        except (openai.APIError, httpx.HTTPError):
            return  # the server is gone

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(stream, range(8)))
    assert sum(map(len, sent.values())) > 200
    reader = JournalReader(journal)
    reader.refresh()
    for name, token_ids in sent.items():
        record = reader.find(f"{name}-0")
        assert [step.token_id for step in record.drawn][: len(token_ids)] == token_ids
    for name, ledger in journal_ledgers(journal):
        assert math.fsum(step.spend for step in ledger.steps) <= ledger.header.bound
        assert anchored.verify(ledger, pair).failures == [], name
