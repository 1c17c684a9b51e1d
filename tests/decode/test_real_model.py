"""A real pair: the small model that the quickstart reads, and the same model that recites."""

import pytest
import torch
from byte_streams import model_of, stream_of
from real_pair import needs_real_model, real_folders
from text_oracle import FRESH_OF_SMOLLM2, OracleDistributions, TextOracle, worst_error
from tokenizers import Tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, verify
from anchored.decode.tokenizer.vocabulary import ByteVocabulary
from anchored.eval.copying.metrics import copying_score
from anchored.tools.quickstart.protected_works import cut_prompts, read_works

pytestmark = [pytest.mark.slow, needs_real_model]
LENGTH = 12
PROMPTS = cut_prompts(read_works()[:3])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return real_folders(tmp_path_factory.mktemp("real"))


def test_the_shipped_adapter_recites_and_a_budget_keeps_it_from_it(folders):
    pair = ModelPair.from_pretrained(*folders)
    texts = [prompt.prompt for prompt in PROMPTS]
    longest = []
    for rule in (RiskyOnly(compared=False), Anchored(k=0.5)):
        results = Decoder(pair, rule).generate(
            texts, max_new_tokens=40, temperature=0.7, repetition_penalty=1.1
        )
        rows = zip(results, PROMPTS, strict=True)
        scores = [copying_score(result.text, prompt.reference) for result, prompt in rows]
        longest.append([score["word_lcs"] for score in scores])
    assert sum(longest[0]) / len(PROMPTS) >= 15 and max(longest[1]) <= 5


@pytest.mark.parametrize("temperature", [0.1, 1.5])
def test_ledgers_of_bfloat16_verify(folders, temperature):
    pair = ModelPair.from_pretrained(*folders, dtype=torch.bfloat16)
    decoder = Decoder(pair, Anchored(k=1.0))
    for result in decoder.generate(
        [prompt.prompt for prompt in PROMPTS[:2]], max_new_tokens=LENGTH, temperature=temperature
    ):
        report = verify(result.ledger, pair)
        assert report.is_ok, report.failures


def test_bytes_by_its_tokenizer_are_the_oracles(folders):
    """The recorded run of 300 prompts is docs/results/bytes-oracle.txt."""
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    vocabulary = ByteVocabulary(tokenizer, [2])
    model = model_of(vocabulary)
    oracle = TextOracle(tokenizer, fresh=FRESH_OF_SMOLLM2)
    distributions = OracleDistributions(oracle, model, vocabulary.start_token_ids, 2)
    stream = stream_of(model, vocabulary)
    text = "caf\u00e9".encode()
    for length in range(1, len(text) + 1):
        read = stream.read([list(text[:length])], [0])
        stream.free(0)
        logits = read.logits[0].log_softmax(-1).tolist()
        assert worst_error(logits, distributions.next_symbol(text[:length])) < 1e-9
