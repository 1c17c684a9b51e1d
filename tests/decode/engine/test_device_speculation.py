"""Steps on the device that draft give the tokens and ledgers of plain decoding."""

import math

import pytest
import torch
from tiny_models import tiny_family, tiny_gpt2, tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.engine.device_batch import CapturedStep, DeviceBatch
from anchored.decode.engine.device_step import NUM_KEPT, DeviceStep
from anchored.decode.engine.draft_length import LENGTHS
from anchored.decode.engine.engine import FAMILIES
from anchored.decode.engine.paired_batch import PairedBatch, decode_all
from anchored.decode.engine.request import Request, RequestState
from anchored.decode.levels.level import TokenLevel, open_streams
from anchored.decode.models.row_stream import RowStream
from anchored.decode.settings import SamplingConfig

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE_NATS = 5e-5
"""As for the steps without drafts: float32 models."""

VOCAB_SIZE = 40
KL, MAX = Anchored(k=0.5), Anchored(k=0.5, divergence="max")
FIGURES = ("budget", "spend", "log_prob", "safe_log_prob")


@pytest.fixture(scope="module")
def words():
    return word_tokenizer(VOCAB_SIZE)


@pytest.fixture(scope="module")
def word_pair(words) -> ModelPair:
    """Float32 models of 40 words that end texts here and there; two stop tokens are merged."""
    safe, risky = (tiny_llama(seed, vocab_size=VOCAB_SIZE).float() for seed in (1, 2))
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 0.5
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe, risky, words)


def requests(*sizes: tuple[int, int], first_seed: int = 0) -> list[Request]:
    """One for each (tokens of the prompt, most new tokens)."""
    return [
        Request(
            prompt_token_ids=[(5 * place + 3 * index) % 37 + 3 for place in range(length)],
            max_new_tokens=num_new,
            seed=first_seed + index,
            index=index,
        )
        for index, (length, num_new) in enumerate(sizes)
    ]


def opened(pair, rule, asked: list[Request], *lengths: int) -> PairedBatch:
    """A batch of at most two rows; eager and plain without draft lengths."""
    settings = {
        "num_rows": min(2, len(asked)),
        "max_length": max(request.max_length for request in asked),
    }
    level, sampling = TokenLevel(pair), SamplingConfig(temperature=1.0)
    if not lengths:
        return PairedBatch(level, rule, sampling, **settings)
    return DeviceBatch(level, rule, sampling, draft_lengths=lengths, **settings)


def decoded(pair, rule, asked: list[Request], *lengths: int) -> list[RequestState]:
    """Results in the order of the requests."""
    states = decode_all(opened(pair, rule, asked, *lengths), asked)
    return sorted(states, key=lambda state: state.request.index)


def assert_same(expected: list[RequestState], actual: list[RequestState]) -> None:
    for plain, ours in zip(expected, actual, strict=True):
        assert tokens(ours) == tokens(plain)
        assert (ours.error, ours.finish_reason) == (plain.error, plain.finish_reason)
        assert ours.text.text == plain.text.text
        assert ours.spent <= ours.budget.bound
        for left, right in zip(ours.steps, plain.steps, strict=True):
            assert (left.step, left.accepted) == (right.step, right.accepted)
            for figure in FIGURES:
                error = abs(getattr(left, figure) - getattr(right, figure))
                assert error < TOLERANCE_NATS * (len(ours.steps) if figure == "budget" else 1)


def tokens(state: RequestState) -> list[int]:
    return [step.token_id for step in state.steps]


