"""Conversations: each model reads its template, a base model the plain text; replayed alike."""

import copy
from dataclasses import replace

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, System, TokenSwap, verify
from anchored.decode.levels.chat import plain_text

TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<|turn|>{{ turn.role }}\n{{ turn.content }}"
    "{% if not loop.last %}<|turn|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
CHATS = [
    [{"role": "user", "content": "the keeper of the lamp"}],
    [
        {"role": "system", "content": "import math"},
        {"role": "user", "content": "every wave into a ledger"},
        {"role": "assistant", "content": "of salt"},
        {"role": "user", "content": "and rain"},
    ],
    [{"role": "user", "content": "s"}, {"role": "assistant", "content": "Nine tides"}],
]
LENGTH = {"max_new_tokens": 6, "seed": 4}


def templated(template: str | None):
    tokenizer = copy.deepcopy(train_tokenizer(320))
    tokenizer.chat_template = template
    return tokenizer


def pair_of(safe: str | None, risky: str | None) -> ModelPair:
    models = (tiny_llama(seed, max_position_embeddings=96) for seed in (3, 4))
    return ModelPair(*models, templated(safe), risky_tokenizer=templated(risky))


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """A base model and an instruct model."""
    return pair_of(None, TEMPLATE)


def test_the_base_model_reads_the_text_and_the_instruct_model_its_template(pair):
    results = Decoder(pair, Anchored(k=1.0)).generate(messages=CHATS, **LENGTH)
    headers, decode = [result.ledger.header for result in results], pair.tokenizer.decode
    assert [decode(header.prompt_token_ids[1:]) for header in headers] == [
        "the keeper of the lamp\n\n",
        "import math\n\nevery wave into a ledger\n\nof salt\n\nand rain\n\n",
        "s\n\nNine tides",
    ]
    assert [decode(header.chat_prompts["risky"]) for header in headers] == [
        "<|begin|><|turn|>user\nthe keeper of the lamp<|turn|>assistant\n",
        "<|begin|><|turn|>system\nimport math<|turn|><|turn|>user\nevery wave into a ledger"
        "<|turn|><|turn|>assistant\nof salt<|turn|><|turn|>user\nand rain<|turn|>assistant\n",
        "<|begin|><|turn|>user\ns<|turn|><|turn|>assistant\nNine tides",
    ]


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_the_distributions_are_those_of_plain_forwards_over_what_each_reads(pair, name):
    symbols, rule = [40, 7, 261, 33], SafeOnly() if name == "safe" else RiskyOnly(compared=False)
    (score,) = Decoder(pair, rule).score((), [symbols], messages=CHATS[0])
    prompt_ids = pair.tokenizer(plain_text(CHATS[0]))["input_ids"]
    if name == "risky":
        options = {"add_generation_prompt": True, "return_dict": False}
        prompt_ids = templated(TEMPLATE).apply_chat_template(CHATS[0], **options)
    with torch.inference_mode():
        logits = pair.models[name](torch.tensor([prompt_ids + symbols])).logits[0]
    expected = logits[len(prompt_ids) - 1 : -1].double().log_softmax(-1)[range(4), symbols]
    assert score.token_log_probs == pytest.approx(expected.tolist(), abs=1e-9)


