"""Our lm-eval model and lm-eval's of the same folders: every request, every answer."""

from types import SimpleNamespace

import pytest

from anchored import Decoder, ModelPair, RiskyOnly, SafeOnly
from anchored.eval.harness.model import AnchoredLM

pytest.importorskip("lm_eval")

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain"
WORDS = TEXT.split()
LONG = " ".join(f"{number} waves" for number in range(40))  # beyond the context of 128
CHOICES = [
    (" ".join(WORDS[: 2 + number]), " " + " ".join(WORDS[number : number + 1 + length]))
    for number in range(3)
    for length in range(3)
]
LIKELIHOODS = [*CHOICES, ("", "Nine tides ago"), ("two tides ", "ago"), (LONG, " salt and rain")]
TEXTS = ["", "Nine tides ago, the harbour bell rang twice", LONG]
GENERATIONS = [
    (text, {"until": until, "max_gen_toks": count})
    for text, until, count in [
        ("the keeper of", ["e"], 24),
        ("Nine tides", [], 8),
        (LONG, ["\n", " a"], 16),
        ("import math\ndef", ["a", "z"], 24),
    ]
]


def request(*args):
    return SimpleNamespace(args=args, task_name="")


@pytest.fixture(scope="module")
def folders_pair(pair_folders):
    return ModelPair.from_pretrained(*pair_folders, device="cpu")


@pytest.mark.parametrize(
    ("rule", "name"), [(SafeOnly(), 0), (RiskyOnly(), 1)], ids=["safe", "risky"]
)
def test_one_model_alone_answers_as_the_model_of_lm_eval(folders_pair, pair_folders, rule, name):
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(str(pair_folders[name]), device="cpu", batch_size=4)
    ours = AnchoredLM(Decoder(folders_pair, rule, batch_size=4))

    def answers(lm):
        texts = lm.generate_until([request(*given) for given in GENERATIONS], disable_tqdm=True)
        likeliest = (GENERATIONS[1][0], texts[1])  # what greedy decoding writes
        return (
            lm.loglikelihood(
                [request(*given) for given in (*LIKELIHOODS, likeliest)], disable_tqdm=True
            ),
            lm.loglikelihood_rolling([request(text) for text in TEXTS], disable_tqdm=True),
            texts,
        )

    (our_scores, our_totals, our_texts), (scores, totals, texts) = answers(ours), answers(theirs)
    assert [s for s, _ in our_scores] == pytest.approx([s for s, _ in scores], abs=1e-4)
    assert [bool(g) for _, g in our_scores] == [bool(g) for _, g in scores]
    # lm-eval adds up a text's log-probabilities in float32, whose digits end at 1e-4 of 2,000 nats.
    assert our_totals == pytest.approx(totals, rel=1e-6, abs=1e-4)
    assert our_texts == texts