@pytest.mark.parametrize(
    ("rule", "num_drafts"),
    [
        (KL, 2),
        pytest.param(KL, 4, marks=pytest.mark.slow),
        pytest.param(MAX, 1, marks=pytest.mark.slow),
    ],
    ids=["kl-2", "kl-4", "max-1"],
)
def test_rows_that_join_and_leave_get_the_plain_tokens(word_pair, rule, num_drafts):
    asked = requests((5, 6), (2, 7), (1, 3), first_seed=3)
    plain = decoded(word_pair, rule, asked)
    ours = decoded(word_pair, rule, asked, num_drafts)
    assert_same(plain, ours)
    assert {state.finish_reason for state in ours} == {"length", "stop_token"}
    assert sum(state.num_accepted for state in ours) > 0
    # An end that was drawn behind a kept draft, in the same step.
    assert sum(state.num_forwards["risky"] - 1 for state in ours) < sum(map(len, map(tokens, ours)))


def test_a_decoder_drafts_on_the_device_and_its_ledgers_verify(word_pair):
    settings = {"max_new_tokens": 5, "temperature": 1.0, "seed": 3}
    (plain,) = Decoder(word_pair, MAX).generate([[5, 9, 11]], **settings)
    decoder = Decoder(word_pair, MAX, engine="device", speculate=2)
    (ours,) = decoder.generate([[5, 9, 11]], **settings)
    assert ours.token_ids == plain.token_ids and ours.ledger.certified
    assert ours.ledger.drafted >= ours.ledger.accepted
    assert ours.ledger.safe_forwards == 3 * (ours.ledger.risky_forwards - 1) + 1
    assert verify(ours.ledger, word_pair).is_ok


@pytest.mark.gpu
@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_captured_steps_with_branches_give_the_plain_tokens(words, num_drafts):
    models = [tiny_llama(seed, vocab_size=VOCAB_SIZE).float().cuda() for seed in (1, 2)]
    pair, asked = ModelPair(*models, words), requests((5, 30), (2, 40), (1, 20))
    batch = opened(pair, KL, asked, num_drafts)
    for is_forked in (False, True):
        step = batch._device_step(num_drafts, is_forked=is_forked)
        batch._runs[num_drafts] = CapturedStep(step, pair.safe.device)
        ours = sorted(decode_all(batch, asked), key=lambda state: state.request.index)
        assert_same(decoded(pair, KL, asked), ours)


@pytest.mark.slow
def test_several_lengths_are_tried_and_give_the_plain_tokens(word_pair):
    asked = requests((3, 24), first_seed=11)
    plain = decoded(word_pair, KL, asked)
    assert len(plain[0].steps) > NUM_KEPT + 2
    assert_same(plain, decoded(word_pair, KL, asked, 1, 2))


def test_auto_opens_a_step_for_each_length(word_pair):
    decoder = Decoder(word_pair, KL, engine="device", speculate="auto")
    assert decoder.engine._draft_lengths == LENGTHS
    assert Decoder(word_pair, KL, engine="device").engine._draft_lengths == (0,)


@pytest.mark.parametrize(("num_new", "num_drafts"), [(1, 2), (7, 2)])
def test_identical_models_keep_every_draft(words, num_new, num_drafts):
    """The number of steps is then known, the last of which ends at the horizon."""
    pair = ModelPair(*(tiny_llama(1, vocab_size=VOCAB_SIZE).float() for _ in "ab"), words)
    (state,) = decoded(pair, KL, requests((3, num_new)), num_drafts)
    assert len(state.steps) == num_new and state.spent < 1e-6  # float32: the forwards differ
    assert state.num_accepted == state.num_drafted
    num_steps = math.ceil(num_new / (num_drafts + 1))
    assert state.num_forwards == {"risky": 1 + num_steps, "safe": 1 + num_steps * (num_drafts + 1)}


def test_without_a_budget_every_draft_is_kept(word_pair):
    asked = requests((4, 5), first_seed=2)
    (state,) = decoded(word_pair, Anchored(k=0.0), asked, 2)
    assert state.num_accepted == state.num_drafted > 0
    assert tokens(state) == tokens(decoded(word_pair, Anchored(k=0.0), asked)[0])


def test_drafts_may_reach_behind_the_context(words):
    """Positions of GPT-2 are a table: one behind its end would be an error."""
    pair = ModelPair(*(tiny_gpt2(seed, vocab_size=VOCAB_SIZE).float() for seed in (1, 2)), words)
    asked = requests((125, 3))
    assert_same(decoded(pair, KL, asked), decoded(pair, KL, asked, 4))


