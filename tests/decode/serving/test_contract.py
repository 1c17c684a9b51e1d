"""The server keeps the contract, whichever engine draws."""

import openai
import pytest
from embedded_server import embedded
from server_contract import *  # noqa: F403
from server_contract import MOST_K, MOST_TOKENS, RULES, Served
from tiny_models import tiny_llama, train_tokenizer

from anchored import Decoder, ModelPair
from anchored.decode.serving.anchored_options import Limits

ENGINES = (("decoder", "pathwise"), ("vllm", "anchored"))
"""Engines and rules; what both rules are to vLLM's engine, its tests have."""


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def served(tmp_path_factory, request):
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
