"""Requests of one batch that name rules and warpers, and requests that leave it."""

from dataclasses import asdict, replace

import pytest
from byte_pairs import tiny_byte_pair
from tiny_models import word_prompts

from anchored import Anchored, Decoder, Pathwise, TokenSwap, verify
from anchored.decode.engine.paired_batch import MOST_ALONE, PairedBatch
from anchored.decode.engine.request import Request, RequestState
from anchored.decode.generation import request_ledger
from anchored.decode.rules.claims import opened
from anchored.decode.settings import SamplingConfig

LENGTH = 8
PLAIN = SamplingConfig(temperature=1.0, repetition_penalty=1.0)
SAMPLINGS = [
    PLAIN,
    SamplingConfig(),
    SamplingConfig(temperature=1.3, top_p=0.9, top_k=40),
    SamplingConfig(temperature=0.0),
]
RULES = [
    Anchored(k=0.4),
    Anchored(k=1.0, divergence="max"),
    Anchored(k=2.0, bank=1.0),
    Pathwise(k=0.5, bank=3.0),
]


def requests_of(decoder: Decoder, count: int, rules=RULES, samplings=SAMPLINGS) -> list[Request]:
    prompts = word_prompts(count)
    return [
        Request(
            prompt_token_ids=decoder.level.encode(prompts[index]),
            max_new_tokens=LENGTH - index % 5,
            seed=index,
            index=index,
            rule=opened(rules[index % len(rules)], decoder.level),
            sampling=samplings[(index // 2) % len(samplings)],
        )
        for index in range(count)
    ]


def decoded(batch: PairedBatch, requests: list[Request]) -> list[RequestState]:
    """The states of all requests, which join where rows are free."""
    waiting, states = list(requests), []
    while waiting or not batch.is_empty:
        if count := min(len(batch.free_rows), len(waiting)):
            states += batch.admit([waiting.pop(0) for _ in range(count)])
        batch.step()
    return states


def assert_alone(decoder: Decoder, states: list[RequestState]) -> None:
    """Each is what a decoder of its rule draws for it alone: tokens and header, its nats nearly, as
    processors round the products of many rows and of one differently."""
    for state in states:
        request, level = state.request, decoder.level
        alone = Decoder(decoder.pair, request.rule.rule, level=level.name)
        length = {f"max_new_{level.name}s": request.max_new_tokens}
        options = {"seed": request.seed, **length, **request.sampling.as_dict()}
        (result,) = alone.generate([request.prompt_token_ids], **options)
        ledger = request_ledger(level, request.rule, request.sampling, state)
        header, expected = asdict(ledger.header), asdict(result.ledger.header)
        for name in ("debt", "bound"):
            assert header.pop(name) == pytest.approx(expected.pop(name), rel=1e-9)
        assert header == expected and ledger.token_ids == result.token_ids
        assert ledger.spent == pytest.approx(result.ledger.spent, abs=1e-8)
        is_certified = level.compares_models and not request.sampling.is_greedy
        assert ledger.certified is is_certified
        assert verify(ledger, decoder.pair).is_ok


@pytest.mark.parametrize("speculate", ["off", pytest.param(2, marks=pytest.mark.slow)])
def test_rows_of_one_batch_draw_each_by_its_rule_and_its_warpers(pair, speculate):
    """Some name none, and draw as the batch does."""
    decoder = Decoder(pair, Anchored(k=1.0), speculate=speculate)
    batch = decoder.open_batch(4, 64, SAMPLINGS[2])
    requests = requests_of(decoder, 10)
    plain = {"rule": decoder.open_rule, "sampling": SAMPLINGS[2]}
    states = decoded(batch, [replace(r, rule=None, sampling=None) for r in requests[:2]])
    for state in states:
        state.request = replace(state.request, **plain)
    assert_alone(decoder, [*states, *decoded(batch, requests[2:])])


@pytest.mark.parametrize("rule", [Anchored(k=0.4), TokenSwap(words=["the", "of", "lamp"])], ids=str)
def test_rows_at_byte_level_and_of_two_tokenizers_warp_each_by_its_request(rule):
    decoder = Decoder(tiny_byte_pair(), rule)
    batch = decoder.open_batch(3, 64, SamplingConfig())
    assert_alone(decoder, decoded(batch, requests_of(decoder, 4, [rule], SAMPLINGS[:2])))


def test_a_row_that_is_cancelled_is_free_and_leaves_the_others_as_they_were(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    requests = requests_of(decoder, 4)
    batch = decoder.open_batch(3, 64, SamplingConfig())
    states = batch.admit(requests[:3])
    for _ in range(8):
        batch.step()
    batch.cancel(states[1])
    num_drawn = len(states[1].steps)
    assert batch.free_rows[-1:] != [] and 1 in batch.free_rows and num_drawn > 0
    batch.cancel(states[1])  # has no row any more
    states += decoded(batch, requests[3:])
    ledger = request_ledger(decoder.level, requests[1].rule, requests[1].sampling, states[1])
    assert (ledger.finish_reason, len(ledger.steps)) == ("aborted", num_drawn)
    assert verify(ledger, pair).is_ok
    assert_alone(decoder, [states[0], *states[2:]])


def test_rows_that_may_spend_nothing_hold_up_the_others_for_a_while_only(pair):
    """Requests of k = 0 that come without end, three rows of four."""
    decoder = Decoder(pair, Anchored(k=1.0, debt="none"))
    batch = decoder.open_batch(4, 128, PLAIN)
    rich = Request(prompt_token_ids=decoder.level.encode("the keeper"), max_new_tokens=3)
    rule = opened(Anchored(k=0.0, debt="none"), decoder.level)
    poor = replace(rich, max_new_tokens=1, rule=rule)
    (state,) = batch.admit([rich])
    for _ in range(4 * (MOST_ALONE + 1)):
        batch.admit([poor] * len(batch.free_rows))
        batch.step()
        if state.is_finished:
            return
    pytest.fail(f"{len(state.steps)} tokens of 3 were drawn")