def test_an_end_that_is_guessed_and_kept_is_the_last_token_drawn(word_pair):
    """By the device: what the host would drop behind it is not even drawn."""
    batch = opened(word_pair, KL, requests((5, 6), first_seed=112), 2)
    batch.admit(requests((5, 6), first_seed=112))
    batch._runs[2]()
    state = batch._state_on_device
    assert state.is_finished.item() and state.last_tokens.item() == 1
    assert state.positions.item() == 5
    assert state.records[0, 0, :, -1].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("place", [0, 1])
def test_an_end_that_is_guessed_in_vain_ends_nothing(word_pair, place, monkeypatch):
    """Guesses are free: the end is guessed at one place, whatever the safe model says."""
    guess_of(monkeypatch, place, 1)
    asked = requests((3, 5), first_seed=11)
    plain = decoded(word_pair, KL, asked)
    assert len(plain[0].steps) == 5
    assert_same(plain, decoded(word_pair, KL, asked, 2))


@pytest.mark.parametrize("name", ["risky", pytest.param("safe", marks=pytest.mark.slow)])
def test_nan_behind_a_rejection_is_ignored_and_reached_it_fails_the_row(words, name, monkeypatch):
    models = {
        name: tiny_llama(seed, vocab_size=VOCAB_SIZE).float()
        for seed, name in ((1, "safe"), (2, "risky"))
    }
    pair = ModelPair(*models.values(), words)
    asked = requests((3, 3), (2, 3), first_seed=3)
    plain = decoded(pair, KL, asked)
    unused = min(set(range(3, 40)) - {t for state in plain for t in tokens(state)} - {3, 6, 8, 11})
    models[name].model.embed_tokens.weight.data[unused] = torch.nan
    with monkeypatch.context() as guessing:
        guess_of(guessing, 1, unused)
        assert_same(plain, decoded(pair, KL, asked, 2))
    poison = tokens(plain[0])[1]
    models[name].model.embed_tokens.weight.data[poison] = torch.nan
    failed, other = decoded(pair, KL, asked, 2)
    assert tokens(failed) == tokens(plain[0])[:2]
    assert f"the {name} model's logits at step 2 are NaN" in failed.error
    assert other.error or tokens(other) == tokens(plain[1])


def guess_of(monkeypatch, place: int, token_id: int) -> None:
    """Let every step guess this token as the draft at this place."""
    guessed, laws = DeviceStep._guessed, DeviceStep._laws
    places = iter(())

    def fresh_laws(step):
        nonlocal places
        places = iter(range(9))
        return laws(step)

    def other_guess(step, safe, seen):
        guess = guessed(step, safe, seen)
        return torch.full_like(guess, token_id) if next(places) == place else guess

    monkeypatch.setattr(DeviceStep, "_laws", fresh_laws)
    monkeypatch.setattr(DeviceStep, "_guessed", other_guess)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_columns_at_places_on_the_device_give_a_plain_forward(tokenizer, family):
    model = tiny_family(family, 3)
    stream = open_streams(ModelPair(model, model, tokenizer), 2, 20, scores_prompts=False)["safe"]
    assert isinstance(stream, RowStream)
    texts = [[5, 9, 11, 8, 30, 7], [4, 100, 2, 6, 77, 9]]
    stream.reserve()
    stream.read([text[:length] for text, length in zip(texts, (3, 1), strict=True)], [0, 1])
    places = torch.tensor([[3, 4, 5], [1, 2, 3]])
    columns = torch.tensor([texts[0][3:], texts[1][1:4]])
    logits = stream.feed_at(columns, places)
    for row, end in ((0, 6), (1, 4)):
        plain = model(torch.tensor([texts[row][:end]])).logits[0, end - 3 :]
        torch.testing.assert_close(logits[row], plain, rtol=0, atol=1e-9)