def test_the_debt_is_that_of_the_plain_text(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    chats = decoder.generate(messages=CHATS, **LENGTH)
    texts = decoder.generate([plain_text(chat) for chat in CHATS], **LENGTH)
    debts = [[result.ledger.header.debt for result in results] for results in (chats, texts)]
    assert debts[0] == pytest.approx(debts[1], abs=1e-12) and any(debts[0])


def test_a_chat_is_the_same_alone_streamed_drafted_scored_and_verified(pair):
    decoder = Decoder(pair, Anchored(k=2.0), batch_size=2)
    together = decoder.generate(messages=CHATS, **LENGTH)
    drafted = Decoder(pair, Anchored(k=2.0), batch_size=2, speculate=3)
    for result, same in zip(together, drafted.generate(messages=CHATS, **LENGTH), strict=True):
        assert same.token_ids == result.token_ids
    for chat, result in zip(CHATS, together, strict=True):
        stream = decoder.stream(messages=chat, **LENGTH)
        assert result.token_ids == [piece.token_id for piece in stream]
        assert stream.ledger.header.chat_prompts == result.ledger.header.chat_prompts
        report = verify(result.ledger, pair)
        assert report.tokens_drawn_again == len(result.token_ids), report.failures
    texts, warped = [result.token_ids for result in together], {"temperature": 0.7}
    scores = decoder.score((), texts, messages=CHATS, repetition_penalty=1.1, **warped)
    for score, result in zip(scores, together, strict=True):
        recorded = [step.log_prob for step in result.ledger.steps]
        assert score.token_log_probs == pytest.approx(recorded, abs=1e-8)


def test_a_chat_goes_on_from_its_ledger(pair):
    decoder = Decoder(pair, Anchored(k=2.0))
    (first,) = decoder.generate(messages=CHATS[0], **LENGTH)
    (second,) = decoder.generate(continue_from=first, max_new_tokens=5)
    earlier, header = first.ledger.header, second.ledger.header
    assert header.prompt_token_ids == [*earlier.prompt_token_ids, *first.token_ids]
    assert header.chat_prompts == {"risky": [*earlier.chat_prompts["risky"], *first.token_ids]}
    assert second.ledger.total_bound == pytest.approx(first.ledger.total_bound + header.K)
    assert verify(second.ledger, pair)


OTHER = TEMPLATE.replace("<|turn|>", "<|turn|>>")


@pytest.mark.parametrize(
    ("safe", "risky", "is_apart"),
    [(TEMPLATE, None, False), (OTHER, TEMPLATE, True)],
    ids=["the safe model's", "two templates"],
)
def test_each_model_reads_its_template(safe, risky, is_apart):
    both = pair_of(safe, risky)
    (result,) = Decoder(both, Anchored(k=1.0)).generate(messages=CHATS[0], **LENGTH)
    expected = templated(safe).apply_chat_template(
        CHATS[0], add_generation_prompt=True, return_dict=False
    )
    header = result.ledger.header
    assert header.prompt_token_ids == expected
    assert (header.chat_prompts is not None) == is_apart
    assert verify(result.ledger, both)


def test_tokens_swapped_of_two_tokenizers_in_a_chat():
    both = tiny_byte_pair()
    instruct = copy.deepcopy(both.tokenizers["risky"])
    instruct.chat_template = TEMPLATE
    both = ModelPair(both.safe, both.risky, both.tokenizer, risky_tokenizer=instruct)
    (result,) = Decoder(both, TokenSwap(words=["the", "of"])).generate(messages=CHATS[0], **LENGTH)
    header = result.ledger.header
    assert instruct.decode(header.prompt_token_ids[1:]) == "the keeper of the lamp\n\n"
    assert instruct.decode(header.chat_prompts["risky"][1:]).startswith("<|turn|>user")
    assert verify(result.ledger, both)


@pytest.mark.parametrize(
    ("chat_prompts", "message"),
    [
        ({"safe": [0, 4]}, "safe cannot read something else than the prompt at token level"),
        ({"risky": [0, 320]}, "risky must read tokens in [0, 320)"),
        (None, "step 0"),
    ],
    ids=str,
)
def test_another_reading_is_noticed(pair, chat_prompts, message):
    (result,) = Decoder(pair, Anchored(k=2.0, debt="none")).generate(messages=CHATS[0], **LENGTH)
    forged = replace(result.ledger, header=replace(result.ledger.header, chat_prompts=chat_prompts))
    assert message in verify(forged, pair).failures[0]


def test_what_cannot_be_a_chat_is_refused_by_name(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    with pytest.raises(ValueError, match='a message must have a "role" and a "content", texts'):
        decoder.generate(messages=[{"role": "user"}])
    with pytest.raises(ValueError, match="give prompts or messages, not both"):
        decoder.generate("the keeper", messages=CHATS[0])
    with pytest.raises(ValueError, match="the rule system puts text before a prompt"):
        Decoder(pair, System()).generate(messages=CHATS[0])
    with pytest.raises(ValueError, match="messages need the token level"):
        Decoder(tiny_byte_pair(), Anchored(k=1.0)).generate(messages=CHATS[0])
    with pytest.raises(ValueError, match="the tokenizer of the safe and of the risky model has no"):
        Decoder(pair_of(None, None), Anchored(k=1.0)).generate(messages=CHATS[0])
    refusing = pair_of(None, "{{ raise_exception('no users') }}")
    with pytest.raises(ValueError, match="the chat template refuses the messages: no users"):
        Decoder(refusing, Anchored(k=1.0)).generate(messages=CHATS[0])
